"""What a way of decoding scores on items: right answers, forwards, tokens.

Of items that ask the same question only the first counts. The question is the whole prompt, so a
greedy decoder gives them one answer, and an interval over all of them would be too narrow. Where
answers are drawn (temperature), the first is one draw as good as any. Questions in other words are
different ones, even if they come to the same.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from llada_jax.evaluation.generations import Generation
from llada_jax.evaluation.metrics import Interval, wilson_interval


class Tally(NamedTuple):
    """Right answers, forwards and tokens, one entry for each question."""

    right: tuple[bool, ...]
    forwards: tuple[int, ...]
    tokens: tuple[int, ...]
    """Tokens of the answer, without what pads it."""
    blocks: tuple[int, ...] = ()
    """Blocks that hold a part of the answer."""
    rows: tuple[int, ...] = ()
    """Rows of all forwards; empty where no trace was kept."""
    repeated: int = 0
    """Further items, which ask a question again."""

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
