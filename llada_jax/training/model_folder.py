"""Exports a finished run as a model folder in Hugging Face's layout, with model card and log."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from llada_jax.checkpoint import save_huggingface
from llada_jax.config import ModelConfig
from llada_jax.io.atomic import new_folder
from llada_jax.model.params import ModelParams
from llada_jax.text import Tokenizer

CARD_FILE = "README.md"
LOG_FILE = "training_log.jsonl"
_LOG_ROWS = 120


def export_model(
    folder: str | Path,
    model: ModelConfig,
    params: ModelParams,
    tokenizer: Tokenizer,
    card: str,
    log: Iterable[Mapping[str, Any]],
    log_before: Iterable[Mapping[str, Any]] = (),
) -> None:
    """Writes weights in bfloat16, configuration, tokenizer, model card and a thinned log.

    `log_before` has the rows of the parent's log, which come first and are not thinned again. A new
    folder is written atomically; in an existing one these files are replaced.
    """
    with new_folder(Path(folder)) as part:
        save_huggingface(part, model, params, "bfloat16")
        tokenizer.save(part)
        (part / CARD_FILE).write_text(card, encoding="utf-8")
        rows = [*log_before, *map(_rounded, thinned(list(log)))]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (part / LOG_FILE).write_text(lines, encoding="utf-8")


def thinned(rows: list[Mapping[str, Any]], limit: int = _LOG_ROWS) -> list[Mapping[str, Any]]:
    """Keeps at most `limit` rows, evenly spread, including the last one."""
    stride = -(-len(rows) // limit) or 1
    return rows[(len(rows) - 1) % stride :: stride]


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: float(f"{value:.5g}") if isinstance(value, float) else value
        for name, value in row.items()
    }
