"""Examples to fine-tune on, from a file of one's own: one JSON object a line.

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
    {"prompt": "...", "completion": "..."}

Of a chat, every turn of the assistant is an example, whose prompt is all that came before it in the
tokenizer's template. A pair is plain text, as it stands. An answer ends with the token that ends a
turn, or a text, and the canvas behind it is padded with EOS, which is learnt as well (LLaDA, arXiv
2502.09992, section 2.3).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from llada_jax.config import ModelConfig, require
from llada_jax.text import Tokenizer
from llada_jax.training.data import Example, ExampleSource

FORMATS = (
    '{"messages": [{"role": "user", "content": "..."}, ...]} or '
    '{"prompt": "...", "completion": "..."}'
)
ROLES = ("system", "user", "assistant")


def read_examples(
    path: str | Path, tokenizer: Tokenizer, model: ModelConfig, longest: int
) -> list[Example]:
    """Reads all examples of a file, in its order.

    Args:
      longest: tokens that an answer may have, the one that ends it included.

    Raises FileNotFoundError, and ValueError that names the line: what is no such object, a chat
    that does not end with the assistant, an answer that is empty or too long, and a canvas longer
    than the model takes.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}; allowed: lines of {FORMATS}")
    lines = path.read_text(encoding="utf-8").splitlines()
    examples = []
    for number, line in enumerate(tqdm(lines, desc=path.name, mininterval=1, leave=False), 1):
        where = f"{path}, line {number},"
        for example in _examples(_parsed(line, where), tokenizer, model, where):
            _check(example, model, longest, where)
            examples.append(example)
    require(len(examples) > 0, f"{path} is empty; allowed: lines of {FORMATS}")
    return examples


def shuffled(examples: Sequence[Example], seed: int) -> ExampleSource:
    """Makes the source that gives all examples once, in a random order, then all in another."""

    @lru_cache(maxsize=2)
    def order(epoch: int) -> np.ndarray:
        return np.random.default_rng([seed, epoch]).permutation(len(examples))

    def source(index: int) -> Example:
        epoch, place = divmod(index, len(examples))
        return examples[order(epoch)[place]]

    return source


def _parsed(line: str, where: str) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is no JSON: {error}; allowed: {FORMATS}") from error
    is_chat = isinstance(found, dict) and isinstance(found.get("messages"), list)
    is_pair = isinstance(found, dict) and all(
        isinstance(found.get(key), str) for key in ("prompt", "completion")
    )
    require(is_chat != is_pair, f"{where} is {line:.80}; allowed: {FORMATS}")
    return found


def _examples(
    found: Mapping[str, Any], tokenizer: Tokenizer, model: ModelConfig, where: str
) -> Iterator[Example]:
    if "completion" in found:
        prompt = tokenizer.encode(found["prompt"], add_special_tokens=True)
        yield _example(prompt, found["completion"], tokenizer, model.eos_id, where)
        return
    messages = found["messages"]
    for place, message in enumerate(messages, 1):
        fits = isinstance(message, dict) and isinstance(message.get("content"), str)
        require(
            fits and message.get("role") in ROLES,
            f"{where} has message {place} {message!s:.80}; allowed: a role of "
            f"{', '.join(ROLES)}, and content that is text",
        )
    answers = [place for place, each in enumerate(messages) if each["role"] == "assistant"]
    require(
        len(answers) > 0 and answers[-1] == len(messages) - 1 and answers[0] > 0,
        f"{where} has the roles {[each['role'] for each in messages]}; allowed: a chat that begins "
        "with another and ends with the assistant",
    )
    end = model.eos_id if model.eot_id is None else model.eot_id
    for place in answers:
        prompt = tokenizer.encode_chat(messages[:place])
        yield _example(prompt, messages[place]["content"], tokenizer, end, where)


def _example(
    prompt: Sequence[int], answer: str, tokenizer: Tokenizer, end: int | None, where: str
) -> Example:
    require(bool(answer), f"{where} has an empty answer; allowed: a character or more")
    require(end is not None, "the model has no token that ends a text; allowed: one with eos_id")
    return Example(prompt, [*tokenizer.encode(answer), end])


def _check(example: Example, model: ModelConfig, longest: int, where: str) -> None:
    prompt, answer = map(len, example[:2])
    require(
        answer <= longest,
        f"{where} has an answer of {answer} tokens; allowed: up to {longest} (max_gen_length)",
    )
    require(
        prompt + longest <= model.max_length,
        f"{where} has a prompt of {prompt} tokens; allowed: up to {model.max_length - longest} "
        f"(the model's max_length of {model.max_length} less max_gen_length)",
    )
