"""From prompts to tokens: a checked run, its loops, and its result.

`checked_run` checks everything before anything is computed and returns a `DecodingRun`: prompts
with the model and settings that decode them. `decode` runs it on all prompts as one batch;
`continuous` runs the same object on a few prompts at a time.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from llada_jax.config import Loop, ModelConfig, require, require_choice
from llada_jax.constraint.batch import CompiledConstraints, grammar_of, locate_texts
from llada_jax.constraint.patterns import Constraint
from llada_jax.constraint.reach import TextSpans
from llada_jax.on_mesh import MeshDenoiser
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.decide import faults_of, require_scores
from llada_jax.sampler.host_runner import Refresher
from llada_jax.sampler.loops import compiled_loop, host_loop, program_of, recorded_steps
from llada_jax.sampler.observe import require_finite_rule
from llada_jax.sampler.prompts import (
    Prompts,
    Seeds,
    check_prompts,
    check_seeds,
    end_ids,
    plain_seed,
    sequence_keys,
    with_ids,
)
from llada_jax.sampler.record import OnStep
from llada_jax.sampler.runner import Decoding
from llada_jax.sampler.spec import KeptScores, StepSpec, layout_of, new_state
from llada_jax.sampler.state import VISIBLE, DecodeState, TopTokens
from llada_jax.sampler.steps import Steps, in_sequence
from llada_jax.sampler.stops import TextEnds, ToText, before_end, before_stop, stop_at_strings
from llada_jax.sampler.text_runner import TextRunner
from llada_jax.sampler.trace import Trace, trace_of
from llada_jax.sampler.windows.window import CanvasLayout
from llada_jax.types import Denoiser, KVCache, Params
from llada_jax.view.page import Page

KeptTrace = bool | Literal["scores", "margins"]
"""What a run records: nothing, its trace, a trace with every score of its forwards, or also the
margin of each."""


@dataclass(frozen=True)
class Result:
    """The tokens of a run, and how they came about."""

    tokens: Int[np.ndarray, "B L"]
    """Prompt and generation; rows with shorter prompts are padded on the left."""
    prompt_lengths: Int[np.ndarray, " B"]
    nfe: Int[np.ndarray, " B"]
    """Forwards that each row took part in, up to the one that finished it."""
    tpf: float
    """Tokens committed per forward, over the batch's rows."""
    seconds: float
    """Wall time of the decoding, including compilation if it was needed."""
    generated: list[Int[np.ndarray, " G"]]
    """Each row's generation alone; for infilling, its whole canvas."""
    recorded: Trace | None
    """What every forward did, or None if it was not requested."""
    ends: tuple[int, ...] = ()
    """Ids that end a text or a turn; empty for infilling."""
    to_text: Callable[[Int[np.ndarray, " G"]], str] | None = field(default=None, repr=False)
    """The tokenizer's decoding of ids, or None if the model has no tokenizer."""
    stop: tuple[str, ...] = ()
    """Stop strings of the sampler."""
    top_logprobs: list[TopTokens] | None = None
    """The most probable ids of each row's generation, [G, k], in the forward that committed each
    token; None if they were not requested. Log-probabilities are of the distribution that the
    confidences are of: without [MASK] and sampling noise, at temperature 1. A constraint does not
    change them. A position that no forward has scored has ids -1, as EOS after the end."""

    @property
    def trace(self) -> Trace:
        """The trace of the run. Raises ValueError if it was not recorded."""
        if self.recorded is None:
            raise ValueError("the run kept no trace; allowed: the trace of a run with trace=True")
        return self.recorded

    def show(self, path: str | os.PathLike[str] | None = None, **options: Any) -> Page:
        """Replays the run on a web page: opens it in a browser, or writes it to `path`; a notebook
        shows it by itself. Options as in `Trace.page`: `row`, `beside`, `timed`.

        Raises ValueError if the run recorded no trace.
        """
        return self.trace.page(**options).show(path)

    def _repr_html_(self) -> str | None:
        """Returns the page of the first row, for notebooks; None without a trace."""
        return self.recorded and self.recorded._repr_html_()

    @property
    def answers(self) -> list[Int[np.ndarray, " G"]]:
        """Each row's generation before the first token that ends a text or a turn. A stop string
        may be among these tokens; `text` ends before it."""
        return [before_end(tokens, self.ends) for tokens in self.generated]

    @property
    def text(self) -> list[str]:
        """The answers as text, each before its first stop string. Raises ValueError if the model
        has no tokenizer."""
        if self.to_text is None:
            raise ValueError("the model has no tokenizer; allowed: text of a model that has one")
        return [before_stop(self.to_text(tokens), self.stop) for tokens in self.answers]


def decode(
    denoiser: Denoiser,
    params: Params,
    model: ModelConfig,
    prompts: Prompts,
    config: SamplerConfig,
    *,
    trace: KeptTrace = False,
    **options: Any,
) -> Result:
    """Decodes a batch of prompts. Arguments and ValueError as `checked_run`.

    Args:
      trace: Whether to record what every forward did; `"scores"` also records its predictions, and
        `"margins"` their margins as well, for `Trace.divergence`.

    Raises:
      FloatingPointError: The model returned NaN or infinity. Such a sequence stops at once, and the
        error names each one, its forward and its position after the others are done.
    """
    kinds = (False, True, "scores", "margins")
    require(trace in kinds, f"trace is {trace!r}; allowed: {', '.join(map(repr, kinds))}")
    options["keeps_scores"] = trace if isinstance(trace, str) else False
    run = checked_run(denoiser, params, model, prompts, config, **options)
    everything = range(len(run.prompts))
    with run.precision():
        began = time.perf_counter()
        state, steps = run.forwards(run.state(everything), len(everything), run.max_steps)
        require_scores(faults_of(state))
        require_finite_rule(run.config.rule, state)
        done = FinishedRows.of(state)
        seconds = time.perf_counter() - began
    return result_of(run, everything, done, steps, seconds, trace=bool(trace))


class FinishedRows(NamedTuple):
    """What is left of sequences that are done."""

    tokens: Int[np.ndarray, "B L"]
    status: Int[np.ndarray, "B L"]
    nfe: Int[np.ndarray, " B"]
    end: Int[np.ndarray, " B"]
    top: TopTokens | None

    @classmethod
    def of(cls, state: DecodeState) -> "FinishedRows":
        """Returns these arrays of a state."""
        return jax.tree.map(np.asarray, cls(*(getattr(state, name) for name in cls._fields)))


@dataclass(frozen=True, eq=False)
class DecodingRun:
    """Checked prompts with the model and settings that decode them, in batches of any size."""

    spec: StepSpec
    denoiser: Denoiser
    params: Params
    prompts: list[np.ndarray]
    seeds: list[tuple[Any, int]]  # seed or key of each prompt, and the index folded into it
    loop: Loop
    infill: bool = False
    on_step: OnStep | None = None
    refresher: Refresher | None = None
    placed: TextSpans | None = None  # position of each prompt's text, under a constraint
    constraints: tuple[Constraint, ...] = ()  # one for all prompts, or one for each
    ends: TextEnds | None = None  # ends of the answers' texts; None without a tokenizer
    prompt_length: int = 0  # canvases and programs are as for a prompt of at least this length

    @property
    def config(self) -> SamplerConfig:
        return self.spec.config

    @cached_property
    def lengths(self) -> Int[np.ndarray, " B"]:
        """The number of tokens of each prompt."""
        return np.array([len(prompt) for prompt in self.prompts], np.int32)

    @cached_property
    def layout(self) -> CanvasLayout:
        """The layout of every canvas: it holds the longest prompt."""
        return self._layout_of(self.lengths)

    def _layout_of(self, lengths: Int[np.ndarray, " n"]) -> CanvasLayout:
        if self.prompt_length:
            lengths = np.append(lengths, np.int32(self.prompt_length))
        return layout_of(lengths, self.config, self.spec.model, infill=self.infill)

    def buckets(self, chosen: Sequence[int]) -> tuple[int, ...]:
        """Returns the row counts of forwards, ascending, of canvases for these prompts alone."""
        layout = self._layout_of(self.lengths[chosen])
        # As with infilling, spans grow over blocks without masks.
        if self.spec.grammar is not None:
            layout = layout._replace(prompt_length=0)
        return self.spec.buckets(layout)

    @property
    def max_steps(self) -> int:
        """The largest number of forwards that a canvas may take."""
        return self.spec.max_steps(self.layout.n_blocks)

    def precision(self) -> AbstractContextManager[Any]:
        """Returns the context in which states are made and steps run: 64 bits if settings ask."""
        return jax.enable_x64(True) if self.config.parity.wide else nullcontext()

    def state(self, chosen: Sequence[int], cache: KVCache | None = None) -> DecodeState:
        """Returns the state of these prompts before the first forward, by their indices.

        A cache of an earlier state is used again if there is one.
        """
        spec, length = self.spec, self.layout.length
        if cache is None:
            guided = 2 if self.config.cfg_scale else 1
            cached = length if spec.window.caches else 0
            cache = self.denoiser.empty_cache(self.params, guided * len(chosen), cached)
        prompts = [self.prompts[index] for index in chosen]
        keys = sequence_keys([self.seeds[index] for index in chosen])
        state = new_state(spec, prompts, keys, cache, length, infill=self.infill)
        if self.config.drafter is not None:
            sizes = spec.sizes(len(chosen), length)
            state = state._replace(draft=self.config.drafter.init(self.params, sizes))
        if self.placed is not None:
            text = TextSpans(*(jnp.asarray(array[chosen]) for array in self.placed))
            runner = TextRunner(self.decoding, state.tokens.shape)
            state = runner.start(state._replace(constraint=text))
        if isinstance(self.denoiser, MeshDenoiser):
            return self.denoiser.replicated(state)
        return state

    def forwards(self, state: DecodeState, until: int, most: int) -> tuple[DecodeState, Steps]:
        """Runs forwards until `until` sequences are done, at most `most`; consumes the state."""
        parts: list[Steps] = []
        done, at_once = 0, recorded_steps(self.decoding, state.tokens.shape)
        while True:
            count = min(most - done, at_once)
            if self.loop == "compiled":
                state, steps = compiled_loop(self.decoding, state, until, count)
            else:
                state, steps = host_loop(
                    self.decoding, state, until, count, self.on_step, self.refresher, done
                )
            parts.append(steps)
            done += len(steps.rows)
            if self.config.stop:  # paused between blocks
                assert self.ends is not None and self.config.eos_id is not None
                state = stop_at_strings(state, self.ends, self.config.eos_id)
            if done >= most or np.asarray(state.done).sum() >= until:
                return state, in_sequence(parts)

    def lowered(self) -> jax.stages.Lowered:
        """Returns the compiled loop of all prompts at once, before it is compiled. Parameters may
        be shapes and dtypes."""
        decoding = self.decoding  # made before its arrays could become tracers
        state = jax.eval_shape(partial(self.state, range(len(self.prompts))))
        return program_of(decoding, state).lower(decoding, state, 1, decoding.max_steps)

    @cached_property
    def decoding(self) -> Decoding:
        """The input of the loops. Numbers are arrays, so that a sweep over them compiles once."""
        dtype = self.config.parity.confidence_dtype
        config = replace(self.config, stop=())  # for the host alone: no program depends on it
        numbers = jax.tree.map(lambda number: jnp.asarray(number, dtype), config)
        allowed = jax.tree.map(jnp.asarray, self.spec.grammar)
        spec = replace(self.spec, config=numbers, grammar=allowed)
        buckets = self.buckets(range(len(self.prompts)))
        pauses = bool(self.config.stop)
        return Decoding(spec, self.params, self.denoiser, buckets, self.max_steps, pauses)


def checked_run(
    denoiser: Denoiser,
    params: Params,
    model: ModelConfig,
    prompts: Prompts,
    config: SamplerConfig,
    *,
    seed: Seeds = 0,
    loop: Loop = "compiled",
    on_step: OnStep | None = None,
    infill: bool = False,
    refresher: Refresher | None = None,
    texts: CompiledConstraints | None = None,
    keeps_scores: KeptScores = False,
    top_logprobs: int = 0,
    to_text: ToText | None = None,
    prompt_length: int = 0,
) -> DecodingRun:
    """Checks everything before anything is computed.

    Args:
      denoiser: The model's functions, with the rules of `config` in its scores.
      seed: An int or a JAX key for the batch, or one for each sequence: a sequence with its own
        seed decodes as it would alone, at any temperature.
      infill: The masks in the prompts are the holes; nothing is appended.
      refresher: For the `host` loop, if the settings require a worker. Its results may differ from
        the denoiser's in rounding, and then the tokens depend on it.
      top_logprobs: Number of most probable tokens to keep of each position.
      to_text: The tokenizer's decoding of ids, for stop strings.
      prompt_length: Canvases and programs are as for a prompt of at least this length.

    Raises ValueError for a prompt that is empty, too long, has ids outside the vocabulary or,
    unless `infill`, contains [MASK]; for ids that neither the model nor `config` names.
    """
    require_choice("loop", loop, Loop)
    require(on_step is None or loop == "host", "on_step needs loop='host'; loop is 'compiled'")
    require(
        denoiser.traceable or loop == "host",
        "loop is 'compiled'; allowed: 'host' (the backend runs outside JAX)",
    )
    config = with_ids(config, model)
    measures = denoiser.measure_rows is not None
    spec = StepSpec(model, config, measures, keeps_scores, top_logprobs)
    spec.check()
    if config.has_worker:
        _check_worker(denoiser, params, loop, refresher)
    rows = check_prompts(prompts, config, model, infill=infill)
    require(prompt_length >= 0, f"prompt_length is {prompt_length}; allowed: 0 or more")
    if prompt_length:
        model.require_room("prompt_length", prompt_length, 0 if infill else config.gen_length)
    seeds = check_seeds(seed, len(rows))
    require(
        not (spec.rule.verifies and (infill or texts is not None)),
        f"accept is {spec.rule.name!r} with holes or a constraint; allowed: another rule",
    )
    require(
        not config.stop or (to_text is not None and not infill),
        f"stop is {config.stop!r}, and {'canvases are infilled' if infill else 'no tokenizer'}; "
        "allowed: ()",
    )
    placed, constraints, text_ends = None, (), end_ids(config, model)
    if texts is not None:
        for name in ("logits_eos_inf", "confidence_eos_eot_inf"):
            require(
                not getattr(config, name),
                f"{name} is True with a constraint, whose texts end by EOS; allowed: False",
            )
        require(spec.measures, "the backend measures no classes, which a constraint needs; "
                "allowed: another one, as xla")  # fmt: skip
        placed = locate_texts(texts, rows, spec.mask_id, config.gen_length, infill=infill)
        spec = replace(spec, grammar=grammar_of(texts, text_ends))
        constraints = texts.constraints
    ends = to_text and TextEnds(() if infill else text_ends, config.stop, to_text)
    return DecodingRun(
        spec, denoiser, params, rows, seeds, loop, infill, on_step, refresher, placed, constraints,
        ends, prompt_length,
    )  # fmt: skip


def _check_worker(
    denoiser: Denoiser, params: Params, loop: Loop, refresher: Refresher | None
) -> None:
    """Raises ValueError if no worker can refresh tokens in this run."""
    require(loop == "host", f"refresh is 'worker' and loop is {loop!r}; allowed: 'host'")
    require(refresher is not None, "refresh is 'worker' and no worker was given; allowed: one")
    shared = refresher is not None and refresher.denoiser is denoiser
    require(
        denoiser.traceable or not shared,
        "refresh is 'worker' and the backend runs outside JAX; allowed: 'rows', 'none', or a "
        "model of its own for the worker",
    )
    require(
        denoiser.empty_cache(params, 1, 0).keys[0].shape[1] > 0,
        "refresh is 'worker' and the backend keeps keys and values to itself, where no worker "
        "can read them; allowed: 'rows', 'none'",
    )


def result_of(
    run: DecodingRun,
    chosen: Sequence[int],
    done: FinishedRows,
    steps: Steps,
    seconds: float,
    *,
    trace: bool,
) -> Result:
    """Returns the result of some prompts of a run, by their indices, which are done."""
    config, model, infill = run.config, run.spec.model, run.infill
    lengths = run.lengths[chosen]
    tokens, status = (array[:, : done.end.max()] for array in (done.tokens, done.status))
    end = np.minimum(done.end, lengths if infill else lengths + config.gen_length)
    begin = np.zeros_like(lengths) if infill else lengths
    pad_id = next((i for i in (model.pad_id, config.eos_id) if i is not None), 0)
    padded = np.full((len(end), end.max()), pad_id, tokens.dtype)
    for row, stop in enumerate(end):
        padded[row, end.max() - stop :] = tokens[row, :stop]

    def cut(array: Any) -> list[Any]:
        return [array[row, begin[row] : end[row]] for row in range(len(chosen))]

    shared = len(run.constraints) < 2
    settings = {
        "sampler": config.as_dict(),
        "rule_sha256": config.rule.source_hash,
        "window_sha256": config.window.source_hash,
        "model": {**asdict(model), "stop_ids": list(model.stop_ids)},  # as JSON has it
        "seeds": [[plain_seed(seed), row] for seed, row in (run.seeds[i] for i in chosen)],
        "loop": run.loop,
        "infill": infill,
        "seconds": seconds,
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "constraints": [
            asdict(text)
            for text in (run.constraints if shared else [run.constraints[i] for i in chosen])
        ],
    }
    return Result(
        tokens=padded,
        prompt_lengths=lengths,
        nfe=done.nfe,
        tpf=steps.n_committed / max(1, int(done.nfe.sum())),
        seconds=seconds,
        generated=cut(tokens),
        recorded=trace_of(steps, tokens, status >= VISIBLE, lengths, settings) if trace else None,
        ends=() if infill else end_ids(config, model),
        stop=config.stop,
        top_logprobs=done.top and [*map(TopTokens, *map(cut, done.top))],
    )
