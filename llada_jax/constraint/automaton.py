"""A pattern as an automaton over a tokenizer's ids, whose tokens are in classes.

Tokens with the same transitions from every state are one class. So what a canvas may become is a
matter of states and classes, and the vocabulary enters as one class for each id.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from llada_jax.config import require

NEVER, END = 0, 1
"""Classes: ids that no string has, and ids that end a text, which the text's padding is of, too."""
ENDED, DEAD = 0, 1
"""States: the text has ended; nothing of the pattern is left."""
FAR = np.iinfo(np.int32).max // 2
"""The distance of a state from which no text ends."""
_ENTRIES_AT_ONCE = 1 << 24


class Automaton(NamedTuple):
    """The texts of a pattern in tokens. `ENDED` takes every id of the class `END`, and only those;
    states that accept lead there. A state is live where its distance is below `FAR`."""

    class_of: Int[np.ndarray, " V"]
    transitions: Int[np.ndarray, "S G"]  # the state after a token of a class
    distance: Int[np.ndarray, " S"]  # the fewest tokens until the text may end, here or by `END`
    start: int

    @property
    def shortest(self) -> int:
        """The fewest tokens of a text; `FAR` where there is none."""
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
    """Returns the automaton over tokens of one over bytes, where -1 is no state.

    Args:
      tokens: what each id spells, a byte at least; ids that are not among them are never allowed.
      ends: ids that end a text.
      only: of some states the one to which a token may lead.
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
    """Returns the automaton of some texts in these very tokens; `ends` as in `token_automaton`.

    Raises ValueError if the texts have more than `max_states` different beginnings.
    """
    following: list[dict[int, int]] = [{}]  # of each state, the state after a token
    whole = set()
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
        whole.add(state)
    column_of_token = {token: i for i, token in enumerate({t for text in texts for t in text})}
    columns = np.full((len(following), len(column_of_token)), len(following), np.int32)
    for state, after in enumerate(following):
        columns[state, [column_of_token[token] for token in after]] = list(after.values())
    accepts = np.isin(np.arange(len(following)), list(whole))
    return _automaton(columns, 0, accepts, column_of_token, ends, vocab_size)


def _automaton(
    columns: Int[np.ndarray, "S G"],
    start: int,
    accepts: Bool[np.ndarray, " S"],
    column_of_token: Mapping[int, int],
    ends: Sequence[int],
    vocab_size: int,
) -> Automaton:
    """Returns the automaton of the states from which a text ends, and to which one leads."""
    live = (_distances(columns, accepts) < FAR) & _reached(columns, start)
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
    """Returns what tokens spell in classes of bytes, each spelling once and behind its end -1, and
    the spelling of each token. Bytes with the same transitions stand for each other."""
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
    """Returns the different columns of states after spellings, from every state, and the column of
    each spelling."""
    found: list[np.ndarray] = []
    column_of: list[np.ndarray] = []
    at_once = max(1, _ENTRIES_AT_ONCE // len(table))
    for begin in range(0, len(spellings), at_once):
        part = spellings[begin : begin + at_once]
        after = np.repeat(np.arange(len(table), dtype=np.int32)[:, None], len(part), axis=1)
        for place in range(part.shape[1]):
            (spelled,) = np.nonzero(part[:, place] >= 0)
            after[:, spelled] = table[after[:, spelled], part[spelled, place]]
        columns, inverse = np.unique(after[:-1], axis=1, return_inverse=True)
        column_of.append(inverse.reshape(-1) + sum(each.shape[1] for each in found))
        found.append(columns)
    columns, merged = np.unique(np.concatenate(found, axis=1), axis=1, return_inverse=True)
    return columns, merged.reshape(-1)[np.concatenate(column_of)]


def _distances(
    after: Int[np.ndarray, "S G"], accepts: Bool[np.ndarray, " S"]
) -> Int[np.ndarray, " S"]:
    """Returns the fewest tokens from each state to one that accepts; a state that is no row has no
    way there."""
    distance = np.where(accepts, 0, FAR).astype(np.int32)
    while True:
        beyond = np.append(distance, FAR)[after].min(axis=1, initial=FAR)
        shorter = np.minimum(distance, np.minimum(beyond + 1, FAR)).astype(np.int32)
        if np.array_equal(shorter, distance):
            return distance
        distance = shorter


def _reached(after: Int[np.ndarray, "S G"], start: int) -> Bool[np.ndarray, " S"]:
    """Returns the states that tokens lead to."""
    reached = np.zeros(len(after) + 1, bool)
    fresh = np.array([start])
    while len(fresh):
        reached[fresh] = True
        beyond = np.unique(after[fresh[fresh < len(after)]])
        fresh = beyond[~reached[beyond]]
    return reached[:-1]
