"""Scores a model on each task of its mixture, during training and at its end."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from experiments.harness.results import ResultRow, share_row
from llada_jax.api.model import Model
from llada_jax.config import ModelConfig, require_counts
from llada_jax.evaluation.evaluate import evaluate
from llada_jax.evaluation.task import Task
from llada_jax.model.params import ModelParams
from llada_jax.sampler.config import SamplerConfig
from llada_jax.text import Tokenizer
from llada_jax.training.loop import Evaluate

LONG = 128
"""Answers with more tokens are scored on fewer items: 100 of them take minutes."""


@dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """Settings of scoring: each task by LLaDA's plain sampler on test items, with the whole canvas
    visible and with only the prefix and the block visible."""

    items: int = 500
    long_items: int = 100
    """Number of items for tasks with answers of more than `LONG` tokens."""
    batch_size: int = 50
    seed: int = 2
    block_length: int = 32
    probe_items: int = 50
    """Number of items, of another seed, to score every `train.evaluate_every` steps."""
    probe_threshold: float = 0.9

    def __post_init__(self) -> None:
        require_counts(self, "items", "long_items", "batch_size", "probe_items")

    def items_of(self, task: Task) -> int:
        return min(self.items, self.long_items) if task.gen_length > LONG else self.items

    def samplers(self, task: Task) -> dict[str, SamplerConfig]:
        """Returns the two samplers, which commit a token per step."""
        length = task.gen_length
        plain = SamplerConfig.from_flat(
            gen_length=length, block_length=self.block_length, steps=length
        )
        return {"llada": plain, "blockwise": plain.replace(cache="blockwise")}

    @property
    def probe(self) -> "ScoreConfig":
        return replace(self, items=self.probe_items, seed=self.seed + 1)


def task_scores(
    model: Model, tasks: Sequence[Task], config: ScoreConfig
) -> list[tuple[SamplerConfig, ResultRow]]:
    return [
        (sampler, exact_match(f"{task.name}/{name}", model, task, sampler, config))
        for task in tasks
        for name, sampler in config.samplers(task).items()
    ]


def exact_match(
    name: str, model: Model, task: Task, sampler: SamplerConfig, config: ScoreConfig
) -> ResultRow:
    """Returns the share of test items whose generated answer passes the task's verifier."""
    items = config.items_of(task)
    found = evaluate(
        model, task, sampler, items=items, seed=config.seed, batch_size=config.batch_size
    )
    return share_row(f"{name}/exact_match", sum(found.right.values()), items, "share")


def probe(
    tasks: Sequence[Task], config: ScoreConfig, model: ModelConfig, tokenizer: Tokenizer
) -> Evaluate:
    """Returns a function that scores the current parameters of a training."""

    def answered(params: ModelParams) -> dict[str, float]:
        answering, found = Model(model, params, tokenizer), {}
        for task in tasks:  # confident tokens in parallel, which takes a fraction of the time
            blockwise = config.samplers(task)["blockwise"]
            sampler = blockwise.replace(threshold=config.probe_threshold)
            row = exact_match(task.name, answering, task, sampler, config.probe)
            found[row.name] = row.value
        return found

    return answered
