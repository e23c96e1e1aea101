"""Checks the messages of chats, and tracks control tokens in them through a chat template.

`checked_messages` applies the same rules to prompts, training files and requests of the server.
`Marks` is the means by which `Tokenizer.encode_chat` decides whether a control token in a rendered
chat comes from the template or from a message: it puts private-use characters around the tokens of
messages, and looks for these characters in the output of the template.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from llada_jax.config import require, require_value, shortened

Messages = Sequence[Mapping[str, Any]]  # each with "role" and "content"
Span = tuple[int, int]  # start and end in characters
ROLES = ("system", "user", "assistant")
_MESSAGE = '{"role": "user", "content": "..."}'
_CONTENT = 'text, or a list of {"type": "text", "text": "..."}'
_MAX_LEVELS = 64


def checked_messages(messages: Any, check: Callable[[str], Any]) -> list[dict[str, Any]]:
    """Returns the messages of a chat in the form that templates take.

    Content that is a list of parts (`{"type": "text", "text": "..."}`) is joined to one text. Other
    keys of a message are kept.

    Args:
      messages: A list of mappings, each with a role of `ROLES` and content.
      check: Called with every text in a message; raises ValueError to reject it.

    Raises:
      ValueError: One sentence that names the message and what is allowed.
    """
    is_chat = isinstance(messages, list | tuple) and len(messages) > 0
    require_value(is_chat, "messages", messages, f"a list with one or more of {_MESSAGE}")
    checked = []
    for number, message in enumerate(messages, 1):
        require_value(isinstance(message, Mapping), f"message {number}", message, _MESSAGE)
        role, content = message.get("role"), message.get("content")
        known = isinstance(role, str) and role in ROLES
        require_value(known, f"message {number}: role", role, ", ".join(map(repr, ROLES)))
        text = _joined(content)
        require_value(text is not None, f"message {number}: content", content, _CONTENT)
        joined = {**message, "content": text}
        try:
            map_texts(joined, check)
        except ValueError as error:
            raise ValueError(shortened(f"message {number}: {error}")) from error
        checked.append(joined)
    return checked


def map_texts(value: Any, change: Callable[[str], Any], levels: int = _MAX_LEVELS) -> Any:
    """Returns a JSON value with `change` applied to every text in it, except for objects' keys."""
    if isinstance(value, str):
        return change(value)
    deeper = f"messages nest deeper than {_MAX_LEVELS} levels; allowed: less"
    require(levels > 0 or not isinstance(value, Mapping | list | tuple), deeper)
    if isinstance(value, Mapping):
        return {key: map_texts(item, change, levels - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_texts(item, change, levels - 1) for item in value]
    return value


def _joined(content: Any) -> str | None:
    """Returns the text of a message's content, or None if it has another form."""
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
    """Private-use characters around control tokens in messages, which can be found again in the
    output of a template.

    With `open_ends`, a token at the start or end of a text has no mark on that side, because some
    templates test how a message begins or ends.
    """

    def __init__(self, tokens: Iterable[str], taken: Iterable[str], open_ends: bool) -> None:
        """Chooses marks for control tokens: characters that occur in none of the `taken` texts."""
        used = set().union(*taken)
        free = (chr(code) for code in range(0xE000, 0x110000) if chr(code) not in used)
        names = sorted({token.strip() for token in tokens})
        self._marks = {token: (next(free), next(free), next(free), next(free)) for token in names}
        self._positions: dict[int, set[str]] = defaultdict(set)
        self._text = ""
        self._open_ends = open_ends

    def around(self, text: str, spans_of: Callable[[str], Iterable[Span]]) -> str:
        """Returns a text with marks around its control tokens, of which `spans_of` returns the
        spans in order."""
        pieces, at = [], 0
        for start, end in spans_of(text):
            token = text[start:end]
            before, after, after_first, before_last = self._marks[token.strip()]
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
        """Locates the marks in `text`: both texts are outputs of a template, `marked` with marks.

        Returns False if they differ otherwise, except for white space that is missing in `text`,
        because a mark can keep a template from trimming it.
        """
        characters, at = set().union(*self._marks.values()), 0
        for character in marked:
            if character in characters:
                self._positions[at].add(character)
            elif text[at : at + 1] == character:
                at += 1
            elif not character.isspace():
                return False
        self._text = text
        return at == len(text)

    def are_at(self, span: Span) -> bool:
        """Returns whether the control token at a span, or a part of it, comes from a message."""
        start, end = span
        if any(start < position < end for position in self._positions):
            return True
        marks = self._marks.get(self._text[start:end].strip())
        if marks is None:
            return False
        before, after, after_first, before_last = marks
        at_start, at_end = self._positions.get(start, ()), self._positions.get(end, ())
        whole = before in at_start and after in at_end
        return whole or after_first in at_end or before_last in at_start
