"""How a decoding went, from its trace: where it commits when, how it ends, what it leaves unsure.

These are the pictures by which llada.cpp explains its two techniques (arXiv 2606.13740, Figures 5,
8 and 13), and the regime in which a model decodes. What saves forwards in one regime may save
nothing in another: looking ahead needs forwards that end a block with few masks left, and revision
needs tokens that were committed unsure.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, NamedTuple, get_type_hints

import numpy as np
from jaxtyping import Bool, Float, Int

from llada_jax.config import require
from llada_jax.sampler.record import Event
from llada_jax.sampler.replay import KEPT, event_states
from llada_jax.sampler.state import MASKED, STABLE
from llada_jax.sampler.trace import Trace


@dataclass(frozen=True, eq=False)
class Trajectory:
    """The blocks of a trace that hold answers. Shapes: B rows, S forwards, C positions of a block.

    Raises ValueError for a trace of infilling, blocks that do not start behind the prompt, and
    lengths that do not fit.
    """

    trace: Trace
    lengths: Int[np.ndarray, " B"]
    """Generated tokens that count in each row; what pads an answer is too easy to count."""

    def __post_init__(self) -> None:
        require(not self.trace.settings["infill"], "the trace is of infilling; allowed: generation")
        require(
            self.trace.settings["model"]["block_length"] is None,
            "the trace is of a block-causal model; allowed: one whose blocks start at the prompt",
        )
        lengths = np.asarray(self.lengths)
        most = self._sampler["gen_length"]
        fits = lengths.shape == self.trace.prompt_lengths.shape and lengths.size > 0
        require(
            fits and bool(((lengths > 0) & (lengths <= most)).all()),
            f"lengths are {lengths}; allowed: one a row, 1 to {most}",
        )

    @property
    def _sampler(self) -> dict[str, Any]:
        return self.trace.settings["sampler"]

    @property
    def block_length(self) -> int:
        return self._sampler["block_length"]

    @property
    def sure_from(self) -> float:
        """Returns the confidence from which a token is taken for sure."""
        is_staged = self._sampler.get("accept") == "staged"
        return self._sampler["theta_stable"] if is_staged else 0.9

    @cached_property
    def forwards(self) -> Bool[np.ndarray, "S B"]:
        """Marks forwards that were useful to a row while its block held a part of its answer."""
        useful = (self.trace.live_rows + self.trace.refreshed) > 0
        return useful & (self.trace.block * self.block_length < self.lengths)

    @cached_property
    def _states(self) -> Int[np.ndarray, "S B C"]:
        """Returns the current block when each forward begins."""
        trace, found = self.trace, []
        after = event_states(trace)
        state = np.full(trace.tokens.shape, MASKED, np.int8)
        first = np.searchsorted(trace.event_step, np.arange(len(trace.rows) + 1))
        for step, block in enumerate(trace.block):
            start = trace.prompt_lengths + block * self.block_length
            positions = start[:, None] + np.arange(self.block_length)
            positions = np.minimum(positions, state.shape[1] - 1)
            found.append(np.take_along_axis(state, positions, axis=1))
            for event in range(first[step], first[step + 1]):
                if after[event] != KEPT:
                    state[trace.event_row[event], trace.event_position[event]] = after[event]
        return np.stack(found)

    @property
    def masks_left(self) -> Int[np.ndarray, "S B"]:
        """Counts masks of the current block when each forward begins, padding included."""
        return (self._states == MASKED).sum(axis=2)

    @property
    def open_decisions(self) -> Int[np.ndarray, "S B"]:
        """Counts positions of the current block that each forward decides on: masked or visible."""
        return (self._states != STABLE).sum(axis=2)

    def commit_frontier(self) -> Float[np.ndarray, " C"]:
        """Returns the mean forward of its block, from 1, that first commits each position of a
        block (Figure 8); 0 for a draft taken over. NaN where no answer has the position."""
        return mean_by_place(*self.first_commits(), self.block_length)

    def first_commits(self) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " N"]]:
        """Returns of each token of an answer its place in its block, and the forward of the block,
        from 1, that first committed it; 0 for a draft taken over."""
        row, position, step, _ = self._events(Event.COMMIT)
        _, first = np.unique(row * (position.max(initial=0) + 1) + position, return_index=True)
        row, position, step = row[first], position[first], step[first]
        block, place = np.divmod(position, self.block_length)
        in_block = (self.trace.block[:, row] == block) & self.forwards[:, row]
        until = np.arange(len(self.trace.rows))[:, None] <= step
        return place, (in_block & until).sum(axis=0)

    def _events(self, *kinds: Event) -> tuple[np.ndarray, ...]:
        """Returns row, place in the answer, forward and confidence of the answers' events."""
        trace = self.trace
        place = trace.event_position - trace.prompt_lengths[trace.event_row]
        chosen = np.isin(trace.event_kind, kinds) & (place < self.lengths[trace.event_row])
        columns = trace.event_row, place, trace.event_step, trace.event_confidence
        return tuple(column[chosen] for column in columns)

    def tail_shares(self, most: int) -> Float[np.ndarray, " most"]:
        """Returns the share of forwards that begin with 1, 2, ... `most` masks (Figure 5a), or
        fewer, among those that begin with any."""
        left = self.masks_left[self.forwards]
        left = left[left > 0]
        return np.array([(left <= masks).mean() for masks in range(1, most + 1)])

    def below_at_block_end(self, confidence: float) -> Float[np.ndarray, " N"]:
        """Returns of each finished block the share of its tokens whose confidence was then still
        lower (Figures 5b and 13b); blocks of all rows in order.

        A trace holds the confidence of tokens that were committed, replaced or promoted. So of
        staged tokens, ask for their own `theta_stable`.
        """
        row, place, step, said = self._events(Event.COMMIT, Event.REPLACE, Event.PROMOTE)
        block = place // self.block_length
        last = np.full((len(self.lengths), block.max(initial=0) + 1), -1)
        committed, at, when, _ = self._events(Event.COMMIT)
        np.maximum.at(last, (committed, at // self.block_length), when)
        then = step <= last[row, block]
        found = np.full((*last.shape, self.block_length), np.nan)
        found[row[then], block[then], place[then] % self.block_length] = said[then]
        counted = np.isfinite(found)
        low = (counted & (found < np.float32(confidence))).sum(axis=2)
        total = counted.sum(axis=2)
        return low[total > 0] / total[total > 0]

    def skippable_shares(self) -> Float[np.ndarray, " B"]:
        """Returns each row's share of the block's decisions that were taken before (Figure 5c)."""
        decided = self.block_length - self.open_decisions
        share = np.where(self.forwards, decided, 0).sum(axis=0) / self.forwards.sum(axis=0)
        return share / self.block_length


def mean_by_place(
    place: Int[np.ndarray, " N"], values: Int[np.ndarray, " N"], places: int = 0
) -> Float[np.ndarray, " C"]:
    """Returns the mean of the values at each place, of `places` at the least; NaN for none."""
    count = np.bincount(place, minlength=places)
    total = np.bincount(place, weights=values, minlength=places)
    return np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)


class Regime(NamedTuple):
    """Means over the forwards of answers, with their units; a name is that of its result row."""

    forwards_per_block: Annotated[float, "forwards/block"]
    late_share: Annotated[float, "of forwards"]
    """Of forwards, those that begin with at most a quarter of a block masked."""
    tokens_early: Annotated[float, "tokens/forward"]
    """Tokens that a forward commits where more than three quarters of its block are masked."""
    tokens_midway: Annotated[float, "tokens/forward"]
    tokens_late: Annotated[float, "tokens/forward"]
    """The same where at most a quarter is; `tokens_midway` is what lies between."""
    frontier_slope: Annotated[float, "forwards/position"]
    """Forwards later that a token is committed, a position further right in its block."""
    rows_per_forward: Annotated[float, "rows"]
    unsure_left: Annotated[float, "tokens of 32"]
    """Tokens of a block of 32, when it is finished, whose confidence was below `theta_stable`, or
    of tokens that are not staged below 0.9 (Figures 13b and 5b)."""


_HINTS = get_type_hints(Regime, include_extras=True)
UNITS: dict[str, str] = {name: hint.__metadata__[0] for name, hint in _HINTS.items()}
PUBLISHED = {
    "forwards_per_block": (7.0, "arXiv 2606.13740, derived from Table 6 and Figure 8"),
    "late_share": (0.371, "arXiv 2606.13740, Figure 5a"),
    "frontier_slope": (0.1, "arXiv 2606.13740, Figure 8"),
    "rows_per_forward": (32.0, "arXiv 2606.13740, a block of 32 tokens"),
}
"""Of LLaDA-8B with blocks of 32 tokens, with the source; the paper does not print tokens by masks
left."""


def regime(trajectories: Iterable[Trajectory]) -> Regime:
    """Measures the regime of several batches, each forward and each position alike.

    Raises ValueError where there is no batch.
    """
    batches = [_measured(each) for each in trajectories]
    if not batches:
        raise ValueError("there are no traces; allowed: answers whose traces were kept")
    columns = map(np.concatenate, zip(*batches, strict=True))
    left, committed, rows, blocks, unsure, place, taken = columns
    return Regime(
        len(left) / int(blocks.sum()),
        float((left <= 0.25)[left > 0].mean()),
        _mean(committed[left > 0.75]),
        _mean(committed[(left > 0.25) & (left <= 0.75)]),
        _mean(committed[(left > 0) & (left <= 0.25)]),
        _slope(mean_by_place(place, taken)),
        float(rows.mean()),
        32 * _mean(unsure),
    )


def _measured(found: Trajectory) -> tuple[np.ndarray, ...]:
    """Returns of each forward the share of masks left, commits and rows; of each row its blocks; of
    each block the share that is left unsure; and of each token its place in its block with the
    forward of the block that committed it."""
    at, trace = found.forwards, found.trace
    return (
        found.masks_left[at] / found.block_length,
        trace.count(Event.COMMIT)[at],
        trace.live_rows[at],
        -(-np.asarray(found.lengths) // found.block_length),
        found.below_at_block_end(found.sure_from),
        *found.first_commits(),
    )


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else float("nan")


def _slope(means: np.ndarray) -> float:
    """Fits a line through the mean forward of each place, as Figure 8 does."""
    known = np.flatnonzero(np.isfinite(means))
    return float(np.polyfit(known, means[known], 1)[0]) if len(known) > 1 else float("nan")
