"""What a way of decoding scores on items: right answers, forwards, tokens."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.answers import answer_items
from llada_jax.build import Model
from llada_jax.config import Loop, SamplerConfig
from llada_jax.evaluation.generations import Generation
from llada_jax.evaluation.metrics import Interval, wilson_interval
from llada_jax.evaluation.task import Item, Task
from llada_jax.evaluation.trajectory import Trajectory


class Score(NamedTuple):
    """One entry for each item."""

    right: tuple[bool, ...]
    forwards: tuple[int, ...]
    tokens: tuple[int, ...]
    """Of the answer, without what pads it."""

    @property
    def exact_match(self) -> float:
        return sum(self.right) / len(self.right)

    @property
    def interval(self) -> Interval:
        """Of exact match, 95 %."""
        return wilson_interval(sum(self.right), len(self.right))

    @property
    def nfe(self) -> float:
        """Forwards an item."""
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
    right = [task.verify(each.item, each.text) for each in batch.generations]
    lengths = np.array([each.length for each in batch.generations])
    return Decoded(batch.generations, score(batch.generations, right), Trajectory(trace, lengths))


def score(generations: Sequence[Generation], right: Sequence[bool]) -> Score:
    """Of generations, which of them are right being known."""
    return Score(
        tuple(right),
        tuple(each.nfe for each in generations),
        tuple(each.length for each in generations),
    )
