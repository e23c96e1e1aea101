"""Prompts for questions: chats of one turn, as token ids of a model's tokenizer."""

from collections.abc import Iterable

import llada_jax as lj
from llada_jax.text import Tokenizer


def tokenizer_of(model: lj.Model) -> Tokenizer:
    """Returns a model's tokenizer. Raises ValueError if it has none."""
    if model.tokenizer is None:
        raise ValueError(f"model {model.source!r} has no tokenizer.json; allowed: one that has")
    return model.tokenizer


def prompts_of(model: lj.Model, questions: Iterable[str]) -> list[list[int]]:
    """Returns a prompt for each question. Raises ValueError for a model without a tokenizer."""
    encode = tokenizer_of(model).encode_chat
    return [encode([{"role": "user", "content": question}]) for question in questions]
