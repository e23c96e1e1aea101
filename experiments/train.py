"""Trains a masked-diffusion model on word problems and exports it in the Hugging Face layout.

    python -m experiments.train hydra.run.dir=outputs/tiny

The same command resumes a run that was stopped, from its last checkpoint.
"""

import json
import logging
import platform
import subprocess
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from llada_jax.config import ModelConfig, TrainConfig, require
from llada_jax.evaluation.tasks import word_problems
from llada_jax.text import Tokenizer
from llada_jax.training.data import Example, ExampleSource
from llada_jax.training.loop import train

REPOSITORY = Path(__file__).resolve().parent.parent
TOKENIZER_FOLDER = REPOSITORY / "llada_jax" / "assets" / "tiny"
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tokenizers")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which word problems: seed of the sequence, and difficulty 1 to 3."""

    seed: int = 1
    difficulty: int = 2


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    model: ModelConfig
    train: TrainConfig
    data: DataConfig


def read_config(config: DictConfig) -> RunConfig:
    """The checked configuration; unknown keys and wrong types are errors."""
    # Section by section: omegaconf keeps nested frozen schemas read-only while it merges.
    schemas = {field.name: field.type for field in fields(RunConfig)}
    unknown = sorted(set(config) - set(schemas))
    require(not unknown, f"unknown sections {unknown}; allowed: {', '.join(schemas)}")
    sections = {
        name: OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), config[name]))
        for name, schema in schemas.items()
    }
    return RunConfig(**sections)


def with_special_tokens(model: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
    """The model's configuration with the tokenizer's ids."""
    return model.replace(
        mask_id=tokenizer.mask_id,
        eos_id=tokenizer.eos_id,
        pad_id=tokenizer.pad_id,
        eot_id=tokenizer.encode("<|eot_id|>")[0],
    )


def word_problem_source(tokenizer: Tokenizer, data: DataConfig) -> ExampleSource:
    """Chats of one question; the answer ends with the token that ends a turn."""
    end = tokenizer.encode("<|eot_id|>")

    def source(index: int) -> Example:
        problem = word_problems.problem(data.seed, index, "train", difficulty=data.difficulty)
        prompt = tokenizer.encode_chat([{"role": "user", "content": problem.question}])
        return Example(prompt, [*tokenizer.encode(problem.answer), *end])

    return source


def environment() -> dict[str, Any]:
    """Versions, and the commit of the code."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "packages": {name: version(name) for name in PACKAGES},
        "git_sha": _git("rev-parse", "HEAD"),
        "git_dirty": bool(_git("status", "--porcelain")),
    }


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else None


@hydra.main(version_base="1.3", config_path="../conf", config_name="train")
def main(config: DictConfig) -> None:
    logging.getLogger("absl").setLevel(logging.WARNING)  # orbax reports each file it writes
    run = read_config(config)
    folder = Path(HydraConfig.get().runtime.output_dir)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True))
    (folder / "env.json").write_text(json.dumps(environment(), indent=2) + "\n")
    tokenizer = Tokenizer.from_folder(TOKENIZER_FOLDER)
    model = with_special_tokens(run.model, tokenizer)
    train(folder, model, run.train, word_problem_source(tokenizer, run.data))


if __name__ == "__main__":
    main()
