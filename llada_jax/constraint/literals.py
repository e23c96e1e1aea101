"""What a pattern spells in one way only, in the tokenizer's own tokens.

Any tokens that spell it would do, and a model had to choose. Held to the tokenizer's own, each of
its positions has one token, which needs no model at all.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Int

from llada_jax.text import Tokenizer

_READ = 64  # bytes ahead, of which the tokenizer's first token counts


def own_steps(
    next_state: Int[np.ndarray, "S 256"],
    accepts: Bool[np.ndarray, " S"],
    tokens: Mapping[int, bytes],
    tokenizer: Tokenizer,
) -> dict[int, int]:
    """Returns the state after the tokenizer's own token, of each state that only one byte leaves;
    arguments as `token_automaton`. Left out is a state before which the tokenizer puts other bytes:
    a space, or what would complete a character."""
    alone = ((next_state >= 0).sum(axis=1) == 1) & ~accepts
    byte, found = next_state.argmax(axis=1), {}
    for state in map(int, np.flatnonzero(alone)):
        path, rest = [state], b""
        while alone[path[-1]] and len(rest) < _READ:
            rest += bytes([byte[path[-1]]])
            path.append(int(next_state[path[-1], rest[-1]]))
        words = rest.rstrip(b" ")  # a space at the end may be one token with what follows
        first = tokenizer.encode(words.decode(errors="ignore"))[:1]
        spelled = tokens.get(first[0], b"") if first else b""
        if spelled and words.startswith(spelled):
            found[state] = path[len(spelled)]
    return found
