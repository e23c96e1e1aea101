"""A pattern as a finite automaton over a tokenizer's ids, with the ids grouped into classes.

Two ids with the same transitions from every state are in the same class. A pattern has thousands of
ids but few classes, so a table of states by classes stays small, and the search for texts
(`reach`) does not depend on the vocabulary's size.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from llada_jax.config import require

NEVER, END = 0, 1
"""Classes: ids that no text contains; ids that end a text, which also fill the canvas after it."""
ENDED, DEAD = 0, 1
"""States: after the end of a text; no text of the pattern is possible any more."""
FAR = np.iinfo(np.int32).max // 2
"""The distance of a state from which no text can end."""
_MAX_ENTRIES = 1 << 24  # of the arrays in `_after_spellings`, which bounds its memory


class Automaton(NamedTuple):
    """The texts of a pattern in tokens. Accepting states lead to `ENDED` by the class `END`;
    `ENDED` allows that class only. A state is live if its distance is below `FAR`."""

    class_of: Int[np.ndarray, " V"]
    transitions: Int[np.ndarray, "S G"]  # next state by state and class
    distance: Int[np.ndarray, " S"]  # minimum number of further tokens before a text may end
    start: int

    @property
    def shortest(self) -> int:
        """The minimum number of tokens of a text; `FAR` if there is no text."""
        return int(self.distance[self.start])


def token_automaton(
    next_state: Int[np.ndarray, "S 256"],
    start: int,
    accepts: Bool[np.ndarray, " S"],
    tokens: Mapping[int, bytes],
    ends: Sequence[int],
    vocab_size: int,
    only: Mapping[int, int] | None = None,
) -> Automaton:
    """Converts an automaton over bytes, in which -1 means no transition, to one over tokens.

    Args:
      tokens: The bytes of each id, at least one; ids that are missing here are never allowed.
      ends: Ids that end a text.
      only: For some states, the only next state to which a token may lead.
    """
    dead = len(next_state)
    table = np.vstack([np.where(next_state < 0, dead, next_state), np.full((1, 256), dead)])
    spellings, spelling_of = _spellings(table, tokens)
    columns, column_of = _after_spellings(table, spellings)
    for state, after in (only or {}).items():
        columns[state, columns[state] != after] = dead
    column_of_token = dict(zip(tokens, column_of[spelling_of], strict=True))
    return _automaton(columns, start, accepts, column_of_token, ends, vocab_size)


def text_automaton(
    texts: Sequence[Sequence[int]], ends: Sequence[int], vocab_size: int, max_states: int
) -> Automaton:
    """Returns the automaton of some texts, each spelled by exactly these tokens.

    Args:
      ends: Ids that end a text.

    Raises ValueError if the texts have more than `max_states` different prefixes.
    """
    following: list[dict[int, int]] = [{}]  # a trie: for each state, the next state by token
    complete = set()
    for text in sorted(map(tuple, texts)):
        state = 0
        for token in text:
            state = following[state].setdefault(token, len(following))
            if state == len(following):
                following.append({})
                require(
                    len(following) <= max_states,
                    f"the choices have more than {max_states} states; allowed: up to {max_states}, "
                    "one for each different beginning in tokens",
                )
        complete.add(state)
    column_of_token = {token: i for i, token in enumerate({t for text in texts for t in text})}
    columns = np.full((len(following), len(column_of_token)), len(following), np.int32)
    for state, after in enumerate(following):
        columns[state, [column_of_token[token] for token in after]] = list(after.values())
    accepts = np.isin(np.arange(len(following)), list(complete))
    return _automaton(columns, 0, accepts, column_of_token, ends, vocab_size)


def _automaton(
    columns: Int[np.ndarray, "S G"],
    start: int,
    accepts: Bool[np.ndarray, " S"],
    column_of_token: Mapping[int, int],
    ends: Sequence[int],
    vocab_size: int,
) -> Automaton:
    """Returns the automaton of the live and reachable states, with equal columns merged into
    classes. `columns` has next states by state and column; a column serves one or more ids."""
    live = (_distances(columns, accepts) < FAR) & _reachable(columns, start)
    number = np.append(np.where(live, np.cumsum(live) + DEAD, DEAD), DEAD)
    columns, merged = np.unique(number[columns[live]], axis=1, return_inverse=True)
    useful = (columns != DEAD).any(axis=0)
    classes = np.where(useful, np.cumsum(useful) + END, NEVER)[merged.reshape(-1)]

    class_of = np.full(vocab_size, NEVER, np.int32)
    class_of[list(column_of_token)] = classes[list(column_of_token.values())]
    class_of[list(ends)] = END
    transitions = np.full((int(live.sum()) + 2, int(useful.sum()) + 2), DEAD, np.int32)
    transitions[2:, 2:] = columns[:, useful]
    accepting = np.concatenate([[True, False], accepts[live]])
    transitions[accepting, END] = ENDED
    return Automaton(class_of, transitions, _distances(transitions, accepting), int(number[start]))


def _spellings(
    table: Int[np.ndarray, "S 256"], tokens: Mapping[int, bytes]
) -> tuple[Int[np.ndarray, "U K"], Int[np.ndarray, " T"]]:
    """Returns the different spellings, one row each, filled up with -1, and the row of each token.
    Each byte is replaced by the first byte with the same transitions, which merges spellings."""
    _, first, byte_class = np.unique(table, axis=1, return_index=True, return_inverse=True)
    representative = first[byte_class.reshape(-1)]
    longest = max(map(len, tokens.values()), default=1)
    padded = np.full((len(tokens), longest), -1, np.int16)
    for row, spelling in enumerate(tokens.values()):
        padded[row, : len(spelling)] = representative[list(spelling)]
    spellings, spelling_of = np.unique(padded, axis=0, return_inverse=True)
    return spellings, spelling_of.reshape(-1)


def _after_spellings(
    table: Int[np.ndarray, "S 256"], spellings: Int[np.ndarray, "U K"]
) -> tuple[Int[np.ndarray, "S G"], Int[np.ndarray, " U"]]:
    """Returns the different columns of states after a spelling, by initial state, and the column of
    each spelling. Works in parts of bounded size."""
    parts: list[np.ndarray] = []
    column_of: list[np.ndarray] = []
    part_size = max(1, _MAX_ENTRIES // len(table))
    for begin in range(0, len(spellings), part_size):
        part = spellings[begin : begin + part_size]
        after = np.repeat(np.arange(len(table), dtype=np.int32)[:, None], len(part), axis=1)
        for index in range(part.shape[1]):
            (longer,) = np.nonzero(part[:, index] >= 0)
            after[:, longer] = table[after[:, longer], part[longer, index]]
        columns, inverse = np.unique(after[:-1], axis=1, return_inverse=True)
        column_of.append(inverse.reshape(-1) + sum(done.shape[1] for done in parts))
        parts.append(columns)
    columns, merged = np.unique(np.concatenate(parts, axis=1), axis=1, return_inverse=True)
    return columns, merged.reshape(-1)[np.concatenate(column_of)]


def _distances(
    after: Int[np.ndarray, "S G"], accepts: Bool[np.ndarray, " S"]
) -> Int[np.ndarray, " S"]:
    """Returns the minimum number of tokens from each state to an accepting one, by relaxation. A
    next state without a row of its own is a dead end."""
    distance = np.where(accepts, 0, FAR).astype(np.int32)
    while True:
        beyond = np.append(distance, FAR)[after].min(axis=1, initial=FAR)
        shorter = np.minimum(distance, np.minimum(beyond + 1, FAR)).astype(np.int32)
        if np.array_equal(shorter, distance):
            return distance
        distance = shorter


def _reachable(after: Int[np.ndarray, "S G"], start: int) -> Bool[np.ndarray, " S"]:
    """Marks the states that tokens can lead to, by breadth-first search."""
    reachable = np.zeros(len(after) + 1, bool)
    frontier = np.array([start])
    while len(frontier):
        reachable[frontier] = True
        beyond = np.unique(after[frontier[frontier < len(after)]])
        frontier = beyond[~reachable[beyond]]
    return reachable[:-1]
