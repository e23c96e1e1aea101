"""A model's functions on a backend, as the sampler calls them.

Denoisers are cached: the sampler compiles a program once for each denoiser. For XLA they depend on
the model's shape alone, so that two models of one shape share programs; for other backends they
hold the parameters.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from llada_jax.api.custom_model import custom_denoiser
from llada_jax.api.forked import require_own_jax
from llada_jax.api.loading import Model, has_tiles
from llada_jax.backend.exported.manifest import MANIFEST
from llada_jax.backend.exported.opened import EmulatedExport, ExportedProgram
from llada_jax.backend.litert.runtime import LiteRT
from llada_jax.backend.program import OnDemandProgram
from llada_jax.backend.protocol import Backend
from llada_jax.backend.qnn.emulated_npu import ROW_BUCKETS as NPU_ROW_BUCKETS
from llada_jax.backend.qnn.emulated_npu import EmulatedNpu
from llada_jax.backend.session import Session
from llada_jax.backend.weights import quant_of
from llada_jax.config import ModelConfig, require
from llada_jax.model import forward as model_forward
from llada_jax.model.forward import RunLayer, shared_layer
from llada_jax.model.head import ScoreRules, score_rows
from llada_jax.model.layers import fused_attend_to_cache
from llada_jax.model.measures import measure_rows
from llada_jax.model.mesh import mesh_denoiser, mesh_of, specs_of
from llada_jax.model.params import ModelParams
from llada_jax.model.quantize import with_paired_int4
from llada_jax.sampler.config import SamplerConfig
from llada_jax.types import Denoiser


def score_rules(config: SamplerConfig) -> ScoreRules:
    """Returns the head's rules for a sampler's settings; `config` must name its special ids."""
    forbidden = [] if config.parity.predict_mask else [config.mask_id]
    forbidden += [config.eos_id] if config.logits_eos_inf else []
    discounted = [config.eos_id, config.eot_id] if config.confidence_eos_eot_inf else []
    return ScoreRules(
        forbidden=tuple(i for i in forbidden if i is not None),
        discounted=tuple(i for i in discounted if i is not None),
        temperature=config.temperature,
        confidence_dtype=config.parity.confidence_dtype,
        noise_dtype=config.parity.noise_dtype,
        spread=config.remasking in ("entropy", "margin")
        or not config.rule.needs.isdisjoint(("entropy", "margin")),
    )


_BACKENDS: dict[str, Callable[[ModelParams], Backend]] = {
    "litert": lambda params: LiteRT(quant_of(params)),
    "qnn": lambda params: EmulatedNpu(),
}
"""Backends that run compiled steps outside JAX, by name."""
XLA: dict[str, RunLayer] = {
    "xla": shared_layer,
    "xla_fused": partial(shared_layer, attend_with=fused_attend_to_cache),
}
"""How JAX runs a layer, by name."""


def backend_denoiser(model: Model, backend: str | Backend, rules: ScoreRules) -> Denoiser:
    """Returns the model's functions on a backend.

    Raises ValueError for an unknown backend and in a forked process, ImportError where its packages
    are not installed.
    """
    require_own_jax()
    if model.functions is not None:
        require(backend == "xla", f"backend is {backend!r}; allowed for a custom model: 'xla'")
        return custom_denoiser(model.functions, rules)
    if isinstance(backend, str) or model.artifact:
        allowed = ("litert", "qnn") if model.artifact else (*XLA, *_BACKENDS)
        names = ", ".join(map(repr, allowed))
        require(backend in allowed, f"backend is {backend!r}; allowed: {names}")
    require(
        not has_tiles(model.params),
        "the model has tiles; allowed: as refresh_on, for the worker of refresh='worker'",
    )
    mesh = mesh_of(model.params)
    require(
        mesh is None or backend in XLA,
        f"backend is {backend!r}, and the model is on a mesh; allowed: {', '.join(map(repr, XLA))}",
    )
    if isinstance(backend, str) and backend in XLA:
        if mesh is not None:
            return mesh_denoiser(model.config, rules, XLA[backend], mesh, specs_of(model.params))
        return denoiser_for(model.config, rules, XLA[backend])
    if model.artifact:
        manifest = (model.artifact / MANIFEST).read_bytes()
        opened = _exported(model.artifact, manifest, backend == "qnn")
        return Session(opened, rules).denoiser()
    return Session(_program(backend, model.config, _Same(model.params)), rules).denoiser()


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
def _program(backend: str | Backend, config: ModelConfig, same: _Same) -> OnDemandProgram:
    if isinstance(backend, str):
        backend = _BACKENDS[backend](same.params)
    if isinstance(backend, EmulatedNpu):  # a phone scores on its CPU
        head = LiteRT(quant_of(same.params))
        return OnDemandProgram(config, same.params, backend, head, NPU_ROW_BUCKETS, canvases=(1,))
    return OnDemandProgram(config, same.params, backend)


@lru_cache(maxsize=64)
def denoiser_for(config: ModelConfig, rules: ScoreRules, run: RunLayer = shared_layer) -> Denoiser:
    """Returns the model's functions in JAX, kept so that each is compiled once."""

    def forward_rows(params, rows, cache):
        taps = () if params.drafter is None else params.drafter.taps
        return model_forward.forward_rows(params, config, rows, cache, run, taps)

    def empty_cache(params, batch, length):
        return model_forward.cache_for(params, config, batch, length)

    score, measure = partial(score_rows, rules=rules), partial(measure_rows, rules=rules)
    return XlaDenoiser(forward_rows, score, empty_cache, measure)


class XlaDenoiser(Denoiser):
    """The model's functions in JAX, on one device."""

    def loop_params(self, params: ModelParams) -> ModelParams:
        """Packs int4 experts: inside a loop XLA's CPU would unpack all of them for each product."""
        return with_paired_int4(params)
