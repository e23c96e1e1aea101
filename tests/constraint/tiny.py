"""Tiny automata, and all their texts by enumeration."""

import numpy as np

from llada_jax.constraint.automaton import FAR, Automaton, token_automaton
from llada_jax.constraint.byte_automaton import NEVER, ByteAutomaton

LENGTH = 6


def over_bytes(table: np.ndarray, accepts: np.ndarray) -> ByteAutomaton:
    """Returns an automaton without counters from a table of states by bytes."""
    zeros, no = np.zeros(len(table), np.int32), np.zeros(len(table), bool)
    return ByteAutomaton(
        class_of=np.arange(256), next_state=table, count=np.zeros_like(table),
        stays=np.zeros(table.shape, bool), limit=zeros, counts=no, saturates=no, leaves_from=zeros,
        most=zeros, of_chars=no, accepts_from=np.where(accepts, 0, NEVER), start=0,
    )  # fmt: skip


def drawn(rng: np.random.Generator, n_tokens: int = 4) -> Automaton:
    """Returns an automaton with a text that fits, over tokens of one letter or two, and two ids
    after them that end a text."""
    while True:
        states = int(rng.integers(1, 5))
        table = np.full((states, 256), -1, np.int32)
        for letter in b"ab":
            row = rng.integers(-1, states, states)
            table[:, letter] = row
        accepts = rng.random(states) < 0.4
        words = [b"a", b"b", b"ab", b"ba"]
        tokens = dict(enumerate(words[i] for i in rng.permutation(4)[:n_tokens]))
        ends = (n_tokens, n_tokens + 1)
        found = token_automaton(over_bytes(table, accepts), tokens, ends, n_tokens + 3)
        if found.shortest <= LENGTH:
            return found


def accepts(automaton: Automaton, tokens) -> bool:
    """Tells whether tokens are a text and its end."""
    state = automaton.start
    for token in tokens:
        state = automaton.transitions[state, automaton.class_of[token]]
    return bool(automaton.distance[state] == 0)


def texts(automaton: Automaton, length: int = LENGTH) -> np.ndarray:
    """Returns all texts with their ends, [n, length]."""
    found = []

    def grow(prefix: tuple[int, ...], state: int) -> None:
        if automaton.distance[state] >= FAR:
            return
        if len(prefix) == length:
            if automaton.distance[state] == 0:
                found.append(prefix)
            return
        for token, kind in enumerate(automaton.class_of):
            grow((*prefix, token), automaton.transitions[state, kind])

    grow((), automaton.start)
    return np.array(found, np.int32).reshape(-1, length)


def by_letters(
    edges: dict[tuple[int, str], int], accepting: set[int], vocab: int, ends
) -> Automaton:
    """Returns an automaton over ids that represent `A`, `B` and so on."""
    states = 1 + max(*(state for state, _ in edges), *edges.values())
    table = np.full((states, 256), -1, np.int32)
    for (state, letters), after in edges.items():
        table[state, [ord(letter) for letter in letters]] = after
    tokens = {i: bytes([65 + i]) for i in range(vocab) if i not in ends}
    final = np.isin(np.arange(states), list(accepting))
    return token_automaton(over_bytes(table, final), tokens, ends, vocab)
