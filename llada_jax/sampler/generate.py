"""`decode`: prompts in, tokens out. Checks everything before anything is computed."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from llada_jax.config import ModelConfig, require
from llada_jax.sampler.advance import faults_of, require_scores
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.decoding_run import DecodingRun, checked_run
from llada_jax.sampler.loops import Steps
from llada_jax.sampler.observe import require_finite_rule
from llada_jax.sampler.prompts import Prompts, end_ids, plain_seed
from llada_jax.sampler.record import tokens_committed
from llada_jax.sampler.state import VISIBLE
from llada_jax.sampler.stops import before_end, before_stop
from llada_jax.sampler.trace import Trace, trace_of
from llada_jax.types import Denoiser, Params
from llada_jax.view.page import Page

Kept = bool | Literal["scores", "margins"]
"""What a run keeps: nothing, its trace, or a trace with every score of its forwards; and how far
each was from the second one."""


@dataclass(frozen=True)
class Result:
    """What a run gives."""

    tokens: Int[np.ndarray, "B L"]
    """Prompt and generation; rows with shorter prompts are padded on the left."""
    prompt_lengths: Int[np.ndarray, " B"]
    nfe: Int[np.ndarray, " B"]
    """Forwards that were useful to each row: those before it was done."""
    tpf: float
    """Tokens committed per forward, over the batch's rows."""
    seconds: float
    """Wall time of the decoding, compilation included where it was needed."""
    generated: list[Int[np.ndarray, " G"]]
    """Each row's generation alone; for infilling, its whole canvas."""
    recorded: Trace | None
    """What every forward did; None unless it was asked for."""
    ends: tuple[int, ...] = ()
    """Ids that end a text or a turn; empty for infilling."""
    to_text: Callable[[Int[np.ndarray, " G"]], str] | None = field(default=None, repr=False)
    """The tokenizer's decoding of ids; None where the model has no tokenizer."""
    stop: tuple[str, ...] = ()
    """Stop strings of the sampler."""

    @property
    def trace(self) -> Trace:
        """Returns what every forward did. Raises ValueError where the run did not keep it."""
        if self.recorded is None:
            raise ValueError("the run kept no trace; allowed: the trace of a run with trace=True")
        return self.recorded

    def show(self, path: str | os.PathLike[str] | None = None, **shown: Any) -> Page:
        """Replays the run on a page of its own: opens it in a browser, or writes it to `path`; a
        notebook shows it by itself. `shown` is what `Trace.page` takes: `row`, `beside`, `timed`.

        Raises ValueError where the run kept no trace.
        """
        return self.trace.page(**shown).show(path)

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
        """The answers as text, each before its first stop string; decoded when asked for.

        Raises ValueError where the model has no tokenizer.
        """
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
    trace: Kept = False,
    **options: Any,
) -> Result:
    """Decodes a batch of prompts. Arguments and ValueError as `checked_run`.

    Args:
      trace: whether to keep what every forward did; `"scores"` keeps its predictions, too, and
        `"margins"` their margins besides, for `Trace.divergence`.

    Raises:
      FloatingPointError: the model gave NaN or infinity. Such a canvas stops at once, and the error
        names each one, its forward and its position after the others are done.
    """
    kinds = (False, True, "scores", "margins")
    require(trace in kinds, f"trace is {trace!r}; allowed: {', '.join(map(repr, kinds))}")
    options["keeps_scores"] = trace if isinstance(trace, str) else False
    run = checked_run(denoiser, params, model, prompts, config, **options)
    every = range(len(run.prompts))
    with run.precision():
        began = time.perf_counter()
        state, steps = run.forwards(run.state(every), len(every), run.max_steps)
        require_scores(faults_of(state))
        require_finite_rule(run.config.rule, state)
        ended = Ended(*(np.asarray(getattr(state, name)) for name in Ended._fields))
        seconds = time.perf_counter() - began
    return result_of(run, every, ended, steps, seconds, trace=bool(trace))


class Ended(NamedTuple):
    """Rows of a canvas that are done."""

    tokens: Int[np.ndarray, "B L"]
    status: Int[np.ndarray, "B L"]
    nfe: Int[np.ndarray, " B"]
    end: Int[np.ndarray, " B"]


def result_of(
    run: DecodingRun,
    chosen: Sequence[int],
    ended: Ended,
    steps: Steps,
    seconds: float,
    *,
    trace: bool,
) -> Result:
    """Returns the result of prompts of a run, by their places, whose canvas rows are done."""
    config, model, infill = run.config, run.spec.model, run.infill
    lengths = run.lengths[chosen]
    tokens, status = (array[:, : ended.end.max()] for array in (ended.tokens, ended.status))
    end = np.minimum(ended.end, lengths if infill else lengths + config.gen_length)
    begin = np.zeros_like(lengths) if infill else lengths
    pad_id = next((i for i in (model.pad_id, config.eos_id) if i is not None), 0)
    padded = np.full((len(end), end.max()), pad_id, tokens.dtype)
    for row, stop in enumerate(end):
        padded[row, end.max() - stop :] = tokens[row, :stop]
    given = run.constraints if len(run.constraints) < 2 else [run.constraints[i] for i in chosen]
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
        "constraints": [asdict(each) for each in given],
    }
    return Result(
        tokens=padded,
        prompt_lengths=lengths,
        nfe=ended.nfe,
        tpf=tokens_committed(steps.records.events) / max(1, int(ended.nfe.sum())),
        seconds=seconds,
        generated=[tokens[row, begin[row] : end[row]] for row in range(len(chosen))],
        recorded=trace_of(steps, tokens, status >= VISIBLE, lengths, settings) if trace else None,
        ends=() if infill else end_ids(config, model),
        stop=config.stop,
    )
