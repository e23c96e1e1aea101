"""Examples to fine-tune on, from a file of one's own: one JSON object a line.

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
    {"prompt": "...", "completion": "..."}

Of a chat, every turn of the assistant is an example, behind all before it in the template. A pair
is plain text, as it stands. The canvas behind an answer and the token that ends it is padded with
EOS, which is learnt as well (LLaDA, arXiv 2502.09992, section 2.3).
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from llada_jax.config import ModelConfig, parse_json, require
from llada_jax.text import Tokenizer
from llada_jax.training.data import Example, ExampleSource

FORMATS = (
    '{"messages": [{"role": "user", "content": "..."}, ...]} or '
    '{"prompt": "...", "completion": "..."}'
)
KEYS = {"messages", "prompt", "completion"}
ROLES = ("system", "user", "assistant")


def read_examples(
    path: str | Path, tokenizer: Tokenizer, model: ModelConfig, longest: int
) -> list[Example]:
    """Reads all examples of a file, in its order; `longest` counts the tokens that an answer may
    have, the one that ends it included.

    Raises FileNotFoundError, and ValueError that names the line: what is no such object, a chat
    that does not end with the assistant, an answer that is empty or too long, and a canvas longer
    than the model takes.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}; allowed: lines of {FORMATS}")
    most = model.max_length - 1
    require(longest <= most, f"max_gen_length is {longest}; allowed: up to {most}, for the model")
    examples = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        where = f"{path}, line {number},"
        for prompt, answer, end in _pairs(line, tokenizer, model, where):
            require(bool(answer), f"{where} has an empty answer; allowed: a character or more")
            if end is None:
                raise ValueError("the model has no eos_id; allowed: one that ends texts")
            examples.append(Example(prompt, [*tokenizer.encode(answer), end]))
            shown, room = len(examples[-1].answer), model.max_length - longest
            require(
                shown <= longest and len(prompt) <= room,
                f"{where} has a prompt of {len(prompt)} tokens and an answer of {shown}; allowed: "
                f"up to {room} and {longest} (the model's max_length, max_gen_length)",
            )
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


def _pairs(
    line: str, tokenizer: Tokenizer, model: ModelConfig, where: str
) -> Iterator[tuple[list[int], str, int | None]]:
    """Yields each answer of a line, what comes before it, and the token that ends it."""
    found = parse_json(line, f"{where} is no JSON", FORMATS)
    kinds = {key: type(found[key]) for key in KEYS & found.keys()} if type(found) is dict else {}
    is_pair, is_chat = kinds == {"prompt": str, "completion": str}, kinds == {"messages": list}
    require(is_chat or is_pair, f"{where} is {line:.80}; allowed: {FORMATS}")
    if is_pair:
        prompt = tokenizer.encode(found["prompt"], add_special_tokens=True)
        yield prompt, found["completion"], model.eos_id
        return
    messages = found["messages"]
    for place, message in enumerate(messages, 1):
        fits = isinstance(message, dict) and isinstance(message.get("content"), str)
        require(
            fits and message.get("role") in ROLES,
            f"{where} has message {place} {message!s:.80}; allowed: a role of "
            f"{', '.join(ROLES)}, and content that is text",
        )
    roles = [each["role"] for each in messages]
    require(
        len(roles) > 1 and roles[-1] == "assistant" != roles[0],
        f"{where} has the roles {roles}; allowed: a chat that begins with another and ends with "
        "the assistant",
    )
    for place in (place for place, role in enumerate(roles) if role == "assistant"):
        prompt = tokenizer.encode_chat(messages[:place])
        end = model.eos_id if model.eot_id is None else model.eot_id
        yield prompt, messages[place]["content"], end
