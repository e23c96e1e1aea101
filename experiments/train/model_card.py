"""The model card of a trained model: everything that is needed to train and to judge it again."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from experiments.train.curriculum import MixtureConfig, TaskShare
from experiments.train.scores import ScoreConfig, TaskScore
from llada_jax.checkpoint import model_path
from llada_jax.config import ModelConfig, TrainConfig
from llada_jax.evaluation.reliability_diagram import Reliability
from llada_jax.model.params import param_count
from llada_jax.training.model_folder import CARD_FILE, read_log, thinned
from llada_jax.training.objectives import Objective

CURVE_ROWS = 16
EXACT_MATCH = "/exact_match"
TRAINING_HEADING = "## Training\n"


class Parent(NamedTuple):
    """The model whose parameters a training began with, the text of its card, and its log."""

    name: str
    card: str
    log: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, name: str) -> "Parent":
        """Reads a bundled model's or a folder's card and log, where it has them."""
        folder = model_path(name)
        card = folder / CARD_FILE
        text = card.read_text(encoding="utf-8") if card.exists() else ""
        return cls(name, text, read_log(folder))

    @property
    def training(self) -> str:
        """Returns what its card says of its own training, and of those before."""
        return self.card.partition(TRAINING_HEADING)[2]


def model_card(
    *,
    name: str,
    commands: Sequence[str],
    model: ModelConfig,
    train: TrainConfig,
    objective: Objective,
    data: MixtureConfig,
    environment: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    score: ScoreConfig,
    scores: Sequence[TaskScore],
    reliability: Mapping[str, Reliability],
    parent: Parent | None = None,
) -> str:
    """Writes Markdown, by `model_card.jinja`, with front matter for the Hugging Face hub."""
    folder = FileSystemLoader(Path(__file__).parent)
    templates = Environment(
        loader=folder, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    templates.filters |= {"weights": _weights, "containing": _containing}
    rows = _with_minutes(metrics)
    return templates.get_template("model_card.jinja").render(
        name=name,
        commands=commands,
        model=model,
        parameters=param_count(model),
        train=train,
        objective=objective,
        data=data,
        environment=environment,
        metrics=rows,
        curve=thinned(rows, CURVE_ROWS),
        probed=_probed(metrics),
        score=score,
        scores=scores,
        reliability=[
            (canvas, int(each.counts.sum()), _right(each), each.expected_calibration_error)
            for canvas, each in reliability.items()
        ],
        parent=parent,
    )


def _right(diagram: Reliability) -> float:
    return float(np.nansum(diagram.accuracy * diagram.counts)) / int(diagram.counts.sum())


def _weights(shares: Sequence[TaskShare]) -> str:
    return ", ".join(
        f"{share.name} {share.weight:g} ({'/'.join(map(str, share.drawn))}{_containing(share)})"
        for share in shares
    )


def _containing(share: TaskShare) -> str:
    return "" if share.containing is None else f', only with "{share.containing}"'


def _with_minutes(metrics: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Adds to each row the minutes since the training began."""
    rows, total, previous = [], 0.0, 0
    for row in metrics:
        total += row["seconds_per_step"] * (row["step"] - previous) / 60
        previous = row["step"]
        rows.append({**row, "minutes": total})
    return rows


def _probed(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the tasks whose exact match was measured while the model was trained."""
    names = dict.fromkeys(name for row in metrics for name in row if name.endswith(EXACT_MATCH))
    return [name.removesuffix(EXACT_MATCH) for name in names]
