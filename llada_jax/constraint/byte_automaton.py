"""Deterministic automata over the bytes of UTF-8, with counters for long repetitions.

`{0,1000}` would give thousands of states that differ in a count only. Here such a repetition is one
loop with a **counter**: its states are states of the loop, and the count is kept next to them. Thus
time to build does not depend on the bounds. That is exact if a byte never both continues a
repetition and leaves it, and if all ways to read a text have counted the same. The subset
construction finds out; a repetition for which it does not hold is written out instead.

The automaton is built in two steps: a nondeterministic one whose states are added from the end of
the expression to its beginning (equal states are added once, so common endings are shared), and
the subset construction over pairs of state and count.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from llada_jax.config import require
from llada_jax.constraint.expression import (
    Chars,
    Concat,
    Items,
    Members,
    Node,
    Ranges,
    Repeat,
    Union,
    lengths,
)

MAX_STATES = 1 << 14
NEVER = np.iinfo(np.int32).max // 2
"""As `accepts_from`: no count is accepted."""
_MAX_WORK = 1 << 19  # pairs that the subset construction visits, about a second
_WRITTEN_OUT = 8  # repetitions up to this count have no counter
_END = 0  # the state at the end of the expression

Edge = tuple[int, int, int]
"""Bytes from the first number to the second lead to the third, a state."""
Item = tuple[int, int]
"""A state and its count; 0 outside of repetitions with a counter."""


class ByteAutomaton(NamedTuple):
    """An automaton with S states and B classes of bytes. A state in a repetition with a counter
    stands for several, one for each count from 0 to `limit`."""

    class_of: Int[np.ndarray, " 256"]  # class of each byte
    next_state: Int[np.ndarray, "S B"]  # -1 if there is none
    count: Int[np.ndarray, "S B"]  # count in the next state; if `stays`, its increase
    stays: Bool[np.ndarray, "S B"]  # whether the next state is in the same repetition
    limit: Int[np.ndarray, " S"]  # maximum count; 0 in states without a counter
    counts: Bool[np.ndarray, " S"]  # whether the state has a counter
    saturates: Bool[np.ndarray, " S"]  # whether the count stops at `limit`
    leaves_from: Int[np.ndarray, " S"]  # minimum count to leave the repetition
    most: Int[np.ndarray, " S"]  # maximum count of the repetition
    of_chars: Bool[np.ndarray, " S"]  # whether it repeats single characters
    accepts_from: Int[np.ndarray, " S"]  # minimum count at which a text may end, or `NEVER`
    start: int  # its count is 0


class _Counter(NamedTuple):
    least: int
    most: int | None
    body: int  # first state of an iteration
    after: int  # state after the repetition
    number: int  # of the repetition in the expression
    of_chars: bool  # whether an iteration is one character

    @property
    def cap(self) -> int:
        return self.least if self.most is None else self.most


class _Nfa:
    """A nondeterministic automaton. Methods add states of a node, and return the first one."""

    def __init__(self, written_out: set[int]) -> None:
        self.edges: list[tuple[Edge, ...]] = [()]
        self.epsilon: list[tuple[int, ...]] = [()]
        self.counters: dict[int, _Counter] = {}  # by the state between two iterations
        self.counter_of: dict[int, int] = {}  # that state, by state of an iteration
        self.written_out, self.n_repeats = written_out, 0
        self.known: dict[tuple, int] = {}

    def state(self, edges: tuple[Edge, ...] = (), epsilon: tuple[int, ...] = ()) -> int:
        if not edges and len(epsilon) == 1:
            return epsilon[0]
        state = self.known.setdefault((edges, epsilon), len(self.edges))
        return self.new(edges, epsilon) if state == len(self.edges) else state

    def new(self, edges: tuple[Edge, ...] = (), epsilon: tuple[int, ...] = ()) -> int:
        _require_size(len(self.edges), 4 * MAX_STATES)
        self.edges.append(edges)
        self.epsilon.append(epsilon)
        return len(self.edges) - 1

    def add(self, node: Node, after: int) -> int:
        if isinstance(node, Chars):
            return self._chars(node.ranges, after)
        if isinstance(node, Concat):
            for part in reversed(node.parts):
                after = self.add(part, after)
            return after
        if isinstance(node, Union):
            return self._any_of(*(self.add(part, after) for part in node.parts))
        if isinstance(node, Repeat):
            return self._repeat(node, after)
        return self._members(node, after) if isinstance(node, Members) else self._items(node, after)

    def _any_of(self, *states: int) -> int:
        return self.state(epsilon=tuple(dict.fromkeys(states)))

    def _chars(self, ranges: Ranges, after: int) -> int:
        edges = []
        for first, *rest in utf8_sequences(ranges):
            target = after
            for low, high in reversed(rest):
                target = self.state(((low, high, target),))
            edges.append((*first, target))
        return self.state(tuple(edges))

    def _repeat(self, node: Repeat, after: int) -> int:
        part, least, most = node
        if max(least, most or 0) > _WRITTEN_OUT and _is_countable(part):
            self.n_repeats += 1
            if self.n_repeats not in self.written_out:
                return self._counted(node, after)
        if most is None:
            loop = self.new()
            self.epsilon[loop] = (after, self.add(part, loop))
            after = loop
        end = after
        for _ in range(0 if most is None else most - least):
            after = self._any_of(self.add(part, after), end)
        for _ in range(least):
            after = self.add(part, after)
        return after

    def _counted(self, node: Repeat, after: int) -> int:
        loop = self.new()
        body = self.add(node.part, loop)
        of_chars = isinstance(node.part, Chars | Union)
        self.counters[loop] = _Counter(node.least, node.most, body, after, self.n_repeats, of_chars)
        self.counter_of.update(dict.fromkeys(range(loop + 1, len(self.edges)), loop))
        return self.new(epsilon=(loop,))  # equal states inside and before the loop differ by it

    def _members(self, node: Members, after: int) -> int:
        # States for the rest of the members: before the first one, and after some.
        first = later = after
        for part, is_required in reversed(node.parts):
            entry = self.add(part, later)
            with_separator = self.add(node.separator, entry)
            if is_required:
                first, later = entry, with_separator
            else:
                first, later = self._any_of(entry, first), self._any_of(with_separator, later)
        return first

    def _items(self, node: Items, after: int) -> int:
        part, separator, least, most = node
        if most == 0:
            return after
        last = after if most else self.new()
        entry = self.add(part, last)
        if most is None:
            self.epsilon[last] = (after, self.add(separator, entry))
        count = max(least, 1) if most is None else most
        for number in reversed(range(1, count)):
            following = self.add(separator, entry)
            if number >= least:
                following = self._any_of(following, after)
            entry = self.add(part, following)
        return entry if least else self._any_of(entry, after)


def _is_countable(node: Node) -> bool:
    """Whether a node has no repetition in it, and no empty text."""
    if isinstance(node, Concat | Union):
        has_repeat = any(isinstance(part, Repeat | Members | Items) for part in node.parts)
        return not has_repeat and all(map(_is_countable, node.parts)) and lengths(node)[0] > 0
    return isinstance(node, Chars)


@cache
def utf8_sequences(ranges: Ranges) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Returns sequences of ranges of bytes that together are the UTF-8 of the characters."""
    return tuple(sequence for low, high in ranges for sequence in _sequences(low, high))


def _sequences(low: int, high: int) -> Iterator[tuple[tuple[int, int], ...]]:
    # A range is split until all bytes but the last equal ones vary over all of their values.
    splits = [limit for limit in (0x7F, 0x7FF, 0xFFFF) if low <= limit < high]
    if high > 0x7F and not splits:
        for bits in (6, 12, 18):
            free = (1 << bits) - 1
            if low | free < high and low & free:
                splits.append(low | free)
            elif (low | free) < high and high & free != free:
                splits.append((high & ~free) - 1)
            if splits:
                break
    if splits:
        yield from _sequences(low, splits[0])
        yield from _sequences(splits[0] + 1, high)
    else:
        yield tuple(zip(chr(low).encode(), chr(high).encode(), strict=True))


def byte_automaton(node: Node) -> ByteAutomaton:
    """Returns the automaton of an expression.

    Raises ValueError for more than `MAX_STATES` states, and if finding them takes too long.
    """
    written_out: set[int] = set()
    while True:
        nfa = _Nfa(written_out)
        subsets = _Subsets(nfa, nfa.add(node, _END))
        if not subsets.ambiguous:
            return subsets.automaton()
        written_out |= subsets.ambiguous


class _Subsets:
    """The subset construction: a state is a set of items, or for items of one repetition with equal
    counts the set without the count."""

    def __init__(self, nfa: _Nfa, start: int) -> None:
        self.nfa, self.work = nfa, 0
        self.ambiguous: set[int] = set()  # numbers of repetitions that must be written out
        self.sets: list[tuple[int | None, frozenset[Item]]] = []
        self.index: dict[tuple[int | None, frozenset[Item]], int] = {}
        self.accepts_from: list[int] = []
        self.targets: list[dict[int, tuple[int, int, bool]]] = []  # state, count, stays; by class
        cuts = {0, 256}
        for edges in nfa.edges:
            cuts.update(end for low, high, _ in edges for end in (low, high + 1))
        self.class_of = np.searchsorted(sorted(cuts), np.arange(256), side="right") - 1
        self.class_list = self.class_of.tolist()
        self.start, _ = self._number(frozenset([(start, 0)]))
        for state in range(MAX_STATES):
            if state == len(self.sets):
                return
            self._expand(*self.sets[state])
        _require_size(MAX_STATES + 1)

    def _loop(self, state: int) -> int | None:
        return state if state in self.nfa.counters else self.nfa.counter_of.get(state)

    def _number(self, items: frozenset[Item]) -> tuple[int, int]:
        """Returns the number of a set, a new one if it is new, and its count."""
        loops, counts = {self._loop(state) for state, _ in items}, {count for _, count in items}
        loop, count = None, 0
        if len(loops) == len(counts) == 1 and None not in loops:
            (loop,), (count,) = loops, counts
            items = frozenset((state, 0) for state, _ in items)
        number = self.index.setdefault((loop, items), len(self.sets))
        if number == len(self.sets):
            self.sets.append((loop, items))
        return number, count

    def _expand(self, loop: int | None, items: frozenset[Item]) -> None:
        """Finds the transitions of the next state."""
        row: dict[int, tuple[int, int, bool]] = {}
        accepts_from = NEVER
        if loop is None:
            inside, closure = [], self._closure(items)
            accepts_from = 0 if (_END, 0) in closure else NEVER
        else:
            counter = self.nfa.counters[loop]
            inside = [item for item in self._closure(items) if self._loop(item[0]) == loop]
            last = self._closure(frozenset((state, counter.cap) for state, _ in items))
            closure = [item for item in last if self._loop(item[0]) != loop]
            accepts_from = counter.least if (_END, 0) in closure else NEVER
        for stays, part in ((True, inside), (False, closure)):
            for byte, found in self._targets(part).items():
                state, count = self._number(frozenset(found))
                is_clear = not stays or self.sets[state][0] == loop
                if loop is not None and (byte in row or not is_clear):
                    self.ambiguous.add(self.nfa.counters[loop].number)
                row[byte] = state, count, stays
        self.targets.append(row)
        self.accepts_from.append(accepts_from)

    def _closure(self, items: Iterable[Item]) -> set[Item]:
        """Returns the items that can be reached without a byte."""
        found, stack = set(items), list(items)
        while stack:
            state, count = stack.pop()
            counter = self.nfa.counters.get(state)
            following = [(after, count) for after in self.nfa.epsilon[state]]
            if counter is not None:
                if counter.most is None or count < counter.most:
                    following.append((counter.body, count))
                if count >= counter.least:
                    following.append((counter.after, 0))
            new = [item for item in following if item not in found]
            found.update(new)
            stack.extend(new)
        self._add_work(len(found))
        return found

    def _targets(self, items: Iterable[Item]) -> dict[int, set[Item]]:
        """Returns the items after each class of bytes."""
        targets: dict[int, set[Item]] = {}
        for state, count in items:
            loop = self.nfa.counter_of.get(state)
            for low, high, after in self.nfa.edges[state]:
                if loop is None:
                    item = after, 0
                elif after == loop:
                    counter = self.nfa.counters[loop]
                    more = count + 1
                    item = after, more if counter.most is not None else min(more, counter.cap)
                else:
                    item = after, count
                first, last = self.class_list[low], self.class_list[high]
                self._add_work(last - first)
                for byte in range(first, last + 1):
                    targets.setdefault(byte, set()).add(item)
        return targets

    def _add_work(self, amount: int) -> None:
        self.work += amount
        require(
            self.work <= _MAX_WORK,
            f"the constraint's automaton over bytes takes more than {_MAX_WORK} steps to build; "
            "allowed: a constraint with fewer alternatives at a time",
        )

    def automaton(self) -> ByteAutomaton:
        size, counters = len(self.sets), self.nfa.counters
        table = np.zeros((3, size, self.class_list[-1] + 1), np.int32)
        table[0] = -1
        for state, row in enumerate(self.targets):
            for byte, target in row.items():
                table[:, state, byte] = target
        columns, merged = np.unique(table, axis=2, return_inverse=True)
        of_state = [None if loop is None else counters[loop] for loop, _ in self.sets]
        limit = np.zeros(size, np.int32)
        for state, (loop, items) in enumerate(self.sets):
            if loop is not None:
                counter = counters[loop]
                is_between = (loop, 0) in items or counter.most is None
                limit[state] = counter.cap if is_between else counter.cap - 1
        return ByteAutomaton(
            class_of=merged.reshape(-1)[self.class_of],
            next_state=columns[0],
            count=columns[1],
            stays=columns[2].astype(bool),
            limit=limit,
            counts=np.array([c is not None for c in of_state]),
            saturates=np.array([c is not None and c.most is None for c in of_state]),
            leaves_from=np.array([0 if c is None else c.least for c in of_state], np.int32),
            most=np.array([0 if c is None else c.cap for c in of_state], np.int32),
            of_chars=np.array([c is not None and c.of_chars for c in of_state]),
            accepts_from=np.array(self.accepts_from, np.int32),
            start=self.start,
        )


def _require_size(states: int, most: int = MAX_STATES) -> None:
    require(
        states <= most,
        f"the constraint's automaton over bytes has more than {most} states; allowed: up to {most}",
    )


def matches(automaton: ByteAutomaton, text: bytes) -> bool:
    """Returns whether a whole text is one of the automaton's."""
    state, count = automaton.start, 0
    for byte in text:
        column = automaton.class_of[byte]
        after = automaton.next_state[state, column]
        if after < 0:
            return False
        if automaton.stays[state, column]:
            count += automaton.count[state, column]
            count = min(count, automaton.limit[after]) if automaton.saturates[state] else count
        elif count < automaton.leaves_from[state]:
            return False
        else:
            count = automaton.count[state, column]
        if count > automaton.limit[after]:
            return False
        state = after
    return bool(count >= automaton.accepts_from[state])
