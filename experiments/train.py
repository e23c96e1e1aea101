"""Trains a masked-diffusion model on word problems and exports it in the Hugging Face layout.

    python -m experiments.train hydra.run.dir=outputs/tiny

The same command resumes a run that was stopped, from its last checkpoint. The run folder gets
`config.yaml`, `env.json`, `metrics.jsonl`, `results.json`, `checkpoints/` and the model, `model/`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.model_card import Score, model_card, wilson_interval
from experiments.results import ResultRow
from experiments.run import REPOSITORY, Run, launch
from llada_jax import build
from llada_jax.build import Model
from llada_jax.config import ModelConfig, SamplerConfig, TrainConfig, require
from llada_jax.evaluation.tasks import word_problems
from llada_jax.text import Tokenizer
from llada_jax.training.data import Example, ExampleSource
from llada_jax.training.export import export_model
from llada_jax.training.loop import read_metrics, train

TOKENIZER_FOLDER = REPOSITORY / "llada_jax" / "assets" / "tiny"
SENTENCE_END = re.compile(r"(?<=[.?]) ")
EQUATION = re.compile(r"\d+[-+*/]\d+=\d+")
DRILL_PROBLEMS = 3


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which word problems: seed of the sequence, and difficulty 0 to 3."""

    seed: int = 1
    difficulty: int = 0
    retell_share: float = 0.0
    """Share of examples that only repeat some sentences of the question, from which a model learns
    to copy long before it does so from solutions."""
    drill_share: float = 0.0
    """Share of examples that are bare equations, from which a model learns sums and products
    sooner than from solutions, where they are few among many words."""

    def __post_init__(self) -> None:
        allowed = ", ".join(map(str, word_problems.LARGEST_VALUE))
        require(
            self.difficulty in word_problems.LARGEST_VALUE,
            f"difficulty is {self.difficulty}; allowed: {allowed}",
        )
        for name in ("retell_share", "drill_share"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"{name} is {value}; allowed: 0 to 1")
        total = self.retell_share + self.drill_share
        require(total <= 1, f"retell_share + drill_share is {total}; allowed: up to 1")


@dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """How a model is judged: by LLaDA's plain sampler on problems of the test split."""

    problems: int = 500
    batch_size: int = 50
    seed: int = 2
    gen_length: int = 128
    block_length: int = 32
    steps: int = 128

    def __post_init__(self) -> None:
        for name in ("problems", "batch_size"):
            value = getattr(self, name)
            require(value > 0, f"{name} is {value}; allowed: 1 or more")
        _ = self.sampler  # the rest is for it to check

    @property
    def sampler(self) -> SamplerConfig:
        return SamplerConfig(
            gen_length=self.gen_length, block_length=self.block_length, steps=self.steps
        )


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    model: ModelConfig
    train: TrainConfig
    data: DataConfig
    score: ScoreConfig


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

    def problem_at(index: int) -> word_problems.Problem:
        return word_problems.problem(data.seed, index, "train", difficulty=data.difficulty)

    def source(index: int) -> Example:
        question, answer, _ = problem_at(index)
        rng = Random(f"{data.seed} {index}")
        kind = rng.random()
        if kind < data.retell_share:
            question = answer = _some_sentences(rng, question)
        elif kind < data.retell_share + data.drill_share:
            question, answer = _drill(problem_at(index + step) for step in range(DRILL_PROBLEMS))
        prompt = tokenizer.encode_chat([{"role": "user", "content": question}])
        return Example(prompt, [*tokenizer.encode(answer), *end])

    return source


def _drill(problems: Iterable[word_problems.Problem]) -> tuple[str, str]:
    """The equations of some problems, without and with their results."""
    equations = [each for problem in problems for each in EQUATION.findall(problem.answer)]
    return " ".join(each.partition("=")[0] for each in equations), " ".join(equations)


def _some_sentences(rng: Random, text: str) -> str:
    sentences = SENTENCE_END.split(text)
    count = rng.randint(1, len(sentences))
    start = rng.randint(0, len(sentences) - count)
    return " ".join(sentences[start : start + count])


def exact_match(model: Model, data: DataConfig, config: ScoreConfig) -> Score:
    """Counts the test problems whose generated solution ends in the right number."""
    assert model.tokenizer is not None
    right = 0
    for indices in batched(range(config.problems), config.batch_size):
        problems = [
            word_problems.problem(config.seed, index, "test", difficulty=data.difficulty)
            for index in indices
        ]
        chats = [[{"role": "user", "content": problem.question}] for problem in problems]
        prompts = [model.tokenizer.encode_chat(chat) for chat in chats]
        result = build.generate(model, prompts, config.sampler)
        texts = map(model.tokenizer.decode, result.generated)
        right += sum(map(word_problems.verify, problems, texts))
    return Score(config.sampler, right, config.problems)


def batched(indices: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Successive parts; the last one may be shorter."""
    return (indices[start : start + size] for start in range(0, len(indices), size))


def train_and_export(config: RunConfig, run: Run) -> None:
    """Trains from the last checkpoint in the run folder, scores the model and exports it."""
    run.begin()
    tokenizer = Tokenizer.from_folder(TOKENIZER_FOLDER)
    model_config = with_special_tokens(config.model, tokenizer)
    source = word_problem_source(tokenizer, config.data)
    state = train(run.folder, model_config, config.train, source)
    finish(config, run, Model(model_config, state.best_params, tokenizer))


def finish(config: RunConfig, run: Run, model: Model) -> None:
    """Scores a trained model and writes `results.json` and `model/`."""
    assert model.tokenizer is not None
    score = exact_match(model, config.data, config.score)
    metrics = read_metrics(run.folder)
    env = json.loads((run.folder / "env.json").read_text())
    hydra_config = HydraConfig.get()
    card = model_card(
        name=hydra_config.runtime.choices["architecture@model"],
        command=" ".join(["python -m experiments.train", *hydra_config.overrides.task]),
        model=model.config,
        train=config.train,
        data_seed=config.data.seed,
        difficulty=config.data.difficulty,
        largest=word_problems.LARGEST_VALUE[config.data.difficulty],
        machine=env["machine"],
        environment=env,
        metrics=metrics,
        scores=[score],
    )
    export_model(run.folder / "model", model.config, model.params, TOKENIZER_FOLDER, card, metrics)
    accuracy = ResultRow(
        name="exact_match",
        value=score.right / score.problems,
        unit="share",
        n=score.problems,
        interval=wilson_interval(score.right, score.problems),
    )
    run.finish([accuracy])


@hydra.main(version_base="1.3", config_path="../conf", config_name="train")
def main(config: DictConfig) -> None:
    launch(train_and_export, RunConfig, config)


if __name__ == "__main__":
    main()
