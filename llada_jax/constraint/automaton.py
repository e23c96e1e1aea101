"""A pattern as a finite automaton over a tokenizer's ids, with the ids grouped into classes.

Two ids with the same transitions from every state are in the same class. A pattern has thousands of
ids but few classes, so a table of states by classes stays small, and the search for texts
(`reach`) does not depend on the vocabulary's size.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from llada_jax.config import require
from llada_jax.constraint.byte_automaton import ByteAutomaton

NEVER, END = 0, 1
"""Classes: ids that no text contains; ids that end a text, which also fill the canvas after it."""
ENDED, DEAD = 0, 1
"""States: after the end of a text; no text of the pattern is possible any more."""
FAR = np.iinfo(np.int32).max // 2
"""The distance of a state from which no text can end."""
MAX_STATES = 1 << 14
_MAX_ENTRIES = 1 << 24  # states by classes
_MAX_MOVES = 1 << 24  # pairs of a state and a beginning of a token, which bounds time and memory
_SPLIT_COUNTS = 64
_SlotOf = Callable[[Int[np.ndarray, " N"], Int[np.ndarray, " N"]], Int[np.ndarray, " N"]]


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
    over_bytes: ByteAutomaton,
    tokens: Mapping[int, bytes],
    ends: Sequence[int],
    vocab_size: int,
    only: Mapping[int, tuple[int, int]] | None = None,
) -> Automaton:
    """Converts an automaton over bytes to one over tokens, with a state for each count.

    Tokens are read from all states at once, byte by byte along the tree of their beginnings. From
    a state with a counter they are read once for all counts, since the count only decides whether
    the repetition may go on or end.

    Args:
      tokens: The bytes of each id, at least one; ids that are missing here are never allowed.
      ends: Ids that end a text.
      only: For some states without a counter, the only state and count to which a token may lead.
    """
    trie = _trie(over_bytes.class_of, tokens)
    moves = _moves(over_bytes, trie)
    if only:
        after = np.full((len(over_bytes.limit), 2), -1)
        after[list(only)] = list(only.values())
        chosen = np.stack([moves.after, moves.count], axis=1) == after[moves.state]
        moves = _Moves(*(part[chosen.all(axis=1) | (after[moves.state, 0] < 0)] for part in moves))
    column_of_node, n_columns = _columns(moves, len(trie.byte))
    _, first = np.unique(column_of_node[moves.node], return_index=True)
    is_first = np.zeros(len(trie.byte), bool)
    is_first[moves.node[first]] = True
    moves = _Moves(*(part[is_first[moves.node]] for part in moves))

    state_of, count_of, slot_of = _slots(over_bytes)
    size = len(state_of)
    require(
        size <= MAX_STATES and size * n_columns <= _MAX_ENTRIES,
        f"the constraint's automaton has {size} states by {n_columns} classes of tokens; allowed: "
        f"up to {MAX_STATES} states and {_MAX_ENTRIES} pairs, as shorter strings and arrays have",
    )
    # Moves from a state with a counter are repeated for each count.
    begins = np.searchsorted(state_of, np.arange(len(over_bytes.limit) + 1))
    copies = np.diff(begins)[moves.state]
    row = np.repeat(np.arange(len(copies)), copies)
    slot = np.arange(len(row)) - np.repeat(np.cumsum(copies) - copies, copies)
    slot += begins[moves.state[row]]
    before = count_of[slot]
    state, node, after, count, leaves = (part[row] for part in moves)
    stays = over_bytes.counts[state] & (leaves < 0)
    limit, left = over_bytes.limit[after], before + leaves
    count = np.where(stays, before + count, count)
    count = np.where(stays & over_bytes.saturates[state], np.minimum(count, limit), count)
    in_time = over_bytes.saturates[state] | (left <= over_bytes.most[state])
    allowed = stays | (in_time & (left >= over_bytes.leaves_from[state]))
    allowed &= count <= limit
    columns = np.full((size, n_columns), size, np.int32)
    target = slot_of(after[allowed], count[allowed])
    columns[slot[allowed], column_of_node[node[allowed]]] = target

    accepts = count_of >= over_bytes.accepts_from[state_of]
    column_of_token = {
        token: int(column_of_node[node])
        for token, node in zip(tokens, trie.node_of_token, strict=True)
        if column_of_node[node] >= 0
    }
    start = slot_of(np.array([over_bytes.start]), np.array([0]))[0]
    return _automaton(columns, int(start), accepts, column_of_token, ends, vocab_size)


class _Trie(NamedTuple):
    """The beginnings of all tokens, as a tree in breadth-first order; node 0 is empty."""

    byte: Int[np.ndarray, " N"]  # class of the last byte
    first_child: Int[np.ndarray, " N"]
    n_children: Int[np.ndarray, " N"]
    is_token: Bool[np.ndarray, " N"]
    node_of_token: Int[np.ndarray, " T"]


def _trie(class_of: Int[np.ndarray, " 256"], tokens: Mapping[int, bytes]) -> _Trie:
    lengths = np.array([len(spelling) for spelling in tokens.values()], np.int64)
    begins = np.cumsum(lengths) - lengths
    text = class_of[np.frombuffer(b"".join(tokens.values()), np.uint8)]
    node_of_token = np.zeros(len(tokens), np.int64)
    bytes_, n_children, total = [np.zeros(1, np.int64)], [], 1
    longer, level_begin = np.arange(len(tokens)), 0
    for depth in range(int(lengths.max(initial=0))):
        longer = longer[lengths[longer] > depth]
        keys = node_of_token[longer] * 256 + text[begins[longer] + depth]
        nodes, inverse = np.unique(keys, return_inverse=True)
        node_of_token[longer] = total + inverse.reshape(-1)
        bytes_.append(nodes % 256)
        n_children.append(np.bincount(nodes // 256 - level_begin, minlength=total - level_begin))
        level_begin, total = total, total + len(nodes)
    n_children.append(np.zeros(total - level_begin, np.int64))
    children = np.concatenate(n_children)
    is_token = np.zeros(total, bool)
    is_token[node_of_token] = True
    byte, first_child = np.concatenate(bytes_), 1 + np.cumsum(children) - children
    return _Trie(byte, first_child, children, is_token, node_of_token)


class _Moves(NamedTuple):
    """Pairs of a state and a token that can be read from it, at some count at least."""

    state: Int[np.ndarray, " M"]
    node: Int[np.ndarray, " M"]  # of the token in the tree
    after: Int[np.ndarray, " M"]  # the state after the token
    count: Int[np.ndarray, " M"]  # its count, or its increase while the token stays in a repetition
    leaves: Int[np.ndarray, " M"]  # increase of the first count before the token leaves, else -1


def _moves(over_bytes: ByteAutomaton, trie: _Trie) -> _Moves:
    n_states = len(over_bytes.limit)
    state = after = np.arange(n_states, dtype=np.int32)
    node, count = np.zeros((2, n_states), np.int32)
    leaves = np.where(over_bytes.counts, -1, 0).astype(np.int32)
    parts, total = [], 0
    while len(state):
        fan = trie.n_children[node]
        row = np.repeat(np.arange(len(fan), dtype=np.int32), fan)
        child = np.arange(len(row)) - np.repeat(np.cumsum(fan) - fan, fan)
        child = (child + trie.first_child[node[row]]).astype(np.int32)
        before, byte = after[row], trie.byte[child]
        following = over_bytes.next_state[before, byte]
        possible = following >= 0
        row, child, before, byte, following = (
            part[possible] for part in (row, child, before, byte, following)
        )
        stays, more = over_bytes.stays[before, byte], over_bytes.count[before, byte]
        old, left = count[row], leaves[row]
        new = np.where(stays, old + more, more)
        limit = over_bytes.limit[following]
        new = np.where(stays & over_bytes.saturates[before], np.minimum(new, limit), new)
        # Counts are known after the first repetition. In it they are increases, so only the
        # maximum excludes a move, and `leaves` keeps the increase for which it may be left.
        is_first, is_out = left < 0, over_bytes.counts[before] & ~stays
        known = new <= limit
        known &= is_first | ~is_out | (old >= over_bytes.leaves_from[before])
        left = np.where(is_first & is_out, old, left)
        state, node, after, count, leaves = (
            part[known] for part in (state[row], child, following, new, left)
        )
        is_token = trie.is_token[node]
        parts.append(_Moves(*(part[is_token] for part in (state, node, after, count, leaves))))
        total += len(state)
        require(
            total <= _MAX_MOVES,
            f"the constraint's automaton has more than {_MAX_MOVES} pairs of a state and a "
            "beginning of a token; allowed: a constraint with fewer alternatives at a time",
        )
    return _Moves(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _columns(moves: _Moves, n_nodes: int) -> tuple[Int[np.ndarray, " N"], int]:
    """Returns the column of each node, -1 for nodes without moves, and the number of columns. Nodes
    share one if all states have the same moves with them."""
    column = np.full(n_nodes, -1)
    after, count = moves.after.astype(np.int64), moves.count.astype(np.int64)
    codes = (after << 40) + (count << 20) + moves.leaves + 1
    order = np.argsort(moves.state, kind="stable")
    used = 0
    for part in np.split(order, np.flatnonzero(np.diff(moves.state[order])) + 1):
        nodes = moves.node[part]
        _, code = np.unique(codes[part], return_inverse=True)
        keys = (column[nodes] + 1) * len(part) + code.reshape(-1)
        different, new = np.unique(keys, return_inverse=True)
        column[nodes] = used + new.reshape(-1)
        used += len(different)
    has_moves = column >= 0
    different, column[has_moves] = np.unique(column[has_moves], return_inverse=True)
    return column, len(different)


def _slots(
    over_bytes: ByteAutomaton,
) -> tuple[Int[np.ndarray, " F"], Int[np.ndarray, " F"], _SlotOf]:
    """Returns the state and the count of each state of the token automaton, and the function that
    returns the numbers of the latter.

    Inside a character of several bytes there are at most `_SPLIT_COUNTS` counts beyond the minimum
    of the repetition: a token that ends there rounds the count up. There are ten states inside a
    character for each count, and few tokens end there."""
    limits = over_bytes.limit
    step = np.where(
        over_bytes.of_chars & (limits < over_bytes.most), -(-limits // _SPLIT_COUNTS), 1
    )
    step = np.maximum(step, 1)
    base = np.append(0, np.cumsum(limits + 1))
    state = np.repeat(np.arange(len(limits)), limits + 1)
    count = np.arange(base[-1]) - base[state]
    rounded = np.minimum(-(-count // step[state]) * step[state], limits[state])
    rounded = base[state] + np.where(count < over_bytes.leaves_from[state], count, rounded)
    kept, slot = np.unique(rounded, return_inverse=True)
    return state[kept], count[kept], lambda states, counts: slot[base[states] + counts]


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
    source, target = _edges(columns)
    distance = _steps(target, source, accepts)
    live = (distance < FAR) & (_steps(source, target, np.arange(len(columns)) == start) < FAR)
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
    distance = np.append(np.array([0, FAR], np.int32), distance[live])
    return Automaton(class_of, transitions, distance, int(number[start]))


def _edges(after: Int[np.ndarray, "S G"]) -> tuple[Int[np.ndarray, " E"], Int[np.ndarray, " E"]]:
    """Returns the different pairs of a state and a next state. A next state without a row of its
    own is a dead end."""
    size = len(after)
    source, column = np.nonzero(after < size)
    pairs = np.unique(source * size + after[source, column])
    return pairs // size, pairs % size


def _steps(
    source: Int[np.ndarray, " E"], target: Int[np.ndarray, " E"], from_: Bool[np.ndarray, " S"]
) -> Int[np.ndarray, " S"]:
    """Returns the minimum number of edges to each state from a marked one, or `FAR`, by
    breadth-first search."""
    order = np.argsort(source, kind="stable")
    begins, target = np.searchsorted(source[order], np.arange(len(from_) + 1)), target[order]
    distance = np.where(from_, 0, FAR).astype(np.int32)
    frontier, steps = np.flatnonzero(from_), 0
    while len(frontier):
        steps += 1
        beyond = np.unique(np.concatenate([target[begins[i] : begins[i + 1]] for i in frontier]))
        frontier = beyond[distance[beyond] == FAR]
        distance[frontier] = steps
    return distance
