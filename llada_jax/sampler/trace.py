"""A decoding run as data: decode once, then time, plot and evaluate from the trace.

A trace has the rows of every forward and the events of every position, so that phones can be timed,
pages replayed and accuracies computed without decoding again.
"""

import os
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from llada_jax.config import require
from llada_jax.io.archive import load_archive, save_archive
from llada_jax.sampler.record import Event
from llada_jax.sampler.replay import replay
from llada_jax.sampler.steps import Events, Steps, concatenated
from llada_jax.sampler.trace_data import TRACE_FIELDS, TraceData, check_trace
from llada_jax.view.page import Page, page_of, phone_timeline

FORMAT = 4


class Divergence(NamedTuple):
    """The first decision that differs between two runs. Steps and positions count from 0."""

    step: int
    row: int
    positions: tuple[int, int]
    """Where each run changed its canvas and the other one did not, or in another way; -1 if it
    changed nothing else."""
    tokens: tuple[int, int]
    """The token that each run left there; -1 if it changed nothing else."""
    margin: float
    """How close the decision was: the margin of the prediction if both runs changed the same
    position, or else the distance between the confidences that decided."""


class Trace(TraceData):
    __doc__ = TraceData.__doc__

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one .npz file, whole or not at all."""
        arrays = {name: getattr(self, name) for name in TRACE_FIELDS}
        save_archive(path, arrays, self.settings, FORMAT)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Trace":
        """Reads a file that `save` wrote. Raises ValueError for anything else, and for arrays that
        do not fit each other."""
        arrays, settings = load_archive(
            path, TRACE_FIELDS, FORMAT, kind="trace", short="trace", check=check_trace
        )
        return cls(settings=settings, **arrays)

    def page(self, *, row: int = 0, beside: "Trace | None" = None, timed: Any = ()) -> Page:
        """Returns a page that replays one row, next to the same row of another trace if it is
        given.

        Args:
          timed: runs of this trace's row on phones, as `lj.phone("SM8750").time(trace, shape)`
            returns them, to show their timelines.
        """
        timelines = [phone_timeline(run) for run in timed]
        runs = [replay(self, row) | {"phones": timelines}]
        return page_of([*runs, *([replay(beside, row)] if beside else [])])

    def _repr_html_(self) -> str:
        """Returns the page of the first row, for notebooks."""
        return self.page()._repr_html_()

    def same_decoding(self, other: "Trace") -> bool:
        """Returns whether both runs did the same, apart from wall time, settings and kept
        scores."""
        timeless = [name for name in TRACE_FIELDS if name != "seconds"]
        return all(np.array_equal(self._done(name), other._done(name)) for name in timeless)

    def _done(self, name: str) -> np.ndarray:
        """Returns an array, without events that changed nothing on the canvas."""
        array = getattr(self, name)
        changed = ~np.isin(self.event_kind, (Event.SCORE, Event.MARGIN))
        return array[changed] if name.startswith("event_") else array

    def divergence(self, other: "Trace") -> Divergence | None:
        """Returns the first decision in which `other`, a trace of the same prompts, differs, and
        how close it was; None if there is none. Of several in a forward it is the closest one.

        Other machines and meshes round floats in another order, so a close decision may differ.
        Raises ValueError for a trace of other prompts, or if this one has no margins
        (`trace="margins"`).
        """
        require(
            bool((self.event_kind == Event.MARGIN).any()),
            "the first trace has no margins; allowed: that of a run with trace='margins'",
        )
        lengths = [trace.prompt_lengths.tolist() for trace in (self, other)]
        require(
            lengths[0] == lengths[1],
            f"the traces are of prompts of {lengths[0]} and {lengths[1]} tokens; allowed: the same "
            "prompts",
        )
        columns = [f"event_{name}" for name in ("step", "row", "position", "kind", "token")]
        one, two = (
            {*zip(*(trace._done(name).tolist() for name in columns), strict=True)}
            for trace in (self, other)
        )
        differing = sorted(one ^ two)
        if not differing:
            return None
        step, row, *_ = differing[0]
        here = [event for event in differing if event[:2] == (step, row)]
        mine, theirs = (
            {event[2]: event[4] for event in here if event in run} for run in (one, two)
        )
        sure = partial(self._predicted, step, row)
        if both := mine.keys() & theirs.keys():
            gaps = {(at, at): sure(at, margin=True)[1] for at in both}
        elif mine and theirs:
            pairs = product(mine, theirs)
            gaps = {(at, other_at): abs(sure(at)[1] - sure(other_at)[1]) for at, other_at in pairs}
        else:  # by a threshold
            gaps = {
                (at, -1) if mine else (-1, at): abs(
                    sure(at)[1] - other._predicted(step, row, at)[1]
                )
                for at in mine or theirs
            }
        positions = min(gaps, key=gaps.__getitem__)
        tokens = mine.get(positions[0], -1), theirs.get(positions[1], -1)
        return Divergence(step, row, positions, tokens, gaps[positions])

    def _predicted(
        self, step: int, row: int, position: int, *, margin: bool = False
    ) -> tuple[int, float]:
        """Returns the token that a forward predicted or left at a position, -1 for none, and its
        confidence or margin."""
        here = (self.event_row == row) & (self.event_position == position)
        here &= (self.event_step == step) & ((self.event_kind == Event.MARGIN) == margin)
        if not here.any():
            return -1, 0.0
        return self.event_token[here].tolist()[-1], self.event_confidence[here].tolist()[-1]


def trace_of(
    steps: Steps,
    tokens: Int[np.ndarray, "B L"],
    generated: Bool[np.ndarray, "B L"],
    prompt_lengths: Int[np.ndarray, " B"],
    settings: dict[str, Any],
) -> Trace:
    """Returns the trace of a finished run; `generated` marks final positions that hold a token."""
    events, useful = steps.events, steps.useful
    commits = events.where(events.kind == Event.COMMIT)
    filled, last_step = generated & useful.any(axis=0)[:, None], useful.sum(axis=0) - 1
    filled[commits.row, commits.position] = False  # the rest was committed by no step
    row, position = np.nonzero(filled)
    of_fills = (last_step[row], row, position, tokens[filled], np.zeros(row.shape))
    events = concatenated([events, Events.of(Event.FILL, *of_fills)])
    after = np.where(events.kind == Event.FILL, Event.FREEZE + 1, events.kind)
    order = np.lexsort((events.position, events.row, after, events.step))
    return Trace(
        rows=steps.rows,
        **steps.counts._asdict(),
        block=steps.block,
        seconds=steps.seconds,
        **{f"event_{name}": values for name, values in events.where(order)._asdict().items()},
        prompt_lengths=prompt_lengths,
        tokens=tokens,
        settings=settings,
    )
