"""Decoding with a model: prompts as one batch, as a stream, and canvases with holes.

The sampler knows no model, tokenizer or backend: the functions here turn a `Model` and names into
what `sampler.generate` takes, and give its results the model's tokenizer.
"""

import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from llada_jax.api.denoisers import XlaDenoiser, backend_denoiser, score_rules
from llada_jax.api.model import Model, has_tiles
from llada_jax.backend.protocol import Backend
from llada_jax.config import Loop, require
from llada_jax.constraint.batch import CompiledConstraints, Constraints
from llada_jax.on_mesh import MeshDenoiser
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.continuous import Slots
from llada_jax.sampler.drafters import Own
from llada_jax.sampler.generate import DecodingRun, KeptTrace, Result, checked_run, decode
from llada_jax.sampler.host_runner import Refresher
from llada_jax.sampler.prompts import Prompts, Seeds, end_ids, with_ids
from llada_jax.sampler.record import OnStep
from llada_jax.sampler.runner import Decoding
from llada_jax.sampler.state import DecodeState
from llada_jax.types import Denoiser, Params


def generate(
    model: Model,
    prompts: Prompts,
    config: SamplerConfig | None = None,
    *,
    backend: str | Backend = "xla",
    seed: Seeds = 0,
    trace: KeptTrace = False,
    on_step: OnStep | None = None,
    loop: Loop | None = None,
    refresh_on: Model | None = None,
    holes: bool = False,
    constraint: Constraints | None = None,
    top_logprobs: int = 0,
    prompt_length: int = 0,
) -> Result:
    """Decodes prompts: [B, P] ids, or a list of lists of different lengths.

    Args:
      config: how to decode; default: LLaDA's schedule on the whole canvas.
      backend: runs the forward. `xla`; `litert` (the extra `npu`), in the number type of the
        parameters: float32, int8 or int4; `native` (the extra `revision`), dense int8 models with
        products compiled for this CPU; `qnn` (the extra `qnn`), an emulated SM8750 in float16; or
        a `Backend`, for example an `EmulatedNpu` of another SoC.
      seed: an int or a JAX key for the batch, or one for each sequence.
      trace: record what every forward did in `Result.trace`; `"scores"` also records its
        predictions, and `"margins"` the margin of each as well.
      on_step: called after each forward with a `StepView`; runs the host loop.
      loop: `compiled` or `host`; default: compiled, unless `on_step` or a constraint is given, for
        which the host loop compiles less.
      refresh_on: the model that the worker of `refresh="worker"` runs, for example `tiled(model)`
        (the extra `revision`); default: the same model on the same backend.
      holes: the prompts are canvases with holes to fill, as in `infill`.
      constraint: the form of the texts: `regex`, `json_schema` or `choice`, or a list of them, one
        for each prompt. Each generation is complete within its `gen_length`.
      top_logprobs: the number of most probable tokens to report of each position, in
        `Result.top_logprobs`; backends outside JAX report 1 at temperature 0, else 0.
      prompt_length: prepare for prompts of at least this length, so that calls with shorter ones
        share a compiled program; it changes no token.

    Raises:
      ValueError: one message that names the bad value and the allowed ones, before any computation.
      FloatingPointError: a score of the model is NaN or infinite: one message that names each
        such canvas, the forward and the position. The results of the others are lost.
    """
    with ExitStack() as threads:
        settings = _settings(model, config, backend, loop, refresh_on, threads, constraint, on_step)
        settings |= {"infill": holes, "top_logprobs": top_logprobs, "prompt_length": prompt_length}
        result = decode(prompts=prompts, seed=seed, trace=trace, on_step=on_step, **settings)
    if result.recorded is not None and model.tokenizer is not None:
        ids = np.union1d(result.recorded.tokens, result.recorded.event_token)
        result.recorded.settings["pieces"] = model.tokenizer.pieces(ids.tolist())
    return _of_model(result, model)


def start(
    model: Model,
    prompts: Prompts,
    config: SamplerConfig | None = None,
    *,
    seed: Seeds = 0,
    constraint: Constraints | None = None,
    top_logprobs: int = 0,
    prompt_length: int = 0,
) -> tuple[Decoding, DecodeState]:
    """Returns the arguments of `step`: a model with its sampler, and the state before any forward::

        decoding, state = lj.start(model, prompts, config)
        while not state.done.all():
            state, record = jax.jit(lj.step)(decoding, state)

    Both are pytrees. `state.tokens` is [B, L], with prompts at position 0 and masks after them; the
    numbers of the rule and the parameters are leaves of `decoding`. Arguments as in `generate`; the
    seed may be traced, so that states of many seeds can be made by `jax.vmap`. The state has the
    `top_logprobs` in `state.top`.

    Raises:
      ValueError: As `generate`; and for a model on a mesh or of an export, and for float64.
    """
    options = {"seed": seed, "constraint": constraint, "top_logprobs": top_logprobs}
    run = stepping_run(model, prompts, config, prompt_length=prompt_length, **options)
    return run.decoding, run.state(range(len(run.prompts)))


def stepping_run(
    model: Model,
    prompts: Prompts,
    config: SamplerConfig | None,
    *,
    constraint: Constraints | None,
    **options: Any,
) -> DecodingRun:
    """Returns the checked run of which `start` returns the parts; `options` of `checked_run`."""
    config = with_ids(config or SamplerConfig(), model.config)
    denoiser, params = _functions(model, config, "xla")
    on_mesh = isinstance(denoiser, MeshDenoiser)
    require(not on_mesh, "the model is on a mesh; allowed: a model on one device")
    require(
        not config.parity.wide,
        "confidence_dtype or noise_dtype is 'float64'; allowed: 'float32' in a single step",
    )
    require(not config.stop, f"stop is {config.stop!r}; allowed in single steps, as ids: ()")
    texts = _texts(model, config, constraint)
    return checked_run(denoiser, params, model.config, prompts, config, texts=texts, **options)


class ResultStream(Iterator[Result]):
    """The results of `generate_stream`, in the order of the prompts."""

    def __init__(self, results: Iterator[Result], slots: Slots) -> None:
        self._results, self._slots = results, slots

    def __next__(self) -> Result:
        """Returns the next result as soon as all of its prompts are done."""
        return next(self._results)

    @property
    def useful(self) -> float:
        """The share of the forwards of all batch slots so far that advanced a prompt."""
        return self._slots.useful / max(1, self._slots.offered)


def generate_stream(
    model: Model,
    prompts: Prompts,
    config: SamplerConfig | None = None,
    *,
    places: int = 8,
    together: int | Sequence[int] = 1,
    backend: str | Backend = "xla",
    seed: Seeds = 0,
    trace: bool = False,
    loop: Loop | None = None,
    refresh_on: Model | None = None,
    constraint: Constraints | None = None,
    top_logprobs: int = 0,
) -> ResultStream:
    """Decodes many prompts, a few at a time: one that is done gives its batch slot to the next.

    A result is the same as from `generate` on these prompts, including its trace, except for
    seconds: the result has its share of the time, and single forwards have NaN.

    Args:
      places: the number of batch slots: prompts that are decoded at a time. It changes no token.
      together: the number of consecutive prompts of each result, or a list of numbers that the
        results take by turns.
      The others: as in `generate`.

    Raises:
      ValueError: as `generate`, when it is called.
      FloatingPointError: as `generate`, in place of the first bad canvas's result.
    """
    for name, count in (("places", places), ("together", np.min(together))):
        require(count > 0, f"{name} is {count}; allowed: 1 or more")
    opened = ExitStack()
    with ExitStack() as threads:
        settings = _settings(model, config, backend, loop, refresh_on, threads, constraint)
        settings |= {"seed": seed, "top_logprobs": top_logprobs}
        slots = Slots(checked_run(prompts=prompts, **settings), places)
        opened = threads.pop_all()

    def results() -> Iterator[Result]:
        with opened:
            for result in slots.results(together, trace=trace):
                yield _of_model(result, model)

    return ResultStream(results(), slots)


def _settings(
    model: Model,
    config: SamplerConfig | None,
    backend: str | Backend,
    loop: Loop | None,
    refresh_on: Model | None,
    threads: ExitStack,
    constraint: Constraints | None,
    on_step: OnStep | None = None,
) -> dict[str, Any]:
    """Returns the arguments of `checked_run`; closing `threads` ends the threads that it starts."""
    config = with_ids(config or SamplerConfig(), model.config)
    denoiser, params = _functions(model, config, backend)
    refreshing = denoiser, model.params
    if refresh_on is not None:
        refreshing = _refreshing(refresh_on, config, model, threads)
    worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="revision")
    threads.enter_context(worker)  # the last to start, so the first to end: its job runs the others
    texts = _texts(model, config, constraint)
    needs_host = on_step or not denoiser.traceable or config.has_worker or texts is not None
    return {
        "denoiser": denoiser,
        "params": params,
        "model": model.config,
        "config": config,
        "loop": loop or ("host" if needs_host else "compiled"),
        "refresher": Refresher(worker, *refreshing),
        "texts": texts,
        "to_text": model.tokenizer and model.tokenizer.decode,
    }


def _functions(
    model: Model, config: SamplerConfig, backend: str | Backend
) -> tuple[Denoiser, Params]:
    """Returns the model's functions on a backend, and the parameters, with the model's drafter if
    the sampler drafts with it. Raises ValueError if the model has none."""
    rules, drafter = score_rules(config), model.drafter
    if config.drafter is not None and model.stored_as not in ("float32", "custom"):
        warnings.warn(
            f"drafts are verified in {model.stored_as}, where a forward of several rows can round "
            "differently from one row: near ties, answers can differ from plain decoding",
            stacklevel=2,
        )
    if not isinstance(config.drafter, Own):
        return backend_denoiser(model, backend, rules), model.params
    require(
        drafter is not None,
        "drafter is 'own' and the model has none; allowed: load(..., drafter=...), or 'lookup'",
    )
    denoiser = backend_denoiser(model, backend, rules, drafter.taps)
    require(
        bool(drafter.taps) or isinstance(denoiser, XlaDenoiser),
        "drafter is 'own', and it runs inside the model's forward; allowed: a model in memory on "
        "one device, with backend 'xla', or drafter 'lookup'",
    )
    return denoiser, model.params._replace(drafter=drafter.cut_to(config.block_length))


def _texts(
    model: Model, config: SamplerConfig, constraint: Constraints | None
) -> CompiledConstraints | None:
    """Returns the constraints with their automata, or None."""
    if constraint is None:
        return None
    from llada_jax.constraint.compiled import compile_constraints  # loads the tokenizers library

    ends = end_ids(config, model.config)
    return compile_constraints(constraint, model.tokenizer, ends, model.config.vocab_size)


def _of_model(result: Result, model: Model) -> Result:
    """Returns the result with the model's name and tokenizer."""
    if result.recorded is not None:
        result.recorded.settings["fingerprint"] = model.fingerprint
    return result if model.tokenizer is None else replace(result, to_text=model.tokenizer.decode)


def infill(
    model: Model, canvases: Prompts, config: SamplerConfig | None = None, **options: Any
) -> Result:
    """Fills the [MASK] holes of canvases, wherever they are; all other tokens stay.

    Blocks count from the canvas's start. `gen_length` only matters for the steps per block, which
    are `steps` divided by its number of blocks. Options, result and errors as `generate`.
    """
    return generate(model, canvases, config, holes=True, **options)


def _refreshing(
    refresh_on: Model, config: SamplerConfig, model: Model, threads: ExitStack
) -> tuple[Denoiser, Params]:
    """Returns the functions of the model that a worker runs, and its parameters."""
    require(
        config.has_worker, "refresh_on is a model without a worker; allowed: with refresh='worker'"
    )
    require(
        refresh_on.config == model.config,
        "refresh_on is a model of another configuration; allowed: the same one",
    )
    rules, params = score_rules(config), refresh_on.params
    if not has_tiles(params):
        return backend_denoiser(refresh_on, "xla", rules), params
    from llada_jax.backend.resources import available_cores
    from llada_jax.revision.tile_multiplier import TileMultiplier
    from llada_jax.revision.tiled_forward import tiled_denoiser

    multiply = threads.enter_context(TileMultiplier(available_cores()))
    return tiled_denoiser(refresh_on.config, rules, multiply), params
