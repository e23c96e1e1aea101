"""Chats as lists of messages: what prompts and training files may have in them, checked alike."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from llada_jax.config import require, require_value, shortened

Messages = Sequence[Mapping[str, Any]]  # each with "role" and "content"
Span = tuple[int, int]  # characters from ... to
ROLES = ("system", "user", "assistant")
_MESSAGE = '{"role": "user", "content": "..."}'
_CONTENT = 'text, or a list of {"type": "text", "text": "..."}'
_MAX_LEVELS = 64


def checked_messages(messages: Any, check: Callable[[str], Any]) -> list[dict[str, Any]]:
    """Returns the messages of a chat as a template takes them: contents that are lists of parts
    (`{"type": "text", "text": "..."}`) are joined to one text, and other keys stay.

    Args:
      messages: A list of mappings, each with a role of `ROLES` and content.
      check: Called with every text in them, which it may refuse.

    Raises:
      ValueError: One sentence that names the message and what is allowed.
    """
    given = isinstance(messages, list | tuple) and len(messages) > 0
    require_value(given, "messages", messages, f"a list with one or more of {_MESSAGE}")
    checked = []
    for place, message in enumerate(messages, 1):
        require_value(isinstance(message, Mapping), f"message {place}", message, _MESSAGE)
        role, content = message.get("role"), message.get("content")
        known = isinstance(role, str) and role in ROLES
        require_value(known, f"message {place}: role", role, ", ".join(map(repr, ROLES)))
        text = _joined(content)
        require_value(text is not None, f"message {place}: content", content, _CONTENT)
        changed = {**message, "content": text}
        try:
            each_text(changed, check)
        except ValueError as error:
            raise ValueError(shortened(f"message {place}: {error}")) from error
        checked.append(changed)
    return checked


def each_text(value: Any, change: Callable[[str], Any], levels: int = _MAX_LEVELS) -> Any:
    """Returns what JSON can hold with every text changed, names of keys apart."""
    if isinstance(value, str):
        return change(value)
    deeper = f"messages nest deeper than {_MAX_LEVELS} levels; allowed: less"
    require(levels > 0 or not isinstance(value, Mapping | list | tuple), deeper)
    if isinstance(value, Mapping):
        return {key: each_text(each, change, levels - 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [each_text(each, change, levels - 1) for each in value]
    return value


def _joined(content: Any) -> str | None:
    """Returns the text of a content; None if it is something else."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        return None
    texts = [
        part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        for part in content
    ]
    whole = all(isinstance(text, str) for text in texts) and len(texts) > 0
    return "".join(texts) if whole else None  # pyright: ignore


class Marks:
    """Characters of private use around the control tokens that messages spell, by which these are
    found again in the text that a template makes of the messages.

    With `open_ends`, a token with which a text begins or ends has no mark on that side, for
    templates that look there.
    """

    def __init__(self, tokens: Iterable[str], taken: Iterable[str], open_ends: bool) -> None:
        """Chooses marks for these control tokens that are in none of the `taken` texts."""
        used = set().union(*taken)
        free = (chr(code) for code in range(0xE000, 0x110000) if chr(code) not in used)
        names = sorted({token.strip() for token in tokens})
        self._of = {token: (next(free), next(free), next(free), next(free)) for token in names}
        self._places: dict[int, set[str]] = defaultdict(set)
        self._text = ""
        self._open_ends = open_ends

    def around(self, text: str, spans_of: Callable[[str], Iterable[Span]]) -> str:
        """Returns a text with marks around its control tokens, whose spans are found in order."""
        pieces, at = [], 0
        for start, end in spans_of(text):
            token = text[start:end]
            before, after, after_first, before_last = self._of[token.strip()]
            if self._open_ends and start == 0:
                token = token + after_first
            elif self._open_ends and end == len(text):
                token = before_last + token
            else:
                token = before + token + after
            pieces += [text[at:start], token]
            at = end
        return "".join([*pieces, text[at:]])

    def find(self, marked: str, text: str) -> bool:
        """Finds the places of the marks in a text, which is `marked` without them; False if it is
        not. White space that a mark kept a template from removing may be missing in the text."""
        characters, at = set().union(*self._of.values()), 0
        for character in marked:
            if character in characters:
                self._places[at].add(character)
            elif text[at : at + 1] == character:
                at += 1
            elif not character.isspace():
                return False
        self._text = text
        return at == len(text)

    def are_at(self, span: Span) -> bool:
        """Tells whether the control token at a span of the text, or a part of it, comes from a
        message."""
        start, end = span
        if any(start < place < end for place in self._places):
            return True
        marks = self._of.get(self._text[start:end].strip())
        if marks is None:
            return False
        before, after, after_first, before_last = marks
        at_start, at_end = self._places.get(start, ()), self._places.get(end, ())
        whole = before in at_start and after in at_end
        return whole or after_first in at_end or before_last in at_start
