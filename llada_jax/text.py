"""Converts text to token ids and back, and renders chats with a checkpoint's template.

The tokenizers library does the encoding. This module adds what a server for untrusted files and
messages needs: limits on sizes, errors of one sentence, and chats in which a message cannot contain
control tokens. A message that spells `<|eot_id|>` must not end its turn, so `encode_chat` finds the
control tokens of a rendered chat that come from messages and encodes them as ordinary text.
"""

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
from llada_jax.messages import Marks, Messages, Span, checked_messages, map_texts
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
"""Sets of files from which a tokenizer can be built; a folder needs one of them."""
TOKENIZER_SOURCES = f"tokenizer.json, or {_VOCABULARY} with {_MERGES}"
"""The same in words, for messages."""
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
    _VOCABULARY, _MERGES, _ADDED,
)  # fmt: skip
MAX_DECODED_IDS = 1 << 20
_SHOWN = 8  # characters in a warning
_MAX_ID = (1 << 32) - 1  # largest id of the tokenizers library; unknown ids decode to nothing


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A tokenizer with its special tokens and chat template.

    Tokenizers with equal content are equal and have the same hash, because they are static fields
    of models, which JAX compares to find compiled functions.
    """

    backend: tokenizers.Tokenizer
    special_tokens: Mapping[str, str]
    """Tokens by role (`"eos_token"`), with the checkpoint's names of roles."""
    chat_template: str | None = None
    """Jinja source, or None if the checkpoint has no template."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the template, in addition to the messages and special tokens."""
    files: Sequence[Path] = ()
    """Files that `from_folder` read; empty for tokenizers from other sources."""

    @classmethod
    def from_folder(cls, folder: str | Path) -> Self:
        """Reads a folder in the Hugging Face layout: `tokenizer.json`, or else `vocab.json` and
        `merges.txt` (with `added_tokens.json`), and the configuration files next to them.

        If files disagree, `tokenizer_config.json` takes precedence over `special_tokens_map.json`,
        and `chat_template.jinja` over both. The files may come from strangers:
        `llada_jax.tokenizer_json` checks them.

        Raises FileNotFoundError if the folder has no tokenizer, and ValueError if a file cannot be
        parsed or fails a check.
        """
        folder = Path(folder)
        config = {}
        for file in (folder / "special_tokens_map.json", folder / "tokenizer_config.json"):
            config |= read_object(_of_allowed_size(file)) if file.is_file() else {}
        template_file = folder / "chat_template.jinja"
        if template_file.is_file():
            config["chat_template"] = _parse(template_file, str)
        template = _default_template(config.get("chat_template"), folder)
        if not has_tokenizer(folder):
            raise FileNotFoundError(
                f"no tokenizer.json in {folder}, and no {_VOCABULARY} with {_MERGES}"
            )
        if (folder / "tokenizer.json").is_file():
            backend = _parse(folder / "tokenizer.json", backend_from_json)
        else:
            backend = _from_vocabulary(folder, config)
        files = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
        return cls(backend, _special_tokens(config, folder), template, files=files)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], path: str | Path) -> Self | None:
        """Builds the tokenizer of a GGUF file, which encodes as llama.cpp does, or returns None if
        the file has no tokenizer.

        Args:
          metadata: From `checkpoint.gguf.read_header` with the lists `GGUF_LISTS`.
          path: The file, for error messages.

        Raises ValueError for an unknown kind of tokenizer, and for data that fails a check.
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
        """Writes the tokenizer into an existing folder for `from_folder`, and returns the paths.

        Copies the files that it was read from, or else writes `tokenizer_config.json` and
        `chat_template.jinja`. There is always a `tokenizer.json`.
        """
        paths = [Path(shutil.copyfile(file, folder / file.name)) for file in self.files]
        content = {"tokenizer.json": self.backend.to_str()}
        if not self.files:
            content["tokenizer_config.json"] = json.dumps(self.special_tokens)
            if self.chat_template is not None:
                content["chat_template.jinja"] = self.chat_template
        missing = [folder / name for name in content if folder / name not in paths]
        for path in missing:
            path.write_bytes(content[path.name].encode())
        return [*paths, *missing]

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
        """Number of tokens, special ones included. A model's embedding may have more rows."""
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
        """Returns the token ids of a text. The spelling of a special token becomes that token.

        Raises ValueError if the text has lone surrogates, is too long (more than 1 to 8 MB for
        usual tokenizers, less if the normalizer can lengthen a text), or the tokenizer fails. Warns
        once about characters without a token, which are lost when the ids are decoded.
        """
        encoding = self.encoding(text, add_special_tokens=add_special_tokens)
        unknown = self.special_tokens.get("unk_token")
        if unknown is not None and self._id("unk_token") in encoding.ids:
            self._warn_of_unknown(text, unknown, encoding)
        return encoding.ids

    def _warn_of_unknown(self, text: str, unknown: str, encoding: tokenizers.Encoding) -> None:
        tokens = zip(encoding.tokens, encoding.offsets, strict=True)
        lost = {text[slice(*span)] for token, span in tokens if token == unknown}
        lost = sorted(characters for characters in lost if unknown not in characters)
        if lost and not self._has_warned:
            self._has_warned.append(True)
            more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
            shown = ", ".join(f"{characters!r:.20}" for characters in lost[:_SHOWN])
            warnings.warn(
                f"the tokenizer has no token for {shown}{more}: each becomes {unknown}, and is "
                "lost when it is decoded",
                stacklevel=3,
            )

    @cached_property
    def _has_warned(self) -> list[bool]:
        return []

    def encoding(self, text: str, add_special_tokens: bool = False) -> tokenizers.Encoding:
        """Returns the tokenizers library's encoding of a text: ids, tokens and character offsets.

        Raises ValueError as `encode`, but does not warn."""
        self.check_text(text)
        with one_sentence("the tokenizer cannot encode the text"):
            return self.backend.encode(text, add_special_tokens=add_special_tokens)

    def check_text(self, text: str) -> str:
        """Returns the text. Raises ValueError if it is not a str, too long, or not Unicode."""
        if not isinstance(text, str):
            raise ValueError(f"the text is {text!r:.60}; allowed: a str")
        max_bytes = self._max_text_bytes
        require(
            len(text) <= max_bytes and _utf8_size(text) <= max_bytes,
            f"the text has {len(text):,} characters; allowed with this tokenizer: {max_bytes:,} "
            "bytes in UTF-8",
        )
        return text

    @cached_property
    def longest_token(self) -> int:
        """Length of the longest token in characters, which bounds the text of n tokens."""
        return max(map(len, self.backend.get_vocab()), default=0)

    @cached_property
    def _max_text_bytes(self) -> int:
        return max_text_bytes(self.backend)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Returns the text of token ids (a list or a one-dimensional array).

        Ids without a token are left out. Raises ValueError unless the ids are up to 1,048,576 whole
        numbers from 0 to 4,294,967,295, and if the tokenizer fails.
        """
        ids = _token_ids(ids)
        with one_sentence("the tokenizer cannot decode the ids"):
            return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def pieces(self, ids: Iterable[int]) -> dict[str, str]:
        """Returns the text of each single token by its id, as a decimal string for use in JSON."""
        return {str(i): self.decode([i], skip_special_tokens=False) for i in ids}

    def apply_chat_template(self, messages: Messages, add_generation_prompt: bool = True) -> str:
        """Renders a chat to text in the format that the model was trained on.

        Args:
          messages: Each has a `"role"` (`system`, `user` or `assistant`) and `"content"`: a text,
            or a list of parts (`{"type": "text", "text": "..."}`), which are joined.
          add_generation_prompt: Whether to end with the header of the assistant's answer.

        Raises:
          ValueError: There is no template, it does not parse, raises an error or does something
            that the sandbox forbids; or the messages do not have this form or cannot be encoded.
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
        """Returns the token ids of a chat, in which only the template can add control tokens.

        If a message spells a control token, its characters are encoded as ordinary text.

        Args:
          messages: As for `apply_chat_template`.
          add_generation_prompt: As for `apply_chat_template`.
          tokens_in_messages: Whether to encode control tokens in messages as such, as the reference
            code of most families does. The author of a message can then end it and begin a turn of
            any role.

        Raises:
          ValueError: As `apply_chat_template`, and if the template changes a message around a
            control token, so that it cannot be distinguished from the template's control tokens.
        """
        messages = checked_messages(messages, self.check_text)
        text = self._rendered(messages, add_generation_prompt)
        if tokens_in_messages:
            return self.encode(text)
        return self._encoded(text, self._spelled_by_messages(text, messages, add_generation_prompt))

    def encode_plain(self, text: str) -> list[int]:
        """Returns the token ids of a text, with control tokens that it spells as ordinary text.

        Raises ValueError as `encode`."""
        return self._encoded(text, self._control_spans(text))

    def _encoded(self, text: str, plain: Iterable[Span]) -> list[int]:
        """Encodes a text, without control tokens in the spans `plain`, which are in order."""
        ids, at = [], 0
        for start, end in plain:
            ids += [*self.encode(text[at:start]), *self._without_control.encode(text[start:end])]
            at = end
        return ids + self.encode(text[at:])

    def _spelled_by_messages(
        self, text: str, messages: Messages, add_generation_prompt: bool
    ) -> list[Span]:
        """Returns the spans of control tokens in a rendered chat that come from messages.

        The template is rendered a second time, with marks around the control tokens of messages.
        The tokens themselves stay in place, since a template may search messages for them
        (`</think>`); the positions of the marks in the result show where they went.
        """
        texts: list[str] = []
        map_texts(messages, texts.append)
        spelled = [part[slice(*span)] for part in texts for span in self._control_spans(part)]
        if not spelled:
            return []
        for open_ends in (False, True):
            marks = Marks(spelled, (self.chat_template or "", *texts), open_ends)
            marked = map_texts(messages, partial(marks.around, spans_of=self._control_spans))
            if marks.find(self._rendered(marked, add_generation_prompt), text):
                return [span for span in self._control_spans(text) if marks.are_at(span)]
        raise ValueError(
            f"the chat template changes messages that spell {sorted({*spelled})!r:.200}; allowed: "
            "messages without control tokens, or tokens_in_messages=True"
        )

    def _control_spans(self, text: str) -> list[Span]:
        """Returns the spans in which a text spells control tokens."""
        encoding, added = self.encoding(text), self.backend.get_added_tokens_decoder()
        return [  # unknown characters also get a special token, which they do not spell
            span
            for i, span in zip(encoding.ids, encoding.offsets, strict=True)
            if i in self.control_ids and added[i].content.strip() in text[slice(*span)]
        ]

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Ids of special tokens, and of other added tokens that the template spells."""
        template = self.chat_template or ""
        return frozenset(
            i
            for i, token in self.backend.get_added_tokens_decoder().items()
            if token.special or (token.content.strip() and token.content in template)
        )

    @cached_property
    def _without_control(self) -> "Tokenizer":
        """A copy that encodes the spelling of a control token as ordinary text."""
        description = json.loads(self.backend.to_str())
        added = description["added_tokens"]
        description["added_tokens"] = [
            token for token in added if token["id"] not in self.control_ids
        ]
        return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(description)), {})


def has_tokenizer(folder: Path) -> bool:
    """Returns whether `Tokenizer.from_folder` finds a tokenizer in a folder."""
    return any(all((folder / name).is_file() for name in names) for names in _BASES)


def _from_vocabulary(folder: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    file = folder / _ADDED
    added = read_object(_of_allowed_size(file)) if file.is_file() else {}
    vocab = read_object(_of_allowed_size(folder / _VOCABULARY))
    merges = _parse(folder / _MERGES, str)
    try:
        return build_backend(data_from_vocabulary(vocab, merges, added, config))
    except ValueError as error:
        raise ValueError(shortened(f"cannot parse {_VOCABULARY} in {folder}: {error}")) from error


def _default_template(template: Any, folder: str | Path) -> str | None:
    """Returns the template of a configuration, or the one named `default` of several."""
    if isinstance(template, list) and all(isinstance(entry, dict) for entry in template):
        template = {entry.get("name"): entry.get("template") for entry in template}.get("default")
    if not isinstance(template, str | None):
        raise ValueError(
            f"{folder}: chat_template is {template!r:.60}; allowed: text, or named texts"
        )
    return template


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
        ids = list(map(operator.index, ids))  # also accepts NumPy's integers
    except TypeError as error:
        raise ValueError(f"ids are {ids!r:.60}; allowed: whole numbers ({error})") from error
    require(len(ids) <= MAX_DECODED_IDS, f"there are {len(ids)} ids; allowed: {MAX_DECODED_IDS}")
    for i in ids:
        if not 0 <= i <= _MAX_ID:
            raise ValueError(shortened(f"a token id is {i}; allowed: 0 to {_MAX_ID}"))
    return ids


def _parse(path: Path, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(_of_allowed_size(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise ValueError(shortened(f"cannot parse {path}: {error}")) from error


def _of_allowed_size(path: Path) -> Path:
    size = path.stat().st_size
    require(size <= MAX_FILE_BYTES, f"{path} has {size:,} bytes; allowed: {MAX_FILE_BYTES:,}")
    return path


def _special_tokens(config: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Returns the special tokens by role; each is a string or an object with `content`."""
    contents = {
        role: token.get("content") if isinstance(token, dict) else token
        for role, token in config.items()
        if role.endswith("_token")
    }
    tokens = {role: token for role, token in contents.items() if isinstance(token, str)}
    for role, token in tokens.items():
        with one_sentence(f"{folder}: {role} is {token!r:.60}"):
            _utf8_size(token)
    return tokens
