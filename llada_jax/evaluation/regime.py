"""In which regime a model decodes, and in which LLaDA-8B does: what a quality table holds for.

What saves forwards in one regime may save nothing in another: looking ahead needs forwards that
end a block with few masks left, and revision needs tokens that were committed unsure.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from llada_jax.evaluation.trajectory import Trajectory, mean_by_place
from llada_jax.sampler.event import Event


class Regime(NamedTuple):
    """Means over the forwards of answers; a name of a field is that of its result row."""

    forwards_per_block: float
    late_share: float
    """Of forwards, those that begin with at most a quarter of a block masked."""
    tokens_early: float
    """Tokens that a forward commits where more than three quarters of its block are masked."""
    tokens_midway: float
    tokens_late: float
    """The same where at most a quarter is; `tokens_midway` is what lies between."""
    frontier_slope: float
    """Forwards later that a token is committed, a position further right in its block."""
    rows_per_forward: float
    unsure_left: float
    """Tokens of a block of 32, when it is finished, whose confidence was below `theta_stable`, or
    of tokens that are not staged below 0.9 (Figures 13b and 5b)."""


UNITS = {
    "forwards_per_block": "forwards/block",
    "late_share": "of forwards",
    "tokens_early": "tokens/forward",
    "tokens_midway": "tokens/forward",
    "tokens_late": "tokens/forward",
    "frontier_slope": "forwards/position",
    "rows_per_forward": "rows",
    "unsure_left": "tokens of 32",
}
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
    left, committed, rows, blocks, unsure, place, taken = map(
        np.concatenate, zip(*batches, strict=True)
    )
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
