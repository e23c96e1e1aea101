"""What a way of decoding scores on items: right answers, forwards, tokens; and what it costs beside
thresholds of equal quality, and brings back of what another loses.

Of items that ask the same question only the first counts. The question is the whole prompt, so a
greedy decoder gives them one answer, and an interval over all of them would be too narrow. Where
answers are drawn (temperature), the first is one draw as good as any. Questions in other words are
different ones, even if they come to the same.

Thresholds that commit for good are a curve from cheap and wrong to dear and right. A way that
revises pays where it costs less than the point of that curve with as many right answers. All ways
answer the same questions; intervals are of 95 %, by a bootstrap of the questions.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from llada_jax.config import require
from llada_jax.evaluation.generations import Generation
from llada_jax.evaluation.metrics import Interval, wilson_interval

Cost = Literal["rows", "forwards"]
_RESAMPLES = 2000


class Tally(NamedTuple):
    """Right answers, forwards and tokens, one entry for each question."""

    right: tuple[bool, ...]
    forwards: tuple[int, ...]
    tokens: tuple[int, ...]  # of the answer, without what pads it
    blocks: tuple[int, ...] = ()  # that hold a part of the answer
    rows: tuple[int, ...] = ()  # of all forwards; empty where no trace was kept
    repeated: int = 0  # further items, which ask a question again

    @property
    def items(self) -> int:
        """Counts the items, repeated questions included."""
        return len(self.right) + self.repeated

    @property
    def exact_match(self) -> float:
        """Returns the share of questions answered right, 0 to 1."""
        return sum(self.right) / len(self.right)

    @property
    def interval(self) -> Interval:
        """Returns Wilson's 95 % interval of `exact_match`."""
        return wilson_interval(sum(self.right), len(self.right))

    @property
    def nfe(self) -> float:
        """Returns the mean number of forwards a question."""
        return sum(self.forwards) / len(self.forwards)

    @property
    def forwards_per_block(self) -> float | None:
        """Returns forwards a block of the answer."""
        known = len(self.blocks) == len(self.forwards)
        return sum(self.forwards) / sum(self.blocks) if known else None

    @property
    def row_forwards(self) -> float | None:
        """Returns the mean number of rows, summed over the forwards of a question."""
        known = len(self.rows) == len(self.forwards)
        return sum(self.rows) / len(self.rows) if known else None

    @property
    def tpf(self) -> float:
        """Returns answer tokens a forward."""
        return sum(self.tokens) / sum(self.forwards)


def tally(
    generations: Sequence[Generation],
    right: Mapping[int, bool],
    block_length: int | None = None,
    rows: Mapping[int, int] | None = None,
) -> Tally:
    """Counts the items of one task, of whose places it is known which are right, and how many rows
    their forwards had. Without `block_length` or `rows` where that is not known of all."""
    counted = asked_first(generations)
    return Tally(
        tuple(right[each.index] for each in counted),
        tuple(each.nfe for each in counted),
        tuple(each.length for each in counted),
        tuple(-(-each.length // block_length) for each in counted) if block_length else (),
        tuple(rows[each.index] for each in counted) if rows else (),
        len(generations) - len(counted),
    )


def joined(tallies: Sequence[Tally]) -> Tally:
    """Joins several tasks into one tally, in which each question counts the same."""
    lists: Any = [(*chain(*parts),) for parts in list(zip(*tallies, strict=True))[:-1]]
    return Tally(*lists, repeated=sum(each.repeated for each in tallies))


def asked_first(generations: Sequence[Generation]) -> list[Generation]:
    """Keeps of each question the item with the lowest place, in the order of their places."""
    first: dict[str, Generation] = {}
    for each in sorted(generations, key=lambda generation: generation.index):
        first.setdefault(each.item.question, each)
    return list(first.values())


class BootstrapEstimate(NamedTuple):
    """A number, with its interval."""

    value: float
    interval: Interval


def cost_at_equal_quality(found: Tally, curve: Sequence[Tally], cost: Cost) -> BootstrapEstimate:
    """Returns what `found` costs, in times the cost of a threshold of equal quality.

    The curve has thresholds from the cheapest on, and is linear between two; one that answers no
    more than a cheaper one is none of it. What lies beyond an end of it is compared with that end.
    Raises ValueError where a tally is of other questions, or has no entry of the cost.
    """
    _require_same_questions([found, *curve], cost)
    right, costs = _right(found), np.asarray(getattr(found, cost), float)
    rights = np.stack([_right(each) for each in curve])
    curve_costs = np.asarray([getattr(each, cost) for each in curve], float)

    def times(questions: Int[np.ndarray, " n"]) -> float:
        quality = rights[:, questions].mean(axis=1)
        best_before = np.maximum.accumulate([-1.0, *quality[:-1]])
        better = quality > best_before
        curve_cost = curve_costs[:, questions].mean(axis=1)[better]
        equal = np.interp(right[questions].mean(), quality[better], curve_cost)
        return float(costs[questions].mean() / equal)

    return _bootstrapped(times, len(right))


def brought_back(found: Tally, low: Tally, high: Tally) -> BootstrapEstimate:
    """Returns the share that `found` brings back of the answers that `low` loses against `high`.

    Raises ValueError where a tally is of other questions, or `low` loses nothing.
    """
    _require_same_questions([found, low, high], "forwards")
    lost, gained = _right(high) - _right(low), _right(found) - _right(low)
    require(lost.sum() > 0, f"the lower one loses {lost.sum():.0f} answers; allowed: 1 or more")

    def share(questions: Int[np.ndarray, " n"]) -> float:
        costs = lost[questions].sum()
        return float(gained[questions].sum() / costs) if costs > 0 else float("inf")

    return _bootstrapped(share, len(lost))


def _right(tally: Tally) -> Float[np.ndarray, " n"]:
    return np.asarray(tally.right, float)


def _require_same_questions(tallies: Sequence[Tally], cost: Cost) -> None:
    counts = [len(each.right) for each in tallies]
    known = [len(getattr(each, cost)) for each in tallies]
    require(
        len({*counts, *known}) == 1,
        f"right answers of {counts} questions and {cost} of {known}; allowed: all of the same",
    )


def _bootstrapped(statistic: Callable[[Int[np.ndarray, " n"]], float], n: int) -> BootstrapEstimate:
    rng = np.random.default_rng(0)
    drawn = [statistic(rng.integers(n, size=n)) for _ in range(_RESAMPLES)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return BootstrapEstimate(statistic(np.arange(n)), Interval(float(low), float(high)))
