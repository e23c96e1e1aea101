"""Writes the model card of a trained model: all that is needed to train and evaluate it again."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from experiments.train.curriculum import TaskShare
from llada_jax.checkpoint import model_path
from llada_jax.config import ModelConfig
from llada_jax.evaluation.metrics import Reliability
from llada_jax.model.params import param_count
from llada_jax.training.loop import read_metrics
from llada_jax.training.model_folder import CARD_FILE, LOG_FILE, thinned

CURVE_ROWS = 16
EXACT_MATCH = "/exact_match"
TRAINING_HEADING = "## Training\n"
Metrics = Sequence[Mapping[str, Any]]


class Parent(NamedTuple):
    """The model that a training began with."""

    name: str
    training: str
    """The sections of its card about its training and earlier ones."""
    log: Metrics

    @classmethod
    def of(cls, name: str) -> "Parent":
        """Reads the card and the log of a bundled model or a folder, if present."""
        folder = model_path(name)
        card = folder / CARD_FILE
        text = card.read_text(encoding="utf-8") if card.exists() else ""
        return cls(name, text.partition(TRAINING_HEADING)[2], read_metrics(folder, LOG_FILE))


def model_card(
    model: ModelConfig, metrics: Metrics, reliability: Mapping[str, Reliability], details: Any
) -> str:
    """Returns Markdown from `model_card.jinja`, with front matter for the Hugging Face hub.
    `details` are further variables of the template, which fails if one is missing."""
    folder = FileSystemLoader(Path(__file__).parent)
    templates = Environment(
        loader=folder, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    templates.filters |= {"weights": _weights, "containing": _containing}
    rows = _with_minutes(metrics)
    names = dict.fromkeys(name for row in metrics for name in row if name.endswith(EXACT_MATCH))
    return templates.get_template("model_card.jinja").render(
        details,
        model=model,
        parameters=param_count(model),
        metrics=rows,
        curve=thinned(rows, CURVE_ROWS),
        probed=[name.removesuffix(EXACT_MATCH) for name in names],  # during training
        reliability=[(canvas, *_summary(diagram)) for canvas, diagram in reliability.items()],
    )


def _summary(diagram: Reliability) -> tuple[int, float, float]:
    """Returns the number of predictions, their accuracy, and the calibration error."""
    n, right = int(diagram.counts.sum()), float(np.nansum(diagram.accuracy * diagram.counts))
    return n, right / n, diagram.expected_calibration_error


def _weights(shares: Sequence[TaskShare]) -> str:
    return ", ".join(
        f"{share.name} {share.weight:g} ({'/'.join(map(str, share.drawn))}{_containing(share)})"
        for share in shares
    )


def _containing(share: TaskShare) -> str:
    return "" if share.containing is None else f', only with "{share.containing}"'


def _with_minutes(metrics: Metrics) -> list[Mapping[str, Any]]:
    """Adds to each row the minutes since the start of the training."""
    rows, total, previous = [], 0.0, 0
    for row in metrics:
        total += row["seconds_per_step"] * (row["step"] - previous) / 60
        previous = row["step"]
        rows.append({**row, "minutes": total})
    return rows
