"""Text to token ids and back, and the chat template of a checkpoint."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

import tokenizers

Messages = Sequence[Mapping[str, Any]]  # each with "role" and "content"


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer with its special tokens and chat template."""

    backend: tokenizers.Tokenizer
    special_tokens: Mapping[str, str]
    """By role (`"eos_token"`), as the checkpoint names them."""
    chat_template: str | None = None
    """Jinja source; None where the checkpoint has none."""

    @classmethod
    def from_folder(cls, folder: str | Path) -> Self:
        """Reads a folder in the Hugging Face layout; only `tokenizer.json` must be there.

        Of two places that say the same, `tokenizer_config.json` wins over
        `special_tokens_map.json`, and `chat_template.jinja` wins over both.

        Raises FileNotFoundError without `tokenizer.json`, ValueError for what cannot be parsed.
        """
        folder = Path(folder)
        config = _read_json(folder / "special_tokens_map.json")
        config |= _read_json(folder / "tokenizer_config.json")
        template_file = folder / "chat_template.jinja"
        if template_file.is_file():
            config["chat_template"] = _parsed(template_file, str)
        template = config.get("chat_template")
        if isinstance(template, list):  # of several the one that is named so
            template = {each["name"]: each["template"] for each in template}.get("default")
        if not (folder / "tokenizer.json").is_file():
            raise FileNotFoundError(f"no tokenizer.json in {folder}")
        return cls(
            _parsed(folder / "tokenizer.json", tokenizers.Tokenizer.from_str),
            _special_tokens(config),
            template,
        )

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
        """Returns token ids of a text; the spelling of a special token becomes that token."""
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Returns the text of token ids (a list or a one-dimensional array)."""
        return self.backend.decode(list(map(int, ids)), skip_special_tokens=skip_special_tokens)

    def apply_chat_template(self, messages: Messages, add_generation_prompt: bool = True) -> str:
        """Renders a chat as the model was trained to read it.

        Args:
          messages: each with `"role"` and `"content"`.
          add_generation_prompt: end with the header of the assistant's answer.

        Raises:
          ValueError: no template, or one that does not parse, raises, or reaches for what the
            sandbox forbids.
        """
        if self.chat_template is None:
            raise ValueError(
                "this tokenizer has no chat template: add chat_template.jinja to its folder, "
                "or encode the prompt as plain text"
            )
        try:
            return _renderer(self.chat_template)(
                {"tools": None, "documents": None, **self.special_tokens},
                messages=messages,
                add_generation_prompt=add_generation_prompt,
            )
        except Exception as error:  # a template is foreign code and may raise anything
            problem = f"{type(error).__name__}: {error}"
            raise ValueError(f"the chat template failed with {problem}") from error

    def encode_chat(self, messages: Messages, add_generation_prompt: bool = True) -> list[int]:
        """Returns token ids of `apply_chat_template` with the same arguments."""
        return self.encode(self.apply_chat_template(messages, add_generation_prompt))


@cache
def _renderer(template: str) -> Callable[..., str]:
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # slow to import, seldom needed

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    # Unlike Jinja's own, it leaves `<`, `>`, `&` and non-ASCII letters as they are.
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda spelling: datetime.now().strftime(spelling)
    return environment.from_string(template).render


def _raise_exception(message: str) -> None:
    raise ValueError(message)


def _parsed(path: Path, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except Exception as error:  # tokenizers raises bare Exception
        raise ValueError(f"cannot parse {path}: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    """Reads the object in an optional file, empty where there is no file."""
    content = _parsed(path, json.loads) if path.is_file() else {}
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns tokens by role; a config spells one as a string or an object with its `content`."""
    spelled = {
        role: token.get("content") if isinstance(token, dict) else token
        for role, token in config.items()
        if role.endswith("_token")
    }
    return {role: token for role, token in spelled.items() if isinstance(token, str)}
