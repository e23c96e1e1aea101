"""Thresholds with a bound on the expected share of wrong tokens, by conformal risk control.

The risk of an answer is the share of its tokens that differ from the sequential answer: the one
that the same model writes greedily with one token per forward. Commits change what follows, so it
is measured on whole decoded answers, not token by token.

1. `fit_offsets` fits a table of thresholds on some items: offsets by step and position that give
   every entry the same modelled probability of a wrong token. One number, `shift`, moves them all.
2. `calibrate` chooses the shift on other items, from a grid that ends at the sequential answer,
   whose risk is 0 (Angelopoulos et al., Conformal Risk Control, arXiv 2208.02814). A risk that is
   not monotone in the shift is replaced by its largest value at this or any larger shift.
3. `drift` compares later items with the items of step 2, without their sequential answers.

The bound holds on average over the draws of both the calibration items and the new item, if these
are exchangeable (for instance independent draws of the same task). It does not hold for each
answer, for a chosen subset of answers, or after a change of the model, the task or the sampler. It
is about agreement with the sequential answer, which itself may be wrong.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import kolmogorov

from llada_jax.config import require
from llada_jax.sampler.trace import Event, Trace

_NEWTON_STEPS = 25


class Predictions(NamedTuple):
    """Predictions for masks of the current blocks, at the forwards of some decodings."""

    step: Int[np.ndarray, " N"]  # forwards that the block had before
    position: Int[np.ndarray, " N"]  # in the answer
    confidence: Float[np.ndarray, " N"]
    wrong: Bool[np.ndarray, " N"]  # differs from the sequential answer


def wrong_share(answer: Int[np.ndarray, " A"], sequential: Int[np.ndarray, " S"]) -> float:
    """Returns the share of positions at which two answers, each with its end token, differ, up to
    the end of the longer one. A token that is inserted makes all later ones differ."""
    shared = min(len(answer), len(sequential))
    same = (answer[:shared] == sequential[:shared]).sum()
    return float(1 - same / max(len(answer), len(sequential)))


def predictions_of(trace: Trace, row: int, sequential: Int[np.ndarray, " S"]) -> Predictions:
    """Returns the predictions of a run that never changes a token, up to the first forward that
    commits a wrong one: later ones have another context than the sequential answer. Without
    `trace="scores"` they are those that were committed. `sequential` ends with its end token."""
    kinds = (Event.COMMIT, Event.SCORE)
    mine = (trace.event_row == row) & np.isin(trace.event_kind, kinds)
    step, position = trace.event_step[mine], trace.event_position[mine] - trace.prompt_lengths[row]
    token, kind = trace.event_token[mine], trace.event_kind[mine]
    inside = (position >= 0) & (position < len(sequential))
    wrong = token != sequential[np.clip(position, 0, len(sequential) - 1)]
    last = np.min(step[inside & wrong & (kind == Event.COMMIT)], initial=len(trace.rows))
    kept = inside & (step <= last)
    block = trace.block[:, row]
    began = np.searchsorted(block, block[step])  # blocks are decoded in order
    columns = (step - began, position, trace.event_confidence[mine], wrong)
    return Predictions(*(column[kept] for column in columns))


def fit_offsets(
    found: Predictions, block_length: int, n_steps: int = 4, least: int = 20
) -> tuple[tuple[float, ...], ...]:
    """Returns the offsets of a `ThresholdTable`: a row for each of `n_steps` steps of a block.

    Steps and positions are halved in turns while every part has `least` wrong and `least` right
    predictions, so that bins with few data are joined. Log-odds of being right are modelled as a
    common slope times the log-odds of the confidence, plus an intercept for each bin. The mean
    offset over predictions is 0.

    Raises ValueError if there are fewer predictions of one kind than `least`, or if confidence
    does not order them.
    """
    step, position = np.minimum(found.step, n_steps - 1), found.position % block_length
    counts = np.zeros((2, n_steps, block_length), int)
    np.add.at(counts, (found.wrong.astype(int), step, position), 1)
    fewest = counts.sum(axis=(1, 2)).min()
    require(
        fewest >= least,
        f"there are {fewest} predictions that are right or wrong; allowed: {least} or more of each",
    )
    bins = np.zeros((n_steps, block_length), int)
    whole = slice(0, n_steps), slice(0, block_length)
    for number, part in enumerate(_parts(counts, whole, least)):
        bins[part] = number
    clipped = np.clip(np.asarray(found.confidence, float), 1e-6, 1 - 1e-7)
    odds = np.log(clipped / (1 - clipped))
    inputs = np.column_stack([odds, np.eye(bins.max() + 1)[bins[step, position]]])
    slope, *intercepts = _logistic_regression(inputs, ~found.wrong)
    require(slope > 0, f"the slope of confidence is {slope:.2g}; allowed: above 0")
    offsets = -np.array(intercepts)[bins] / slope
    offsets -= offsets[step, position].mean()
    return tuple(map(tuple, offsets.round(4).tolist()))


def _parts(
    counts: Int[np.ndarray, "2 S C"], part: tuple[slice, ...], least: int, axis: int = 0
) -> Iterator[tuple[slice, ...]]:
    """Yields the rectangles of steps and positions into which `part` can be divided."""
    for tried in (axis, 1 - axis):
        here = part[tried]
        middle = (here.start + here.stop) // 2
        halves = [
            (*part[:tried], half, *part[tried + 1 :])
            for half in (slice(here.start, middle), slice(middle, here.stop))
        ]
        if all((counts[:, *half].sum(axis=(1, 2)) >= least).all() for half in halves):
            for half in halves:
                yield from _parts(counts, half, least, 1 - tried)
            return
    yield part


def _logistic_regression(
    inputs: Float[np.ndarray, "N D"], right: Bool[np.ndarray, " N"]
) -> Float[np.ndarray, " D"]:
    """Returns maximum-likelihood weights by Newton's method, with a weak prior (variance 100)."""
    weights = np.zeros(inputs.shape[1])
    for _ in range(_NEWTON_STEPS):
        p = 1 / (1 + np.exp(-inputs @ weights))
        gradient = inputs.T @ (right - p) - weights / 100
        curvature = (inputs * (p * (1 - p))[:, None]).T @ inputs + np.eye(len(weights)) / 100
        weights = weights + np.linalg.solve(curvature, gradient)
    return weights


def calibrate(losses: Float[np.ndarray, "N K"], alpha: float) -> int:
    """Returns the first column, from bold to cautious, whose expected loss is at most `alpha`.

    Args:
      losses: Between 0 and 1, by calibration item and point of the grid. The last column is the
        sequential answer and all zeros.
      alpha: The level of the risk.

    Raises ValueError if no choice but the last one is possible for so few items, even without a
    loss, and for other losses.
    """
    n = len(losses)
    require(0 < alpha < 1, f"alpha is {alpha}; allowed: above 0 and below 1")
    require(
        bool(((losses >= 0) & (losses <= 1)).all() and not losses[:, -1].any()),
        "losses are not 0 to 1, or not 0 in the last column; allowed: the sequential answer last",
    )
    require(
        n + 1 >= 1 / alpha,
        f"there are {n} items; allowed: {int(np.ceil(1 / alpha)) - 1} or more for alpha {alpha}",
    )
    monotone = np.maximum.accumulate(losses[:, ::-1], axis=1)[:, ::-1]
    return int(np.argmax((monotone.sum(axis=0) + 1) / (n + 1) <= alpha))


def drift(calibration: Float[np.ndarray, " N"], new: Float[np.ndarray, " M"]) -> float:
    """Returns the p-value of a two-sample Kolmogorov-Smirnov test (with its asymptotic formula)
    that items come from one distribution. A value of an item is for instance its mean confidence at
    commits."""
    values = np.sort(np.concatenate([calibration, new]))
    ranks = [np.searchsorted(np.sort(part), values, "right") for part in (calibration, new)]
    n, m = len(calibration), len(new)
    distance = np.abs(ranks[0] / n - ranks[1] / m).max()
    return float(kolmogorov(distance * np.sqrt(n * m / (n + m))))


def warning(p_value: float, level: float, alpha: float) -> str | None:
    """Returns the warning that new items are not like the calibration's, or None."""
    if p_value >= level:
        return None
    return (
        f"confidences of these items are not distributed as the calibration's (p {p_value:.1g}, "
        f"limit {level}), so more than {alpha} of the tokens may be wrong: calibrate on such items"
    )
