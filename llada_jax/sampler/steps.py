"""The steps of a run on the host: the counts of each forward, and what happened to positions.

Loops record arrays [S, B, L] of a bounded number of steps (`loops.recorded_steps`). `steps_of`
keeps the positions to which something happened, so the records of a run grow with its tokens, not
with steps times canvas times batch.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from llada_jax.sampler.record import Event, StepCounts


class Events(NamedTuple):
    """What happened to which position, with the token and the confidence that it was left with."""

    step: Int[np.ndarray, " X"]
    row: Int[np.ndarray, " X"]
    position: Int[np.ndarray, " X"]
    token: Int[np.ndarray, " X"]
    confidence: Float[np.ndarray, " X"]
    kind: Int[np.ndarray, " X"]

    @classmethod
    def of(cls, kind: Event, *columns: np.ndarray) -> "Events":
        """Returns events of one kind from the other columns."""
        step, row, position, token = (column.astype(np.int32) for column in columns[:-1])
        kinds = np.full(len(step), kind, np.int8)
        return cls(step, row, position, token, columns[-1].astype(np.float32), kinds)

    def where(self, chosen: Bool[np.ndarray, " X"]) -> "Events":
        """Returns the chosen events."""
        return Events(*(column[chosen] for column in self))


class Steps(NamedTuple):
    """Every step of a run, in numpy arrays."""

    counts: StepCounts  # [S, B] each
    block: Int[np.ndarray, "S B"]
    rows: Int[np.ndarray, " S"]
    seconds: Float[np.ndarray, " S"]  # wall time; NaN if a compiled loop ran them all
    events: Events

    @property
    def useful(self) -> Bool[np.ndarray, "S B"]:
        """Marks the forwards that a sequence took part in."""
        return np.asarray(self.counts.live_rows + self.counts.refreshed) > 0

    @property
    def n_committed(self) -> int:
        """The number of tokens that forwards committed and that were not masked again."""
        commits, remasks = ((self.events.kind == kind) for kind in (Event.COMMIT, Event.REMASK))
        return int(commits.sum()) - int(remasks.sum())

    def of(self, row: int, count: int) -> "Steps":
        """Returns the first `count` steps of a row; copies, so that other rows can be freed."""
        counts, block = jax.tree.map(
            lambda array: array[:count, row : row + 1].copy(), (self.counts, self.block)
        )
        events = self.events.where((self.events.row == row) & (self.events.step < count))
        events = events._replace(row=np.zeros_like(events.row))
        return Steps(counts, block, self.rows[:count], self.seconds[:count], events)


def steps_of(records: Any, rows: Int[np.ndarray, " S"], seconds: Float[np.ndarray, " S"]) -> Steps:
    """Returns steps from their records: a `StepRecord` of numpy arrays with a leading step axis."""
    at = np.nonzero(records.events)
    flags = records.events[at]
    columns = (*at, records.token[at], records.confidence[at])
    parts = [
        Events.of(kind, *(column[(flags & (1 << kind)) > 0] for column in columns))
        for kind in Event
        if kind <= Event.FREEZE
    ]
    steps = Steps(records.counts, records.block, rows, seconds, parts[0])
    if records.predicted is not None:
        # Scores of rows that are done have no meaning.
        scored = (records.predicted >= 0) & steps.useful[..., None]
        kinds = {Event.SCORE: (scored & (records.events == 0), records.certainty)}
        if records.margin is not None:
            kinds[Event.MARGIN] = (scored, records.margin)
        for kind, (where, values) in kinds.items():
            at = np.nonzero(where)
            parts.append(Events.of(kind, *at, records.predicted[at], values[at]))
    return steps._replace(events=concatenated(parts))


def concatenated(parts: Sequence[Any], axis: int = 0) -> Any:
    """Concatenates the arrays of trees."""
    return jax.tree.map(lambda *arrays: np.concatenate(arrays, axis), *parts)


def in_sequence(parts: Sequence[Steps]) -> Steps:
    """Returns the steps of parts of a run, one after the other."""
    starts = np.cumsum([0, *(len(part.rows) for part in parts)], dtype=np.int32)
    return concatenated([
        part._replace(events=part.events._replace(step=part.events.step + start))
        for part, start in zip(parts, starts, strict=False)
    ])  # fmt: skip


def in_one_batch(parts: Sequence[Steps], buckets: Sequence[int]) -> Steps:
    """Returns the steps of batches as if they had started together, in the buckets that they would
    then take (numbers of rows, ascending). Seconds are NaN: a forward was shared with others."""
    most = max(len(part.rows) for part in parts)

    def padded(array: np.ndarray) -> np.ndarray:
        return np.pad(array, [(0, most - len(array)), *[(0, 0)] * (array.ndim - 1)])

    starts = np.cumsum([0, *(part.block.shape[1] for part in parts)], dtype=np.int32)
    counts, block = concatenated(
        [jax.tree.map(padded, (part.counts, part.block)) for part in parts], axis=1
    )
    events = concatenated([
        part.events._replace(row=part.events.row + start)
        for part, start in zip(parts, starts, strict=False)
    ])  # fmt: skip
    sizes = np.asarray(buckets, np.int32)
    rows = sizes[np.searchsorted(sizes, counts.live_rows.max(axis=1))]
    return Steps(counts, block, rows, np.full(most, np.nan), events)
