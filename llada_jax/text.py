"""Text to token ids and back, and the chat template of a checkpoint."""

import hashlib
import json
import operator
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import tokenizers

from llada_jax.chat_template import render
from llada_jax.config import read_object, require, shortened
from llada_jax.messages import Marks, Messages, Span, checked_messages, each_text
from llada_jax.tokenizer_json import (
    MAX_FILE_BYTES,
    backend_from_json,
    build_backend,
    max_text_bytes,
    one_sentence,
)
from llada_jax.tokenizer_sources import (
    GGUF_MODEL,
    GGUF_TEMPLATE,
    data_from_gguf,
    data_from_vocabulary,
    gguf_roles,
)

_VOCABULARY, _MERGES, _ADDED = "vocab.json", "merges.txt", "added_tokens.json"
_BASES = (("tokenizer.json",), (_VOCABULARY, _MERGES))
"""Files that a folder needs for text: one of these."""
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
    _VOCABULARY, _MERGES, _ADDED,
)  # fmt: skip
MAX_DECODED_IDS = 1 << 20
_SHOWN = 8  # characters in a warning
_MAX_ID = (1 << 32) - 1  # of the tokenizers library; ids that no token has decode to nothing


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A tokenizer with its special tokens and chat template. Tokenizers of equal content are equal:
    they are static parts of models, which JAX compares."""

    backend: tokenizers.Tokenizer
    special_tokens: Mapping[str, str]
    """By role (`"eos_token"`), as the checkpoint names them."""
    chat_template: str | None = None
    """Jinja source; None where the checkpoint has none."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """What the template is given beside the messages."""
    files: Sequence[Path] = ()
    """Files of the folder that it was read from; none if it was made in another way."""

    @classmethod
    def from_folder(cls, folder: str | Path) -> Self:
        """Reads a folder in the Hugging Face layout: `tokenizer.json`, or without it `vocab.json`
        and `merges.txt` (with `added_tokens.json`), and the files beside them.

        Of two places that say the same, `tokenizer_config.json` wins over
        `special_tokens_map.json`, and `chat_template.jinja` wins over both.

        The files are not trusted: see `llada_jax.tokenizer_json`.

        Raises FileNotFoundError without these files, ValueError for what cannot be parsed or is
        not allowed.
        """
        folder = Path(folder)
        config = {}
        for file in (folder / "special_tokens_map.json", folder / "tokenizer_config.json"):
            config |= read_object(_of_allowed_size(file)) if file.is_file() else {}
        template_file = folder / "chat_template.jinja"
        if template_file.is_file():
            config["chat_template"] = _parsed(template_file, str)
        template = _default_template(config.get("chat_template"), folder)
        if not has_tokenizer(folder):
            raise FileNotFoundError(
                f"no tokenizer.json in {folder}, and no {_VOCABULARY} with {_MERGES}"
            )
        if (folder / "tokenizer.json").is_file():
            backend = _parsed(folder / "tokenizer.json", backend_from_json)
        else:
            backend = _from_vocabulary(folder, config)
        files = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
        return cls(backend, _special_tokens(config, folder), template, files=files)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], path: str | Path) -> Self | None:
        """Builds the tokenizer of a GGUF file from its metadata (`checkpoint.gguf.read_header` with
        the lists `GGUF_LISTS`), as llama.cpp reads it; None if the file has no tokenizer.

        Raises ValueError, which begins with the path, for what is not known or not allowed.
        """
        if metadata.get(GGUF_MODEL, "no_vocab") in ("no_vocab", "none"):
            return None
        try:
            backend = build_backend(data_from_gguf(metadata))
            template = _default_template(metadata.get(GGUF_TEMPLATE), path)
            roles = gguf_roles(metadata)
        except ValueError as error:
            hint = "a tokenizer.json beside the file would be read instead"
            raise ValueError(shortened(f"{path}: {error} ({hint})")) from error
        return cls(backend, roles, template)

    def save(self, folder: Path) -> list[Path]:
        """Writes files that `from_folder` reads into an existing folder, and returns their paths:
        copies of its own files, or `tokenizer.json` and what goes with it."""
        if self.files:
            return [Path(shutil.copyfile(file, folder / file.name)) for file in self.files]
        content = {
            "tokenizer.json": self.backend.to_str(),
            "tokenizer_config.json": json.dumps(self.special_tokens),
            "chat_template.jinja": self.chat_template,
        }
        paths = [folder / name for name, text in content.items() if text is not None]
        for path in paths:
            path.write_bytes((content[path.name] or "").encode())
        return paths

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, Tokenizer)
        return self is other or (same and self._content == other._content)

    def __hash__(self) -> int:
        return hash(self._content)

    @cached_property
    def _content(self) -> bytes:
        parts = self.backend.to_str(), self.special_tokens, self.chat_template, self.variables
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=repr).encode()).digest()

    @property
    def vocab_size(self) -> int:
        """Counts tokens, special ones included; a model's embedding may have more rows."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @property
    def bos_id(self) -> int | None:
        return self._id("bos_token")

    @property
    def eos_id(self) -> int | None:
        return self._id("eos_token")

    @property
    def pad_id(self) -> int | None:
        return self._id("pad_token")

    @property
    def mask_id(self) -> int | None:
        return self._id("mask_token")

    def _id(self, role: str) -> int | None:
        token = self.special_tokens.get(role)
        return None if token is None else self.backend.token_to_id(token)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Returns token ids of a text; the spelling of a special token becomes that token.

        Raises ValueError for text with lone surrogates, for text that is too long (the bound is 1
        to 8 MB for usual tokenizers, less for those whose normalizer can lengthen a text), and if
        the tokenizer fails. Warns once of characters that it has no token for, which decoding does
        not give back.
        """
        found = self.encoding(text, add_special_tokens=add_special_tokens)
        unknown = self.special_tokens.get("unk_token")
        if unknown is not None and self._id("unk_token") in found.ids:
            self._warn_of_unknown(text, unknown, found)
        return found.ids

    def _warn_of_unknown(self, text: str, unknown: str, found: tokenizers.Encoding) -> None:
        lost = (text[slice(*span)] for token, span in zip(found.tokens, found.offsets, strict=True)
                if token == unknown)  # fmt: skip
        lost = sorted({each for each in lost if unknown not in each})
        if lost and not self._has_warned:
            self._has_warned.append(True)
            more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
            shown = ", ".join(f"{each!r:.20}" for each in lost[:_SHOWN])
            warnings.warn(
                f"the tokenizer has no token for {shown}{more}: each becomes {unknown}, and is "
                "lost when it is decoded",
                stacklevel=3,
            )

    @cached_property
    def _has_warned(self) -> list[bool]:
        return []

    def encoding(self, text: str, add_special_tokens: bool = False) -> tokenizers.Encoding:
        """Returns what the tokenizers library knows of a text: ids, tokens, and their places.

        Raises ValueError as `encode`, and does not warn."""
        self.check_text(text)
        with one_sentence("the tokenizer cannot encode the text"):
            return self.backend.encode(text, add_special_tokens=add_special_tokens)

    def check_text(self, text: str) -> str:
        """Returns the text. Raises ValueError for one that cannot be encoded."""
        if not isinstance(text, str):
            raise ValueError(f"the text is {text!r:.60}; allowed: a str")
        most = self._max_text_bytes
        require(
            len(text) <= most and _utf8_size(text) <= most,
            f"the text has {len(text):,} characters; allowed with this tokenizer: {most:,} bytes "
            "in UTF-8",
        )
        return text

    @cached_property
    def longest_token(self) -> int:
        """Counts the characters of the longest token: no token stands for more of a text."""
        return max(map(len, self.backend.get_vocab()), default=0)

    @cached_property
    def _max_text_bytes(self) -> int:
        return max_text_bytes(self.backend)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Returns the text of token ids (a list or a one-dimensional array).

        Ids that no token has are left out. Raises ValueError for what is no list of up to
        1,048,576 whole numbers from 0 to 4,294,967,295, and if the tokenizer fails.
        """
        ids = _token_ids(ids)
        with one_sentence("the tokenizer cannot decode the ids"):
            return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def pieces(self, ids: Iterable[int]) -> dict[str, str]:
        """Returns the text of each token alone, by its id in decimal, as JSON has keys."""
        return {str(each): self.decode([each], skip_special_tokens=False) for each in ids}

    def apply_chat_template(self, messages: Messages, add_generation_prompt: bool = True) -> str:
        """Renders a chat as the model was trained to read it.

        Args:
          messages: each with a `"role"` (`system`, `user` or `assistant`) and `"content"`: a text,
            or a list of parts (`{"type": "text", "text": "..."}`), which are joined.
          add_generation_prompt: end with the header of the assistant's answer.

        Raises:
          ValueError: no template, or one that does not parse, raises, or reaches for what the
            sandbox forbids; what is not such a list of messages, or cannot be encoded.
        """
        messages = checked_messages(messages, self.check_text)
        return self._rendered(messages, add_generation_prompt)

    def _rendered(self, messages: Messages, add_generation_prompt: bool) -> str:
        if self.chat_template is None:
            raise ValueError(
                "this tokenizer has no chat template: add chat_template.jinja to its folder, "
                "or encode the prompt as plain text"
            )
        variables = {"tools": None, "documents": None, **self.special_tokens, **self.variables}
        variables |= {"messages": messages, "add_generation_prompt": add_generation_prompt}
        return render(self.chat_template, variables)

    def encode_chat(
        self,
        messages: Messages,
        add_generation_prompt: bool = True,
        *,
        tokens_in_messages: bool = False,
    ) -> list[int]:
        """Returns token ids of `apply_chat_template`, in which the template alone gives control
        tokens: where a message spells one, that is encoded as the text that it is.

        Args:
          messages: As for `apply_chat_template`.
          tokens_in_messages: encode it as the token, as families' own code does; then who writes a
            message can end it and begin a turn of any role.

        Raises:
          ValueError: As `apply_chat_template`, and for a template that changes a message around a
            control token, so that its tokens cannot be told from the template's.
        """
        messages = checked_messages(messages, self.check_text)
        text = self._rendered(messages, add_generation_prompt)
        if tokens_in_messages:
            return self.encode(text)
        return self._encoded(text, self._spelled_by_messages(text, messages, add_generation_prompt))

    def encode_plain(self, text: str) -> list[int]:
        """Returns token ids of a text; a control token that it spells is the text that it is.

        Raises ValueError as `encode`."""
        return self._encoded(text, self._control_spans(text))

    def _encoded(self, text: str, plain: Iterable[Span]) -> list[int]:
        """Returns token ids of a text in which some spans, in order, have no control token."""
        ids, at = [], 0
        for start, end in plain:
            ids += [*self.encode(text[at:start]), *self._without_control.encode(text[start:end])]
            at = end
        return ids + self.encode(text[at:])

    def _spelled_by_messages(
        self, text: str, messages: Messages, add_generation_prompt: bool
    ) -> list[Span]:
        """Returns spans of control tokens in a rendered text that come from messages.

        The template runs once more, with marks around the control tokens that messages spell. So it
        finds in a message what it looks for (`</think>`), and the marks show what became of it.
        """
        texts: list[str] = []
        each_text(messages, texts.append)
        spelled = [each[slice(*span)] for each in texts for span in self._control_spans(each)]
        if not spelled:
            return []
        for open_ends in (False, True):
            marks = Marks(spelled, (self.chat_template or "", *texts), open_ends)
            marked = each_text(messages, partial(marks.around, spans_of=self._control_spans))
            if marks.find(self._rendered(marked, add_generation_prompt), text):
                return [span for span in self._control_spans(text) if marks.are_at(span)]
        raise ValueError(
            f"the chat template changes messages that spell {sorted({*spelled})!r:.200}; allowed: "
            "messages without control tokens, or tokens_in_messages=True"
        )

    def _control_spans(self, text: str) -> list[Span]:
        """Returns where a text spells control tokens."""
        found, added = self.encoding(text), self.backend.get_added_tokens_decoder()
        return [  # unknown characters have the unknown token as well, once for each byte
            span
            for i, span in zip(found.ids, found.offsets, strict=True)
            if i in self._control and added[i].content.strip() in text[slice(*span)]
        ]

    @cached_property
    def _control(self) -> frozenset[int]:
        """Ids of special tokens, and of other added ones that the template itself spells."""
        template = self.chat_template or ""
        return frozenset(
            i
            for i, token in self.backend.get_added_tokens_decoder().items()
            if token.special or (token.content.strip() and token.content in template)
        )

    @cached_property
    def _without_control(self) -> "Tokenizer":
        description = json.loads(self.backend.to_str())
        added = description["added_tokens"]
        description["added_tokens"] = [each for each in added if each["id"] not in self._control]
        return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(description)), {})


def has_tokenizer(folder: Path) -> bool:
    """Tells whether a folder has files that `Tokenizer.from_folder` reads."""
    return any(all((folder / name).is_file() for name in names) for names in _BASES)


def _from_vocabulary(folder: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    file = folder / _ADDED
    added = read_object(_of_allowed_size(file)) if file.is_file() else {}
    vocab = read_object(_of_allowed_size(folder / _VOCABULARY))
    merges = _parsed(folder / _MERGES, str)
    try:
        return build_backend(data_from_vocabulary(vocab, merges, added, config))
    except ValueError as error:
        raise ValueError(shortened(f"cannot parse {_VOCABULARY} in {folder}: {error}")) from error


def _default_template(found: Any, folder: str | Path) -> str | None:
    if isinstance(found, list) and all(isinstance(each, dict) for each in found):
        found = {each.get("name"): each.get("template") for each in found}.get("default")
    if not isinstance(found, str | None):
        raise ValueError(f"{folder}: chat_template is {found!r:.60}; allowed: text, or named texts")
    return found


def _utf8_size(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the text has {text[error.start]!r} at character {error.start}, half of a surrogate "
            "pair; allowed: whole characters"
        ) from None


def _token_ids(ids: Iterable[int]) -> list[int]:
    try:
        ids = list(map(operator.index, ids))  # arrays have whole numbers of types of their own
    except TypeError as error:
        raise ValueError(f"ids are {ids!r:.60}; allowed: whole numbers ({error})") from error
    require(len(ids) <= MAX_DECODED_IDS, f"there are {len(ids)} ids; allowed: {MAX_DECODED_IDS}")
    for i in ids:
        if not 0 <= i <= _MAX_ID:
            raise ValueError(shortened(f"a token id is {i}; allowed: 0 to {_MAX_ID}"))
    return ids


def _parsed(path: Path, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(_of_allowed_size(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise ValueError(shortened(f"cannot parse {path}: {error}")) from error


def _of_allowed_size(path: Path) -> Path:
    size = path.stat().st_size
    require(size <= MAX_FILE_BYTES, f"{path} has {size:,} bytes; allowed: {MAX_FILE_BYTES:,}")
    return path


def _special_tokens(config: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Returns tokens by role; a config spells one as a string or an object with its `content`."""
    spelled = {
        role: token.get("content") if isinstance(token, dict) else token
        for role, token in config.items()
        if role.endswith("_token")
    }
    tokens = {role: token for role, token in spelled.items() if isinstance(token, str)}
    for role, token in tokens.items():
        with one_sentence(f"{folder}: {role} is {token!r:.60}"):
            _utf8_size(token)
    return tokens
