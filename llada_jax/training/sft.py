"""Reads a user's fine-tuning examples from a file with one JSON object per line.

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
    {"prompt": "...", "completion": "..."}

Every assistant turn of a chat is an example; its prompt is the rest of the chat before it, in the
model's template. A prompt with its completion is plain text, without a template. The canvas after
the answer and its end token is padded with EOS, which is learned as well (LLaDA, arXiv 2502.09992,
section 2.3).
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from llada_jax.config import ModelConfig, numbered_lines, parse_json, require, shortened
from llada_jax.messages import checked_messages
from llada_jax.text import Tokenizer
from llada_jax.training.data import Example, ExampleSource

FORMATS = (
    '{"messages": [{"role": "user", "content": "..."}, ...]} or '
    '{"prompt": "...", "completion": "..."}'
)
KEYS = {"messages", "prompt", "completion"}


def read_examples(
    path: str | Path, tokenizer: Tokenizer, model: ModelConfig, longest: int
) -> list[Example]:
    """Reads all examples of a file, in order.

    Args:
      longest: Maximum number of tokens of an answer, its end token included.

    Raises FileNotFoundError, or ValueError with the line's number if a line has another form, a
    chat does not end with the assistant, an answer is empty or too long, or a prompt is too long
    for the model.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}; allowed: lines of {FORMATS}")
    most = model.max_length - 1
    require(longest <= most, f"max_gen_length is {longest}; allowed: up to {most}, for the model")
    examples = []
    for number, line in numbered_lines(path):
        try:
            examples += _examples(line, tokenizer, model, longest)
        except ValueError as error:
            raise ValueError(shortened(f"{path}, line {number}: {error}")) from error
    require(len(examples) > 0, f"{path} is empty; allowed: lines of {FORMATS}")
    return examples


def shuffled(examples: Sequence[Example], seed: int) -> ExampleSource:
    """Returns a source that repeats all examples, in a new random order in each epoch."""

    @lru_cache(maxsize=2)
    def order(epoch: int) -> np.ndarray:
        return np.random.default_rng([seed, epoch]).permutation(len(examples))

    def source(index: int) -> Example:
        epoch, position = divmod(index, len(examples))
        return examples[order(epoch)[position]]

    return source


def _examples(
    line: str, tokenizer: Tokenizer, model: ModelConfig, longest: int
) -> Iterator[Example]:
    entry = parse_json(line, "it is no JSON", FORMATS)
    kinds = {key: type(entry[key]) for key in KEYS & entry.keys()} if type(entry) is dict else {}
    is_pair, is_chat = kinds == {"prompt": str, "completion": str}, kinds == {"messages": list}
    require(is_chat or is_pair, f"it is {line:.80}; allowed: {FORMATS}")
    room = model.max_length - longest
    if is_pair:
        pairs = [(entry["prompt"], entry["completion"])]
        encode, end = partial(tokenizer.encode, add_special_tokens=True), model.eos_id
    else:
        pairs = _turns(checked_messages(entry["messages"], tokenizer.check_text))
        encode = tokenizer.encode_chat
        end = model.eos_id if model.eot_id is None else model.eot_id
    for prompt, answer in pairs:
        require(bool(answer), "it has an empty answer; allowed: a character or more")
        if end is None:
            raise ValueError("the model has no eos_id; allowed: one that ends texts")
        texts = [prompt] if is_pair else [message["content"] for message in prompt]
        _require_short("prompt", sum(map(len, texts)), room * tokenizer.longest_token)
        _require_short("answer", len(answer), longest * tokenizer.longest_token)
        encoded = encode(prompt)  # pyright: ignore[reportArgumentType]
        example = Example(encoded, [*tokenizer.encode_plain(answer), end])
        n_answer = len(example.answer)
        require(
            n_answer <= longest and len(example.prompt) <= room,
            f"it has a prompt of {len(example.prompt)} tokens and an answer of {n_answer}; "
            f"allowed: up to {room} and {longest} (the model's max_length, max_gen_length)",
        )
        yield example


def _turns(messages: Sequence[dict[str, Any]]) -> Iterator[tuple[Sequence[dict[str, Any]], str]]:
    """Yields the messages before each answer of a chat, and the answer."""
    roles = [message["role"] for message in messages]
    require(
        len(roles) > 1 and roles[-1] == "assistant" != roles[0],
        f"it has the roles {roles}; allowed: a chat that begins with another and ends with the "
        "assistant",
    )
    for i, role in enumerate(roles):
        if role == "assistant":
            yield messages[:i], messages[i]["content"]


def _require_short(name: str, characters: int, most: int) -> None:
    """Raises ValueError for texts longer than their maximum number of tokens can encode.

    Checked before the text is encoded, because encoding 10 MB takes 15 s.
    """
    require(
        characters <= most,
        f"it has {'an' if name == 'answer' else 'a'} {name} of {characters:,} characters; allowed: "
        f"up to {most:,}, in the longest tokens",
    )
