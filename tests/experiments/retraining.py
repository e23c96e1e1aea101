"""Repeats the first steps of a training by a model's card and compares them with its log."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from hydra import compose, initialize_config_dir

from experiments.harness.run import REPOSITORY, read_config
from experiments.train.__main__ import RunConfig, parent_params, with_special_tokens
from experiments.train.curriculum import example_source
from llada_jax.text import Tokenizer
from llada_jax.training.loop import read_metrics, train
from llada_jax.training.model_folder import LOG_FILE


class Compared(NamedTuple):
    """A row of the stored log, and the same row of the repeated training."""

    then: Mapping[str, float]
    now: Mapping[str, float]


def recipe(arguments: Sequence[str]) -> RunConfig:
    """Returns the configuration that `experiments.train` makes of a command line."""
    name, overrides = "train", [each for each in arguments if not each.startswith("hydra.")]
    if "--config-name" in overrides:
        place = overrides.index("--config-name")
        name = overrides[place + 1]
        del overrides[place : place + 2]
    with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
        return read_config(RunConfig, compose(name, overrides=overrides))


def stated_logs(model: Path) -> list[list[dict[str, float]]]:
    """The log of a model's training, then the log of its parent's training."""
    rows = read_metrics(model, LOG_FILE)
    begins = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(rows)) if b["step"] <= a["step"])]
    return [rows[first:last] for first, last in pairwise([*begins, len(rows)])][::-1]


def first_steps(
    model: Path, config: RunConfig, log: Sequence[Mapping[str, float]], last: int, folder: Path
) -> list[Compared]:
    """Compares rows of a log up to a step, which must be before the learning rate decays."""
    again(model, config, last, folder)
    now = {row["step"]: row for row in read_metrics(folder)}
    return [Compared(row, now[row["step"]]) for row in log if row["step"] <= last]


def again(model: Path, config: RunConfig, last: int, folder: Path) -> None:
    """Trains up to a step, with the tokenizer that the model has."""
    tokenizer, every = Tokenizer.from_folder(model), config.train.log_every
    settings = config.train.replace(
        steps=last + 1,  # the learning rate is 0 at the last step
        decay_steps=1,
        evaluate_every=0,
        checkpoint_every=(last // every + 1) * every,
    )
    source = example_source(tokenizer, config.data, settings.batch_size)
    shape = with_special_tokens(config.model, tokenizer)
    parent = None if config.parent is None else parent_params(config.parent, config.model)
    train(
        folder,
        shape,
        settings,
        source,
        progress=False,
        parent=parent,
        objective=config.objective,
    )
