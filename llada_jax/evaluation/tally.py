"""Aggregates graded answers over questions, and relates a decoder's cost to its quality.

Only the first of several items with the same question counts: a greedy decoder answers all of them
alike, so counting them all would make the confidence interval too narrow. If answers are sampled,
the first is as good a draw as any. Questions in different words are different questions.

Decoders that never revise a committed token form a curve over their threshold, from cheap and wrong
to expensive and right. A decoder that revises is worthwhile if it costs less than the point of the
curve with as many right answers (`cost_at_equal_quality`). All of them answer the same questions;
the 95 % intervals are bootstrapped over questions.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from llada_jax.config import require
from llada_jax.evaluation.generations import Generation
from llada_jax.evaluation.metrics import Interval, wilson_interval


class Tally(NamedTuple):
    """Right answers, forwards and tokens, one entry for each question."""

    right: tuple[bool, ...]
    forwards: tuple[int, ...]
    tokens: tuple[int, ...]  # of the answer, without padding
    blocks: tuple[int, ...] = ()  # that contain a part of the answer
    rows: tuple[int, ...] = ()  # in all forward passes; empty if no trace was stored
    strict: tuple[bool, ...] = ()  # right in every word; empty if the task cannot tell
    repeated: int = 0  # number of items that repeat a question

    @property
    def items(self) -> int:
        """The number of items, including repeated questions."""
        return len(self.right) + self.repeated

    @property
    def exact_match(self) -> float:
        """The share of questions answered right, 0 to 1."""
        return sum(self.right) / len(self.right)

    @property
    def interval(self) -> Interval:
        """Wilson's 95 % interval of `exact_match`."""
        return wilson_interval(sum(self.right), len(self.right))

    @property
    def strict_match(self) -> float | None:
        """The share of questions answered right in every word, or None if unknown."""
        known = len(self.strict) == len(self.right)
        return sum(self.strict) / len(self.strict) if known else None

    @property
    def strict_interval(self) -> Interval:
        """Wilson's 95 % interval of `strict_match`, which must be known."""
        return wilson_interval(sum(self.strict), len(self.strict))

    @property
    def nfe(self) -> float:
        """The mean number of forward passes per question."""
        return sum(self.forwards) / len(self.forwards)

    @property
    def forwards_per_block(self) -> float | None:
        """Forward passes per block of the answer, or None if the blocks are unknown."""
        known = len(self.blocks) == len(self.forwards)
        return sum(self.forwards) / sum(self.blocks) if known else None

    @property
    def row_forwards(self) -> float | None:
        """The mean number of rows in all forward passes of a question, or None if unknown."""
        known = len(self.rows) == len(self.forwards)
        return sum(self.rows) / len(self.rows) if known else None

    @property
    def tpf(self) -> float:
        """Answer tokens per forward pass."""
        return sum(self.tokens) / sum(self.forwards)


def tally(
    generations: Sequence[Generation],
    right: Mapping[int, bool],
    block_length: int | None = None,
    rows: Mapping[int, int] | None = None,
    strict: Mapping[int, bool] | None = None,
) -> Tally:
    """Counts the items of one task. `right`, `rows` and `strict` are by index of the item; what is
    not given is left empty."""
    counted = unique_questions(generations)
    return Tally(
        tuple(right[g.index] for g in counted),
        tuple(g.nfe for g in counted),
        tuple(g.length for g in counted),
        tuple(-(-g.length // block_length) for g in counted) if block_length else (),
        tuple(rows[g.index] for g in counted) if rows else (),
        tuple(strict[g.index] for g in counted) if strict else (),
        len(generations) - len(counted),
    )


def joined(tallies: Sequence[Tally]) -> Tally:
    """Joins the tallies of several tasks into one, in which each question counts the same."""
    lists: Any = [(*chain(*parts),) for parts in list(zip(*tallies, strict=True))[:-1]]
    return Tally(*lists, repeated=sum(tally.repeated for tally in tallies))


def unique_questions(generations: Sequence[Generation]) -> list[Generation]:
    """Returns the first item of each question, in the order of their indices."""
    first: dict[str, Generation] = {}
    for generation in sorted(generations, key=lambda generation: generation.index):
        first.setdefault(generation.item.question, generation)
    return list(first.values())


class BootstrapEstimate(NamedTuple):
    value: float
    interval: Interval


def cost_at_equal_quality(tally: Tally, curve: Sequence[Tally]) -> BootstrapEstimate:
    """Returns a decoder's rows divided by the rows of a threshold with the same quality.

    The curve has thresholds from the cheapest to the most expensive, and is linear between two. A
    threshold that answers no more than a cheaper one is left out. Qualities outside the curve are
    compared with its nearest end. Raises ValueError if the tallies have different questions or one
    has no rows.
    """
    counts = [len(one.right) for one in (tally, *curve)]
    known = [len(one.rows) for one in (tally, *curve)]
    require(
        len({*counts, *known}) == 1,
        f"right answers of {counts} questions and rows of {known}; allowed: all of the same",
    )
    right, costs = np.asarray(tally.right, float), np.asarray(tally.rows, float)
    rights = np.asarray([point.right for point in curve], float)
    curve_costs = np.asarray([point.rows for point in curve], float)

    def cost_ratio(questions: Int[np.ndarray, " n"]) -> float:
        quality = rights[:, questions].mean(axis=1)
        best_before = np.maximum.accumulate([-1.0, *quality[:-1]])
        better = quality > best_before
        curve_cost = curve_costs[:, questions].mean(axis=1)[better]
        equal = np.interp(right[questions].mean(), quality[better], curve_cost)
        return float(costs[questions].mean() / equal)

    return bootstrapped(cost_ratio, len(right))


def bootstrapped(
    statistic: Callable[[Int[np.ndarray, " n"]], float], n: int, resamples: int = 2000
) -> BootstrapEstimate:
    """Returns a statistic of `n` questions, which gets their indices, and its 95 % interval over
    questions that are drawn with replacement; the draws depend only on the two numbers."""
    rng = np.random.default_rng(0)
    resampled = [statistic(rng.integers(n, size=n)) for _ in range(resamples)]
    low, high = np.quantile(resampled, [0.025, 0.975])
    return BootstrapEstimate(statistic(np.arange(n)), Interval(float(low), float(high)))
