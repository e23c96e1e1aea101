"""Where an answer's text ends: before a token that ends a text or a turn, and before a stop string.

A stop string is a property of text, and one text has many spellings in tokens. So it is searched
in decoded text, on the host: in the tokens of a sequence that are final, from the left, each time
that the sequence moves to another block. Both loops pause then if there are stop strings.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from llada_jax.sampler.state import PROMPT, STABLE, VISIBLE, DecodeState

ToText = Callable[[Int[np.ndarray, " G"]], str]
"""A tokenizer's decoding of ids."""


@dataclass(frozen=True)
class TextEnds:
    """What ends the text of an answer."""

    ids: tuple[int, ...]
    """Ids that end a text or a turn."""
    strings: tuple[str, ...]
    """Stop strings."""
    to_text: ToText

    def stopped(self, tokens: Int[np.ndarray, " L"], status: Int[np.ndarray, " L"]) -> bool:
        """Returns whether the final tokens after a sequence's prompt have a stop string."""
        text = self.to_text(before_end(final_tokens(tokens, status), self.ids))
        return any(stop in text for stop in self.strings)


def final_tokens(
    tokens: Int[np.ndarray, " L"], status: Int[np.ndarray, " L"]
) -> Int[np.ndarray, " F"]:
    """Returns the tokens after the prompt up to the first that may change: those that are final."""
    begin = int((status == PROMPT).sum())
    is_open = status[begin:] < STABLE
    return tokens[begin:][: int(is_open.argmax()) if is_open.any() else None]


def before_end(tokens: Int[np.ndarray, " G"], ends: Sequence[int]) -> Int[np.ndarray, " A"]:
    """Returns the tokens before the first one that ends a text or a turn, or all of them."""
    (found,) = np.isin(tokens, ends).nonzero()
    return tokens[: found[0]] if len(found) else tokens


def before_stop(text: str, strings: Sequence[str]) -> str:
    """Returns the text before the first stop string, or all of it."""
    return text[: min((text.find(stop) for stop in strings if stop in text), default=len(text))]


def settled_text(text: str, strings: Sequence[str]) -> str:
    """Returns the part of a text that further tokens cannot change: the text before the first stop
    string, or all but an incomplete UTF-8 character or the beginning of a stop string at the end.
    """
    ended = before_stop(text, strings)
    if ended != text:
        return ended
    length = len(text.rstrip("\ufffd"))
    for stop in strings:
        for size in range(min(len(stop) - 1, len(text)), 0, -1):
            if text.endswith(stop[:size]):
                length = min(length, len(text) - size)
                break
    return text[:length]


def stop_at_strings(state: DecodeState, ends: TextEnds, eos_id: int) -> DecodeState:
    """Marks sequences done that have a stop string in their final tokens, and fills them up with
    EOS, as after an EOS."""
    tokens, status, done = map(np.asarray, (state.tokens, state.status, state.done))
    rows = np.flatnonzero(~done)
    stopped = np.zeros_like(done)
    stopped[rows] = [ends.stopped(tokens[row], status[row]) for row in rows]
    if not stopped.any():
        return state
    where = jnp.asarray(stopped)
    visible = (state.status == VISIBLE) & where[:, None]
    state = state.with_eos(state.masked & where[:, None], eos_id).with_stable(visible)
    return state._replace(done=state.done | where)
