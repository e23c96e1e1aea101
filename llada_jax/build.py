"""The composition root: names in a configuration become objects that work together."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from llada_jax import checkpoint
from llada_jax.backend.exported.contents import Export
from llada_jax.backend.exported.manifest import MANIFEST, Manifest
from llada_jax.backend.exported.opened import Exported
from llada_jax.backend.exported.writer import write_export
from llada_jax.backend.latency import time_steps
from llada_jax.backend.litert.runtime import LiteRT
from llada_jax.backend.program import CompiledOnDemand
from llada_jax.backend.protocol import Backend
from llada_jax.backend.qnn.emulated_npu import ROW_BUCKETS as NPU_ROW_BUCKETS
from llada_jax.backend.qnn.emulated_npu import EmulatedNpu
from llada_jax.backend.recorded_inputs import Inputs
from llada_jax.backend.resources import available_cores
from llada_jax.backend.session import Session
from llada_jax.backend.streamed_program import StreamedProgram
from llada_jax.backend.streamed_weights import StagedLayers, Staging
from llada_jax.backend.weights import quant_of
from llada_jax.config import (
    ExportConfig,
    LatencyTable,
    Loop,
    ModelConfig,
    SamplerConfig,
    ascending_counts,
    require,
)
from llada_jax.model import forward as model_forward
from llada_jax.model.head import ScoreRules, score_rows
from llada_jax.model.params import ModelParams
from llada_jax.revision.forward import pack_params, tiled_denoiser
from llada_jax.revision.matmul import TileMultiplier
from llada_jax.revision.tiles import Kind, Tiles
from llada_jax.revision.worker import Worker
from llada_jax.sampler.generate import Result, decode
from llada_jax.sampler.loops import OnStep, Refresher
from llada_jax.sampler.prompts import Prompts, with_ids
from llada_jax.swap.plan import Plan
from llada_jax.text import Tokenizer
from llada_jax.types import Denoiser, Params


class Model(NamedTuple):
    """A model that is ready to run. `tokenizer` is None where the checkpoint brings none.

    An exported model has an `artifact`, the folder that its backend runs, and None for `params`.
    """

    config: ModelConfig
    params: Params
    tokenizer: Tokenizer | None
    artifact: Path | None = None


def load(source: str | os.PathLike[str], dtype: str | None = None) -> Model:
    """Load a model.

    Args:
      source: a bundled name (`"tiny"`), a folder in the Hugging Face layout or written by
        `llada_jax.checkpoint.save_orbax`, a `.gguf` file, or a folder that `export` wrote.
      dtype: `float32`, `bfloat16`, `int8` or `int4` (quantized while loading); default: as stored,
        and float32 for bundled models.

    Raises:
      FileNotFoundError, ValueError: one message that names the file and what is wrong with it,
        before any tensor is read.
    """
    if (Path(source) / MANIFEST).is_file():
        return _load_exported(Path(source), dtype)
    config, params, tokenizer_folder = checkpoint.load_params(source, dtype)
    tokenizer = Tokenizer.from_folder(tokenizer_folder) if tokenizer_folder else None
    if config.mask_id is None and tokenizer is not None and tokenizer.mask_id is not None:
        config = config.replace(mask_id=tokenizer.mask_id)
    return Model(config, params, tokenizer)


def _load_exported(folder: Path, dtype: str | None) -> Model:
    manifest = Manifest.load(folder)
    quant = manifest.settings.quant
    require(
        dtype in (None, quant),
        f"dtype is {dtype!r}, but {folder} is exported as {quant!r}; allowed: None",
    )
    has_tokenizer = any(file.name == "tokenizer.json" for file in manifest.others)
    tokenizer = Tokenizer.from_folder(folder) if has_tokenizer else None
    return Model(manifest.model, None, tokenizer, folder)


def export(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    settings: ExportConfig | None = None,
    *,
    verify: bool = True,
    samples: Sequence[Inputs] = (),
) -> Manifest:
    """Write a model as a folder of `.tflite` files, which `load` takes.

    A checkpoint of any size is read tensor by tensor; see `llada_jax.backend.exported.writer`.

    Args:
      settings: default: int8, for the CPU.
      verify: run every file against JAX before the folder gets its name.
      samples: forwards that `llada_jax.backend.recorded_inputs` recorded, for phones with static
        quantization.

    Raises:
      FileNotFoundError, ValueError: one message that names what is wrong, before anything is
        written; an export that was interrupted goes on with the same call.
      ImportError: the extra `npu` is not installed.
    """
    config, weights, tokenizer = checkpoint.stream_params(source)
    if config.mask_id is None and tokenizer is not None:
        config = config.replace(mask_id=Tokenizer.from_folder(tokenizer).mask_id)
    settings = settings or ExportConfig()
    what = Export(config, weights, settings, str(source), tokenizer, verify, samples)
    return write_export(Path(folder), what)


def forward(
    model: Model, tokens: Int[Array, "B L"], block_length: int | None = None
) -> Float[Array, "B L V"]:
    """Logits of every position, [B, L] ids -> [B, L, V] float32, as the model gives them.

    Attention is bidirectional, or block-causal where the family is; `block_length` makes it
    block-causal with blocks of that length, counted from position 0.
    """
    require(model.artifact is None, f"{model.artifact} is an export: it has no parameters for JAX")
    array = jnp.asarray(tokens)
    vocab = model.config.vocab_size
    require(
        array.ndim == 2 and array.size > 0,
        f"tokens have shape {array.shape}; allowed: [B, L], not empty",
    )
    require(
        jnp.issubdtype(array.dtype, jnp.integer),
        f"tokens have dtype {array.dtype}; allowed: integers",
    )
    require(
        bool((array >= 0).all() and (array < vocab).all()),
        f"tokens span {array.min()} to {array.max()}; allowed: 0 to {vocab - 1} (the vocabulary)",
    )
    require(
        block_length is None or block_length > 0,
        f"block_length is {block_length}; allowed: 1 or more",
    )
    config = (
        model.config if block_length is None else model.config.replace(block_length=block_length)
    )
    return _forward(model.params, config, array.astype(jnp.int32))


_forward = jax.jit(model_forward.forward, static_argnums=1)


def tiled(model: Model, kind: Kind = "q4_0") -> Model:
    """The model with its matrices as the NPU's tiles, which `backend="tiles"` reads as they are.

    Args:
      kind: `q4_0`, int4 in groups of 32 (a model loaded as int4 keeps its integers), or `float16`.

    Raises:
      ValueError: an export, a model with experts, or a matrix that has no tiles.
    """
    require(model.artifact is None, "the model is an export; allowed: a model with parameters")
    return model._replace(params=pack_params(model.params, model.config, kind))


def generate(
    model: Model,
    prompts: Prompts,
    config: SamplerConfig | None = None,
    *,
    backend: str | Backend | StreamedProgram = "xla",
    seed: int | Sequence[int] = 0,
    trace: bool = False,
    on_step: OnStep | None = None,
    loop: Loop | None = None,
    refresh_on: Model | None = None,
) -> Result:
    """Decode prompts: [B, P] ids, or a list of lists of different lengths.

    Args:
      config: how to decode; default: LLaDA's schedule on the whole canvas.
      backend: where the forward runs. `xla`; `litert` (the extra `npu`), with the numbers that the
        parameters have: float32, int8 or int4; `qnn` (the extra `qnn`), an emulated SM8750 in
        float16; `tiles` (the extra `revision`), the host's threads, for a model of `tiled`; a
        `Backend`, for example an `EmulatedNpu` of another SoC; or a `StreamedProgram`, whose
        layers need not be in memory, nor in the model.
      seed: one for the batch, or one for each row.
      trace: keep what every forward did in `Result.trace`.
      on_step: called after each forward with a `StepView`; runs the host loop.
      loop: `compiled` or `host`; default: compiled, unless `on_step` is given.
      refresh_on: what the worker of `refresh="worker"` runs, for example `tiled(model)`; default:
        the model on the run's own backend.

    Raises:
      ValueError: one message that names the bad value and what is allowed, before any computation.
    """
    return _decode(
        model, prompts, config, backend, seed, trace, on_step, loop, refresh_on, infill=False
    )


def infill(
    model: Model,
    canvases: Prompts,
    config: SamplerConfig | None = None,
    *,
    backend: str | Backend | StreamedProgram = "xla",
    seed: int | Sequence[int] = 0,
    trace: bool = False,
    on_step: OnStep | None = None,
    loop: Loop | None = None,
    refresh_on: Model | None = None,
) -> Result:
    """Fill the [MASK] holes of canvases, wherever they are; all other tokens stay.

    Blocks count from the canvas's start. Of `config`, `gen_length` is only used with `steps`, to
    give the steps per block. Other arguments, result and errors as `generate`.
    """
    return _decode(
        model, canvases, config, backend, seed, trace, on_step, loop, refresh_on, infill=True
    )


def latency_table(
    model: Model,
    rows: Sequence[int],
    *,
    canvas: int = 256,
    backend: str | Backend | StreamedProgram = "xla",
    repeats: int = 10,
) -> LatencyTable:
    """What a window's growth costs on this machine, for `SamplerConfig.latency_table`: median
    milliseconds of a step by its rows, each of which is scored.

    Args:
      rows: buckets, ascending, at most `canvas`.
      canvas: positions; the rows are the last ones, and read the others from the cache.
      backend: as in `generate`.
      repeats: times that each bucket runs, after a first time, which compiles.

    Raises:
      ValueError: one message that names the bad value and what is allowed, before any computation.
    """
    buckets, longest = ascending_counts("rows", rows), model.config.max_length
    require(
        canvas <= longest, f"canvas is {canvas}; allowed: up to {longest} (the model's max_length)"
    )
    require(buckets[-1] <= canvas, f"rows is {list(buckets)}; allowed: up to canvas ({canvas})")
    require(repeats > 0, f"repeats is {repeats}; allowed: 1 or more")
    with ExitStack() as threads:
        return time_steps(
            backend_denoiser(model, backend, ScoreRules(spread=False), threads),
            model.params,
            buckets,
            canvas=canvas,
            vocab_size=model.config.vocab_size,
            repeats=repeats,
        )


def _decode(
    model: Model,
    prompts: Prompts,
    config: SamplerConfig | None,
    backend: str | Backend | StreamedProgram,
    seed: int | Sequence[int],
    trace: bool,
    on_step: OnStep | None,
    loop: Loop | None,
    refresh_on: Model | None,
    *,
    infill: bool,
) -> Result:
    config = with_ids(config or SamplerConfig(), model.config)
    with ExitStack() as threads:
        denoiser = backend_denoiser(model, backend, score_rules(config), threads)
        refreshing = _refreshing(config, model, denoiser, refresh_on, threads)
        worker = threads.enter_context(Worker())  # the first to end: its job may run the others
        needs_host = on_step or not denoiser.traceable or config.has_worker
        return decode(
            denoiser,
            model.params,
            model.config,
            prompts,
            config,
            seed=seed,
            loop=loop or ("host" if needs_host else "compiled"),
            trace=trace,
            on_step=on_step,
            infill=infill,
            refresher=Refresher(worker, *refreshing),
        )


def _refreshing(
    config: SamplerConfig,
    model: Model,
    denoiser: Denoiser,
    refresh_on: Model | None,
    threads: ExitStack,
) -> tuple[Denoiser, Params]:
    """The functions that a worker runs, and their parameters."""
    if refresh_on is None:
        return denoiser, model.params
    require(
        config.has_worker, "refresh_on is a model without a worker; allowed: with refresh='worker'"
    )
    require(
        refresh_on.config == model.config,
        "refresh_on is a model of another configuration; allowed: the same one",
    )
    backend = "tiles" if has_tiles(refresh_on.params) else "xla"
    return backend_denoiser(refresh_on, backend, score_rules(config), threads), refresh_on.params


def has_tiles(params: Params) -> bool:
    """Whether the matrices are tiles."""
    return isinstance(params, ModelParams) and any(
        isinstance(leaf, Tiles)
        for leaf in jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, Tiles))
    )


def score_rules(config: SamplerConfig) -> ScoreRules:
    """What a sampler's settings mean to the head; `config` names its special ids."""
    forbidden = [] if config.predict_mask else [config.mask_id]
    forbidden += [config.eos_id] if config.logits_eos_inf else []
    discounted = [config.eos_id, config.eot_id] if config.confidence_eos_eot_inf else []
    return ScoreRules(
        forbidden=tuple(i for i in forbidden if i is not None),
        discounted=tuple(i for i in discounted if i is not None),
        temperature=config.temperature,
        confidence_dtype=config.confidence_dtype,
        noise_dtype=config.noise_dtype,
        spread=config.remasking in ("entropy", "margin") or config.accept == "entropy_bound",
    )


_BACKENDS: dict[str, Callable[[ModelParams], Backend]] = {
    "litert": lambda params: LiteRT(quant_of(params)),
    "qnn": lambda params: EmulatedNpu(),
}
"""Backends that run compiled steps outside JAX, by name."""


def backend_denoiser(
    model: Model, backend: str | Backend | StreamedProgram, rules: ScoreRules, threads: ExitStack
) -> Denoiser:
    """The model's functions on a backend; closing `threads` ends those that they start.

    Raises ValueError for an unknown backend, ImportError where its packages are not installed.
    """
    if isinstance(backend, StreamedProgram):
        return Session(backend, rules).denoiser()
    if isinstance(backend, str) or model.artifact:
        allowed = ("litert",) if model.artifact else ("xla", "tiles", *_BACKENDS)
        require(
            backend in allowed, f"backend is {backend!r}; allowed: {', '.join(map(repr, allowed))}"
        )
    tiles = has_tiles(model.params)
    require(
        tiles == (backend == "tiles"),
        f"backend is {backend!r}, and the model {'has' if tiles else 'has no'} tiles; "
        "allowed: 'tiles', with a model that `tiled` has made",
    )
    if backend == "tiles":
        multiply = threads.enter_context(TileMultiplier(available_cores()))
        return tiled_denoiser(model.config, rules, multiply)
    if backend == "xla":
        return denoiser_for(model.config, rules)
    if model.artifact:
        manifest = (model.artifact / MANIFEST).read_bytes()
        return Session(_exported(model.artifact, manifest), rules).denoiser()
    return Session(_program(backend, model.config, _Same(model.params)), rules).denoiser()


@lru_cache(maxsize=1)
def _exported(folder: Path, manifest: bytes) -> Exported:
    """Kept as long as the manifest, with its hashes of all files, is the same."""
    return Exported(folder)


class _Same(NamedTuple):
    """Parameters as a key: equal where they are the very same object."""

    params: ModelParams

    def __hash__(self) -> int:
        return id(self.params)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.params is other.params


@lru_cache(maxsize=4)
def _program(backend: str | Backend, config: ModelConfig, same: _Same) -> CompiledOnDemand:
    if isinstance(backend, str):
        backend = _BACKENDS[backend](same.params)
    if isinstance(backend, EmulatedNpu):  # a phone scores on its CPU
        head = LiteRT(quant_of(same.params))
        return CompiledOnDemand(config, same.params, backend, head, NPU_ROW_BUCKETS)
    return CompiledOnDemand(config, same.params, backend)


def staging_of(plan: Plan) -> Staging:
    """What a plan says to the runtime. The plan's operators are the layers; those after them, which
    stand for the host's work between two forwards, have no weights."""
    regions = [plan.weights[layer] for layer in plan.staged]
    everything = [*regions, *(plan.slots if plan.transfers else ())]
    base = min((region.start for region in everything), default=0)
    transfers = []
    for operators, slot in plan.transfers:
        start = base if slot is None else plan.slots[slot].start
        offsets = tuple(plan.weights[layer].start - start for layer in operators)
        transfers.append(StagedLayers(operators, offsets, slot is not None))
    return Staging(
        tuple(transfers),
        max((region.end for region in everything), default=0) - base,
        tuple(slot.start - base for slot in plan.slots),
        plan.prefetch,
    )


@lru_cache(maxsize=64)
def denoiser_for(config: ModelConfig, rules: ScoreRules) -> Denoiser:
    """The model's functions, as the sampler takes them. Kept, so that each is compiled once."""

    def forward_rows(params, rows, cache):
        return model_forward.forward_rows(params, config, rows, cache)

    def empty_cache(params, batch, length):
        return model_forward.cache_for(params, config, batch, length)

    return Denoiser(forward_rows, partial(score_rows, rules=rules), empty_cache)
