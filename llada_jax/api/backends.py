"""A model's functions on backends outside JAX: LiteRT, emulated NPUs, and exports."""

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from llada_jax.api.model import Model
from llada_jax.backend.exported.manifest import MANIFEST
from llada_jax.backend.exported.opened import EmulatedExport, ExportedProgram
from llada_jax.backend.litert.runtime import LiteRT
from llada_jax.backend.program import OnDemandProgram
from llada_jax.backend.protocol import Backend
from llada_jax.backend.qnn.emulated_npu import ROW_BUCKETS, EmulatedNpu
from llada_jax.backend.session import Program, Session
from llada_jax.backend.weights import quant_of
from llada_jax.config import ModelConfig
from llada_jax.model.head import ScoreRules
from llada_jax.model.params import ModelParams
from llada_jax.types import Denoiser


def session_denoiser(
    model: Model, backend: str | Backend, rules: ScoreRules, taps: tuple[int, ...]
) -> Denoiser:
    """Returns the model's functions on a backend outside JAX: `litert`, `qnn`, `native` or a value.
    With `taps` it compiles layers of a model in memory that also return these outputs.

    Raises ImportError if its packages are not installed.
    """
    if model.artifact:
        manifest = (model.artifact / MANIFEST).read_bytes()
        program = _exported(model.artifact, manifest, backend == "qnn")
    else:
        program = _program(backend, model.config, _Same(model.params), taps)
    return Session(program, rules, taps).denoiser()


@lru_cache(maxsize=1)
def _exported(folder: Path, manifest: bytes, emulated: bool) -> ExportedProgram:
    """Opens an export, kept as long as the manifest, with its hashes of all files, is the same."""
    return EmulatedExport(folder) if emulated else ExportedProgram(folder)


class _Same(NamedTuple):
    """Parameters as a cache key, equal only if they are the same object."""

    params: ModelParams

    def __hash__(self) -> int:
        return id(self.params)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.params is other.params


@lru_cache(maxsize=4)
def _program(
    backend: str | Backend, config: ModelConfig, same: _Same, taps: tuple[int, ...]
) -> Program:
    if backend == "native":
        try:
            from llada_jax.backend.native.program import NativeProgram
        except ImportError as error:
            raise ImportError(
                "native needs the extra 'revision' of llada_jax (llvmlite)"
            ) from error
        return NativeProgram(config, same.params)
    if isinstance(backend, str):
        backend = EmulatedNpu() if backend == "qnn" else LiteRT(quant_of(same.params))
    if isinstance(backend, EmulatedNpu):  # a phone scores on its CPU
        head = LiteRT(quant_of(same.params))
        return OnDemandProgram(config, same.params, backend, head, ROW_BUCKETS, (1,), taps)
    return OnDemandProgram(config, same.params, backend, taps=taps)
