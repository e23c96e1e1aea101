"""What a way of decoding scores on items: right answers, forwards, tokens.

Of items that ask the same question only the first counts. The question is the whole prompt, so a
greedy decoder gives them one answer, and an interval over all of them would be too narrow. Where
answers are drawn (temperature), the first is one draw as good as any. Questions in other words are
different ones, even if they come to the same.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from experiments.evaluate.answers import answer_items
from llada_jax.build import Model
from llada_jax.config import Loop, SamplerConfig
from llada_jax.evaluation.generations import Generation
from llada_jax.evaluation.metrics import Interval, wilson_interval
from llada_jax.evaluation.task import Item, Task
from llada_jax.evaluation.trajectory import Trajectory


class Score(NamedTuple):
    """One entry for each question."""

    right: tuple[bool, ...]
    forwards: tuple[int, ...]
    tokens: tuple[int, ...]
    """Of the answer, without what pads it."""
    repeated: int = 0
    """Further items, which ask a question again."""

    @property
    def items(self) -> int:
        return len(self.right) + self.repeated

    @property
    def exact_match(self) -> float:
        return sum(self.right) / len(self.right)

    @property
    def interval(self) -> Interval:
        """Of exact match, 95 %."""
        return wilson_interval(sum(self.right), len(self.right))

    @property
    def nfe(self) -> float:
        """Forwards a question."""
        return sum(self.forwards) / len(self.forwards)

    @property
    def tpf(self) -> float:
        """Tokens of answers a forward."""
        return sum(self.tokens) / sum(self.forwards)


class Decoded(NamedTuple):
    """Items that were decoded at once."""

    generations: list[Generation]
    score: Score
    trajectory: Trajectory


def decode_items(
    model: Model,
    task: Task,
    items: Mapping[int, Item],
    sampler: SamplerConfig,
    loop: Loop = "host",
) -> Decoded:
    """The items of a task, given by their place, in one batch.

    The host loop compiles less for each sampler: it shares its forwards with the others.
    """
    batch, trace = answer_items(model, items, sampler, loop=loop)
    right = {each.index: task.verify(each.item, each.text) for each in batch.generations}
    lengths = np.array([each.length for each in batch.generations])
    return Decoded(batch.generations, score(batch.generations, right), Trajectory(trace, lengths))


def score(generations: Sequence[Generation], right: Mapping[int, bool]) -> Score:
    """Of the items of one task, of whose places it is known which are right."""
    counted = asked_first(generations)
    return Score(
        tuple(right[each.index] for each in counted),
        tuple(each.nfe for each in counted),
        tuple(each.length for each in counted),
        len(generations) - len(counted),
    )


def joined(scores: Sequence[Score]) -> Score:
    """Of several tasks as one, in which each question counts the same."""
    return Score(
        tuple(chain.from_iterable(each.right for each in scores)),
        tuple(chain.from_iterable(each.forwards for each in scores)),
        tuple(chain.from_iterable(each.tokens for each in scores)),
        sum(each.repeated for each in scores),
    )


def asked_first(generations: Sequence[Generation]) -> list[Generation]:
    """Of each question the item with the lowest place, in the order of their places."""
    first: dict[str, Generation] = {}
    for each in sorted(generations, key=lambda generation: generation.index):
        first.setdefault(each.item.question, each)
    return list(first.values())
