"""Measures from its trace how a decoding went: the order of commits in a block, how a block ends,
and how many tokens it leaves with low confidence.

These are the figures with which llada.cpp motivates its two techniques (arXiv 2606.13740, Figures
5, 8 and 13), and the regime in which a model decodes. A technique may save forward passes in one
regime and nothing in another: looking ahead needs passes that end a block with few masks left, and
revision needs tokens that were committed with low confidence.
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
    """The answer blocks of a trace. Shapes: B rows, S forward passes, C positions of a block.

    Raises ValueError for a trace of infilling, blocks that do not start at the end of the prompt,
    and lengths that do not fit the trace.
    """

    trace: Trace
    lengths: Int[np.ndarray, " B"]
    """Generated tokens of each row that count; padding is excluded, because it is too easy."""

    def __post_init__(self) -> None:
        require(not self.trace.settings["infill"], "the trace is of infilling; allowed: generation")
        require(
            self.trace.settings["model"]["block_length"] is None,
            "the trace is of a block-causal model; allowed: one whose blocks start at the prompt",
        )
        lengths = np.asarray(self.lengths)
        max_length = self._sampler["gen_length"]
        fits = lengths.shape == self.trace.prompt_lengths.shape and lengths.size > 0
        require(
            fits and bool(((lengths > 0) & (lengths <= max_length)).all()),
            f"lengths are {lengths}; allowed: one a row, 1 to {max_length}",
        )

    @property
    def _sampler(self) -> dict[str, Any]:
        return self.trace.settings["sampler"]

    @property
    def block_length(self) -> int:
        return self._sampler["block_length"]

    @property
    def sure_from(self) -> float:
        """The confidence from which a token counts as certain."""
        is_staged = self._sampler.get("accept") == "staged"
        return self._sampler["theta_stable"] if is_staged else 0.9

    @cached_property
    def forwards(self) -> Bool[np.ndarray, "S B"]:
        """Passes that were useful to a row while its block contained a part of its answer."""
        useful = (self.trace.live_rows + self.trace.refreshed) > 0
        return useful & (self.trace.block * self.block_length < self.lengths)

    @cached_property
    def _states(self) -> Int[np.ndarray, "S B C"]:
        """The states of the current block's positions before each forward pass."""
        trace, states = self.trace, []
        after = event_states(trace)
        state = np.full(trace.tokens.shape, MASKED, np.int8)
        first = np.searchsorted(trace.event_step, np.arange(len(trace.rows) + 1))
        for step, block in enumerate(trace.block):
            start = trace.prompt_lengths + block * self.block_length
            positions = start[:, None] + np.arange(self.block_length)
            positions = np.minimum(positions, state.shape[1] - 1)
            states.append(np.take_along_axis(state, positions, axis=1))
            for event in range(first[step], first[step + 1]):
                if after[event] != KEPT:
                    state[trace.event_row[event], trace.event_position[event]] = after[event]
        return np.stack(states)

    @property
    def masks_left(self) -> Int[np.ndarray, "S B"]:
        """Number of masks in the current block before each forward pass, including padding."""
        return (self._states == MASKED).sum(axis=2)

    @property
    def open_decisions(self) -> Int[np.ndarray, "S B"]:
        """Number of positions of the current block that each pass decides on: masked or visible."""
        return (self._states != STABLE).sum(axis=2)

    def commit_frontier(self) -> Float[np.ndarray, " C"]:
        """Returns for each position of a block the mean index (from 1) of the block's pass that
        first commits it (Figure 8). Accepted drafts count as 0; NaN if no answer has the position.
        """
        return _mean_by_position(*self.first_commits(), self.block_length)

    def first_commits(self) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " N"]]:
        """Returns for each answer token its position in its block, and the index (from 1) of the
        block's pass that first committed it, 0 for an accepted draft."""
        row, position, step, _ = self._events(Event.COMMIT)
        _, first = np.unique(row * (position.max(initial=0) + 1) + position, return_index=True)
        row, position, step = row[first], position[first], step[first]
        block, position_in_block = np.divmod(position, self.block_length)
        in_block = (self.trace.block[:, row] == block) & self.forwards[:, row]
        until = np.arange(len(self.trace.rows))[:, None] <= step
        return position_in_block, (in_block & until).sum(axis=0)

    def _events(self, *kinds: Event) -> tuple[np.ndarray, ...]:
        """Returns row, position in the answer, pass and confidence of the answers' events."""
        trace = self.trace
        position = trace.event_position - trace.prompt_lengths[trace.event_row]
        chosen = np.isin(trace.event_kind, kinds) & (position < self.lengths[trace.event_row])
        columns = trace.event_row, position, trace.event_step, trace.event_confidence
        return tuple(column[chosen] for column in columns)

    def tail_shares(self, max_masks: int) -> Float[np.ndarray, " max_masks"]:
        """Returns the shares of forward passes that begin with at most 1, 2, ... `max_masks` masks,
        among those that begin with any (Figure 5a)."""
        left = self.masks_left[self.forwards]
        left = left[left > 0]
        return np.array([(left <= masks).mean() for masks in range(1, max_masks + 1)])

    def below_at_block_end(self, confidence: float) -> Float[np.ndarray, " N"]:
        """Returns for each finished block the share of its tokens that had a lower confidence at
        its end (Figures 5b and 13b); blocks of all rows in order.

        A trace has the confidence of tokens only when they are committed, replaced or promoted. So
        for staged tokens use their `theta_stable`.
        """
        row, position, step, value = self._events(Event.COMMIT, Event.REPLACE, Event.PROMOTE)
        block = position // self.block_length
        last_commit = np.full((len(self.lengths), block.max(initial=0) + 1), -1)
        commit_row, commit_position, commit_step, _ = self._events(Event.COMMIT)
        index = commit_row, commit_position // self.block_length
        np.maximum.at(last_commit, index, commit_step)
        in_time = step <= last_commit[row, block]
        final = np.full((*last_commit.shape, self.block_length), np.nan)
        index = row[in_time], block[in_time], position[in_time] % self.block_length
        final[index] = value[in_time]
        counted = np.isfinite(final)
        low = (counted & (final < np.float32(confidence))).sum(axis=2)
        total = counted.sum(axis=2)
        return low[total > 0] / total[total > 0]

    def skippable_shares(self) -> Float[np.ndarray, " B"]:
        """Returns each row's share of a block's positions already decided before a forward pass
        (Figure 5c), averaged over its passes."""
        decided = self.block_length - self.open_decisions
        share = np.where(self.forwards, decided, 0).sum(axis=0) / self.forwards.sum(axis=0)
        return share / self.block_length


def _mean_by_position(
    position: Int[np.ndarray, " N"], values: Int[np.ndarray, " N"], n_positions: int = 0
) -> Float[np.ndarray, " C"]:
    """Returns the mean value at each position, for at least `n_positions`; NaN without values."""
    count = np.bincount(position, minlength=n_positions)
    total = np.bincount(position, weights=values, minlength=n_positions)
    return np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)


class Regime(NamedTuple):
    """Means over the forward passes of answers, with units; the fields are names of result rows."""

    forwards_per_block: Annotated[float, "forwards/block"]
    late_share: Annotated[float, "of forwards"]
    """Share of passes that begin with at most a quarter of the block masked."""
    tokens_early: Annotated[float, "tokens/forward"]
    """Tokens committed by a pass that begins with more than three quarters of the block masked."""
    tokens_midway: Annotated[float, "tokens/forward"]
    tokens_late: Annotated[float, "tokens/forward"]
    """The same for at most a quarter masked; `tokens_midway` is for shares in between."""
    frontier_slope: Annotated[float, "forwards/position"]
    """Slope of `commit_frontier`: delay of a token per position further right in its block."""
    rows_per_forward: Annotated[float, "rows"]
    unsure_left: Annotated[float, "tokens of 32"]
    """Tokens of a finished block, scaled to 32, with a confidence below `theta_stable`, or below
    0.9 for rules that are not staged (Figures 13b and 5b)."""


_HINTS = get_type_hints(Regime, include_extras=True)
UNITS: dict[str, str] = {name: hint.__metadata__[0] for name, hint in _HINTS.items()}
PUBLISHED = {
    "forwards_per_block": (7.0, "arXiv 2606.13740, derived from Table 6 and Figure 8"),
    "late_share": (0.371, "arXiv 2606.13740, Figure 5a"),
    "frontier_slope": (0.1, "arXiv 2606.13740, Figure 8"),
    "rows_per_forward": (32.0, "arXiv 2606.13740, a block of 32 tokens"),
}
"""Values of LLaDA-8B with blocks of 32 tokens, with the source. The paper does not report tokens
per pass by masks left."""


def regime(trajectories: Iterable[Trajectory]) -> Regime:
    """Measures the regime of several batches; each forward pass and each position weighs the same.

    Raises ValueError if there is no batch.
    """
    batches = [_measurements(trajectory) for trajectory in trajectories]
    if not batches:
        raise ValueError("there are no traces; allowed: answers whose traces were kept")
    columns = map(np.concatenate, zip(*batches, strict=True))
    left, committed, rows, blocks, unsure, position, commit_pass = columns
    return Regime(
        len(left) / int(blocks.sum()),
        float((left <= 0.25)[left > 0].mean()),
        _mean(committed[left > 0.75]),
        _mean(committed[(left > 0.25) & (left <= 0.75)]),
        _mean(committed[(left > 0) & (left <= 0.25)]),
        _slope(_mean_by_position(position, commit_pass)),
        float(rows.mean()),
        32 * _mean(unsure),
    )


def _measurements(trajectory: Trajectory) -> tuple[np.ndarray, ...]:
    """Returns seven columns: the share of masks left, commits and rows of each pass; the blocks of
    each row; the share of low confidence of each block; and `first_commits` of each token."""
    useful, trace = trajectory.forwards, trajectory.trace
    return (
        trajectory.masks_left[useful] / trajectory.block_length,
        trace.count(Event.COMMIT)[useful],
        trace.live_rows[useful],
        -(-np.asarray(trajectory.lengths) // trajectory.block_length),
        trajectory.below_at_block_end(trajectory.sure_from),
        *trajectory.first_commits(),
    )


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else float("nan")


def _slope(means: np.ndarray) -> float:
    """Returns the slope of a line fitted to the mean pass of each position, as in Figure 8."""
    known = np.flatnonzero(np.isfinite(means))
    return float(np.polyfit(known, means[known], 1)[0]) if len(known) > 1 else float("nan")
