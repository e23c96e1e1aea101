"""Text to token ids and back, and the chat template of a checkpoint."""

import hashlib
import json
import operator
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import tokenizers

from llada_jax.chat_template import render
from llada_jax.config import read_object, require, shortened
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

Messages = Sequence[Mapping[str, Any]]  # each with "role" and "content"
_VOCABULARY, _MERGES, _ADDED = "vocab.json", "merges.txt", "added_tokens.json"
_BASES = (("tokenizer.json",), (_VOCABULARY, _MERGES))
"""Files that a folder needs for text: one of these."""
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
    _VOCABULARY, _MERGES, _ADDED,
)  # fmt: skip
MAX_DECODED_IDS = 1 << 20
_MAX_ID = (1 << 32) - 1  # of the tokenizers library; ids that no token has decode to nothing
_MAX_MESSAGE_LEVELS = 64


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
            hint = "a tokenizer.json beside the file is read instead"
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
        the tokenizer fails.
        """
        return self._encode(text, add_special_tokens=add_special_tokens).ids

    def _encode(self, text: str, add_special_tokens: bool = False) -> tokenizers.Encoding:
        self._check_text(text)
        with one_sentence("the tokenizer cannot encode the text"):
            return self.backend.encode(text, add_special_tokens=add_special_tokens)

    def _check_text(self, text: str) -> str:
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
          messages: each with `"role"` and `"content"`.
          add_generation_prompt: end with the header of the assistant's answer.

        Raises:
          ValueError: no template, or one that does not parse, raises, or reaches for what the
            sandbox forbids; messages that nest too deep, or whose text cannot be encoded.
        """
        if self.chat_template is None:
            raise ValueError(
                "this tokenizer has no chat template: add chat_template.jinja to its folder, "
                "or encode the prompt as plain text"
            )
        messages = _each_text(messages, self._check_text)
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
          tokens_in_messages: encode it as the token, as families' own code does; then who writes a
            message can end it and begin a turn of any role.
        """
        stand_ins = {} if tokens_in_messages else self._stand_ins(messages)
        if not stand_ins:
            return self.encode(self.apply_chat_template(messages, add_generation_prompt))
        messages = _each_text(messages, partial(_replaced, stand_ins))
        text = self.apply_chat_template(messages, add_generation_prompt)
        spelled = {stand_in: token for token, stand_in in stand_ins.items()}
        ids = []
        for piece in re.split(f"([{''.join(spelled)}])", text):
            tokenizer = self._without_control if piece in spelled else self
            ids += tokenizer.encode(spelled.get(piece, piece))
        return ids

    def _stand_ins(self, messages: Messages) -> dict[str, str]:
        """Returns what messages spell control tokens with, the longest first, each with a character
        (of private use, as far as they reach) that stands nowhere else."""
        texts: list[str] = []
        _each_text(messages, texts.append)
        spelled = set()
        for text in texts:
            found = self._encode(text)
            places = zip(found.ids, found.offsets, strict=True)
            spelled |= {text[slice(*place)] for i, place in places if i in self._control}
        spelled.discard("")
        taken = {*(self.chat_template or ""), *"".join(texts)}
        free = (chr(code) for code in range(0xE000, 0x110000) if chr(code) not in taken)
        return {each: next(free) for each in sorted(spelled, key=len, reverse=True)}

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


def _each_text(value: Any, change: Callable[[str], Any], levels: int = _MAX_MESSAGE_LEVELS) -> Any:
    """Returns what JSON can hold with every text changed, names of keys apart."""
    if isinstance(value, str):
        return change(value)
    deeper = f"messages nest deeper than {_MAX_MESSAGE_LEVELS} levels; allowed: less"
    require(levels > 0 or not isinstance(value, Mapping | list | tuple), deeper)
    if isinstance(value, Mapping):
        return {key: _each_text(each, change, levels - 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_each_text(each, change, levels - 1) for each in value]
    return value


def _replaced(replacements: Mapping[str, str], text: str) -> str:
    for old, new in replacements.items():
        text = text.replace(old, new)
    return text


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
