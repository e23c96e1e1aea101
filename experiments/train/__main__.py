"""Trains a masked-diffusion model on a mixture of tasks and exports it in the Hugging Face layout.

    python -m experiments.train hydra.run.dir=outputs/small
    python -m experiments.train train.steps=200 hydra.run.dir=outputs/short
    python -m experiments.train --config-name train_moe hydra.run.dir=outputs/tiny_moe
    python -m experiments.train --config-name train_all hydra.run.dir=outputs/all

The same command resumes an interrupted run from its last checkpoint. More steps prolong it; other
changed settings are refused. The run folder gets `config.yaml`, `env.json`,
`training.json`, `metrics.jsonl`, `results.json`, `tokenizer/`, `checkpoints/` and the model,
`model/`.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from hydra.core.hydra_config import HydraConfig

from experiments.harness.run import Run, entry_point, resume_command
from experiments.reliability import ReliabilityConfig, reliability_by_task
from experiments.train.curriculum import MixtureConfig, example_source, mixture_texts
from experiments.train.model_card import Parent, model_card
from experiments.train.resume import TRAINING, Training
from experiments.train.scores import ScoreConfig, probe, task_scores
from llada_jax.api.model import Model
from llada_jax.checkpoint import fingerprint, load_params, model_path, read_tokenizer
from llada_jax.checkpoint.config_json import config_to_hf
from llada_jax.config import ONE_DEVICE, MeshConfig, ModelConfig, TrainConfig, require
from llada_jax.evaluation.task import Task
from llada_jax.evaluation.tasks import load_task
from llada_jax.io.atomic import new_folder
from llada_jax.model.mesh import mesh_for
from llada_jax.model.params import ModelParams
from llada_jax.text import Tokenizer
from llada_jax.training.copying import check_shape
from llada_jax.training.loop import read_metrics, require_steps, train
from llada_jax.training.model_folder import export_model
from llada_jax.training.objectives import Objective
from llada_jax.training.state import MASKED, trained_params
from llada_jax.training.tokenizer import build_tokenizer, save_tokenizer
from llada_jax.training.upcycling import dense_shape, upcycle

TOKENIZER_TEXTS = 20_000


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """A tokenizer to reuse, or to train on the texts of the mixture."""

    source: str | None = None
    """A bundled model or a folder, or None to train a tokenizer of `vocab_size` entries."""
    vocab_size: int = 768


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    model: ModelConfig
    tokenizer: TokenizerConfig
    train: TrainConfig
    data: MixtureConfig
    score: ScoreConfig
    mesh: MeshConfig = ONE_DEVICE
    parent: str | None = None
    """A bundled model or a folder, with whose parameters and tokenizer training begins."""
    objective: Objective = MASKED
    """masked or self_fill (`llada_jax.training.objectives`)."""

    def __post_init__(self) -> None:
        _ = config_to_hf(self.model)  # checks that the model can be exported
        if self.parent is not None:
            require(
                self.tokenizer.source is None,
                f"tokenizer.source is {self.tokenizer.source!r} and parent {self.parent!r}; "
                "allowed: None, since a model keeps its parent's tokenizer",
            )
        elif self.train.start == "copying":
            check_shape(self.model)
        for task in self.tasks:
            _ = self.score.samplers(task)  # checks the lengths

    @property
    def tasks(self) -> list[Task]:
        """The different tasks of the mixture, in its order."""
        return list(map(load_task, dict.fromkeys(share.name for share in self.data.tasks)))


def with_special_tokens(model: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
    """Returns the model's configuration with the tokenizer's ids."""
    return model.replace(
        mask_id=tokenizer.mask_id,
        eos_id=tokenizer.eos_id,
        pad_id=tokenizer.pad_id,
        eot_id=tokenizer.encode("<|eot_id|>")[0],
    )


def tokenizer_of(config: RunConfig, run: Run) -> Tokenizer:
    """Returns the tokenizer of the parent or the source, or trains one first."""
    source = config.parent or config.tokenizer.source
    if source is not None:
        tokenizer = read_tokenizer(model_path(source))
        if tokenizer is None:
            raise ValueError(f"{source!r} has no tokenizer; allowed: one that has")
        return tokenizer
    folder = run.folder / "tokenizer"
    if not folder.exists():
        texts = islice(mixture_texts(config.data), TOKENIZER_TEXTS)
        tokenizer = build_tokenizer(texts, config.tokenizer.vocab_size)
        with new_folder(folder) as part:
            save_tokenizer(tokenizer, part)
    return Tokenizer.from_folder(folder)


def train_and_export(config: RunConfig, run: Run) -> None:
    """Trains from the last checkpoint in the run folder, scores the model and exports it. Raises
    ValueError, before anything is written, if the folder has a training with other settings or with
    more steps."""
    settings = {**asdict(config), "objective": repr(config.objective)}
    settings["versions"] = config.data.versions
    training = Training.of(settings, resume_command("train")).resumed(run.folder)
    require_steps(run.folder, config.train)
    seed = config.train.seed
    parent = None if config.parent is None else parent_params(config.parent, config.model, seed)
    run.begin()
    run.write(TRAINING, training.as_json())
    tokenizer = tokenizer_of(config, run)
    model_config = with_special_tokens(config.model, tokenizer)
    source = example_source(tokenizer, config.data, config.train.batch_size)
    evaluate = probe(config.tasks, config.score, model_config, tokenizer)
    how: Any = {"mesh": mesh_for(config.mesh), "objective": config.objective, "parent": parent}
    state = train(run.folder, model_config, config.train, source, evaluate, **how)
    model = Model(model_config, trained_params(state.params, config.train, parent), tokenizer)
    finish(config, run, model, tokenizer, training.commands)


def parent_params(name: str, model: ModelConfig, seed: int = 0) -> ModelParams:
    """Returns float32 parameters of a model of this shape, or, for a mixture, of the dense model
    that it is upcycled from. Raises ValueError for another shape."""
    config, params, tokenizer = load_params(name, "float32")
    require(tokenizer is not None, f"parent {name!r} has no tokenizer; allowed: one that has")
    sparse = model.moe is not None and config.moe is None
    stored, wanted = asdict(config), asdict(dense_shape(model) if sparse else model)
    for field in (name for name in wanted if not name.endswith("_id")):
        require(
            stored[field] == wanted[field],
            f"model.{field} is {wanted[field]!r}; allowed: {stored[field]!r}, as of {name!r}",
        )
    return upcycle(params, model, seed) if sparse else params


def finish(
    config: RunConfig, run: Run, model: Model, tokenizer: Tokenizer, commands: Sequence[str]
) -> None:
    """Scores a trained model and writes `results.json` and `model/`."""
    scores = task_scores(model, config.tasks, config.score)
    items = config.score.items
    measured = ReliabilityConfig(
        model=str(run.folder),
        tasks=tuple(task.name for task in config.tasks),
        items=items,
        batch_size=math.gcd(items, ReliabilityConfig.batch_size),
        seed=config.score.seed,
    )
    reliability = reliability_by_task(model, measured)
    parent = None if config.parent is None else Parent.of(config.parent)
    metrics = read_metrics(run.folder)
    details = {
        "name": HydraConfig.get().runtime.choices["architecture@model"],
        "environment": json.loads((run.folder / "env.json").read_text()),
        **{"commands": commands, "scores": scores, "parent": parent},
    }
    card = model_card(model.config, metrics, reliability, vars(config) | details)
    folder, log_before = run.folder / "model", parent.log if parent else ()
    export_model(folder, model.config, model.params, tokenizer, card, metrics, log_before)
    run.fingerprint = fingerprint(folder)
    run.finish([row for _, row in scores])


main = entry_point("train", train_and_export, RunConfig)
