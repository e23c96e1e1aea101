"""Builds the tokenizer of the bundled tiny model.

    python -m llada_jax.training.tokenizer llada_jax/assets/tiny

writes the bundled files again. It is a byte-level BPE of at most 512 entries that knows printable
ASCII and the newline and no other character. Each digit is a token of its own, so arithmetic has
one spelling.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from itertools import cycle, islice
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from llada_jax.evaluation.tasks import word_problems

SPECIAL_TOKENS = {
    "pad_token": "<|endoftext|>",
    "eos_token": "<|endoftext|>",
    "bos_token": "<|startoftext|>",
    "unk_token": "<|unk|>",
    "mask_token": "<|mask|>",
}
CHAT_TOKENS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{ message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    "{% endif %}"
)
ROLES = ("user", "assistant")
NEWLINE_AND_SPACE = ("\u010a", "\u0120")  # as byte-level BPE spells them
ALPHABET = (*NEWLINE_AND_SPACE, *map(chr, range(ord("!"), ord("~") + 1)))


def build_tokenizer(texts: Iterable[str], vocab_size: int = 512) -> Tokenizer:
    """Learns the merges from texts; the same texts give the same tokenizer.

    Args:
        vocab_size: the most entries there may be; few or short texts give fewer.

    Raises:
        ValueError: `vocab_size` has no room for the special tokens and the alphabet.
    """
    special_tokens = list(dict.fromkeys((*SPECIAL_TOKENS.values(), *CHAT_TOKENS)))
    smallest = len(special_tokens) + len(ALPHABET)
    if vocab_size < smallest:
        raise ValueError(f"vocab_size must be {smallest} or more, got {vocab_size}")
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL_TOKENS["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        initial_alphabet=list(ALPHABET),
        limit_alphabet=len(ALPHABET),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_with_roles(texts), trainer)
    return tokenizer


def _with_roles(texts: Iterable[str]) -> Iterator[str]:
    """Yields a role after every text, for roles are in every chat and should be whole tokens."""
    for text, role in zip(texts, cycle(ROLES), strict=False):
        yield text
        yield role


def save_tokenizer(tokenizer: Tokenizer, folder: str | Path) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json`, in the Hugging Face layout."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = SPECIAL_TOKENS | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
    }
    _write_text(folder / "tokenizer.json", tokenizer.to_str(pretty=True))
    _write_text(folder / "tokenizer_config.json", json.dumps(config, indent=2))


def _write_text(path: Path, text: str) -> None:
    path.write_text(text + "\n", encoding="utf-8", newline="\n")


def word_problem_texts(count: int = 20_000, seed: int = 0) -> Iterator[str]:
    """Questions and answers of the first train problems of a seed, of middle difficulty."""
    for problem in islice(word_problems.TASK.items(seed, "train", difficulty=2), count):
        yield problem.question
        yield problem.answer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Builds the tokenizer of the tiny model.")
    parser.add_argument("folder", type=Path)
    save_tokenizer(build_tokenizer(word_problem_texts()), parser.parse_args().folder)
