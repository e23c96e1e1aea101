"""Builds byte-level BPE tokenizers for English tasks, as used by the bundled models.

They support printable ASCII and the newline, and no other characters. Each digit is a separate
token, so a number has one spelling. Special tokens and chat template are those of the bundled
`tiny`.
"""

import json
from collections.abc import Iterable
from itertools import chain, cycle
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from llada_jax.checkpoint import model_path
from llada_jax.config import require

CONFIG_FILE = "tokenizer_config.json"
_CHAT_TOKENS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
ROLES = ("user", "assistant")
_ALPHABET = ("\u010a", "\u0120", *map(chr, range(ord("!"), ord("~") + 1)))
"""The characters in byte-level BPE's spelling; the first two are the newline and the space."""


def build_tokenizer(texts: Iterable[str], vocab_size: int = 512) -> Tokenizer:
    """Learns merges from texts; the same texts give the same tokenizer. Few or short texts give
    fewer than `vocab_size` entries.

    Raises ValueError if `vocab_size` is too small for the special tokens and the alphabet.
    """
    roles = json.loads((model_path("tiny") / CONFIG_FILE).read_text(encoding="utf-8"))
    named = [roles[f"{role}_token"] for role in ("pad", "eos", "bos", "unk", "mask")]
    special_tokens = list(dict.fromkeys((*named, *_CHAT_TOKENS)))
    smallest = len(special_tokens) + len(_ALPHABET)
    require(vocab_size >= smallest, f"vocab_size is {vocab_size}; allowed: {smallest} or more")
    tokenizer = Tokenizer(models.BPE(unk_token=roles["unk_token"]))
    digits = pre_tokenizers.Digits(individual_digits=True)
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, in_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        initial_alphabet=list(_ALPHABET),
        limit_alphabet=len(_ALPHABET),
        show_progress=False,
    )
    # A role follows every text, because roles are in every chat and should be single tokens.
    with_roles = chain.from_iterable(zip(texts, cycle(ROLES), strict=False))
    tokenizer.train_from_iterator(with_roles, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: str | Path) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json`, in the Hugging Face layout."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    content = tokenizer.to_str(pretty=True) + "\n"
    (folder / "tokenizer.json").write_bytes(content.encode())
    (folder / CONFIG_FILE).write_bytes((model_path("tiny") / CONFIG_FILE).read_bytes())
