"""Trains a model by GRPO: reinforcement learning from its own answers to a task's questions.

    python -m experiments.policy hydra.run.dir=outputs/policy
    python -m experiments.policy model=small questions_of=countdown hydra.run.dir=outputs/countdown
    python -m experiments.policy estimate=masked seed=1 hydra.run.dir=outputs/masked

An answer's reward is 1 if it is right in every word, or just right for tasks that cannot tell.
`results.json` has exact and strict match on held-out items before and after training, and the
paired differences. `metrics.jsonl` has for each step the training answers' exact and strict match,
their forwards, and the share of questions whose answers have different rewards, the only ones with
a learning signal. The trained model is in `model/`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import optax
from jaxtyping import Float

import llada_jax as lj
from experiments.evaluate.result_rows import difference_rows, tally_rows
from experiments.harness.questions import prompts_of, tokenizer_of
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from llada_jax.config import require_choice, require_counts
from llada_jax.evaluation.evaluate import with_answer_length
from llada_jax.evaluation.graded import Evaluation, compared
from llada_jax.evaluation.task import Item, Task
from llada_jax.evaluation.tasks import load_task
from llada_jax.sampler.config import SamplerConfig
from llada_jax.training.model_folder import export_model
from llada_jax.training.policy import (
    GRPO,
    advantages,
    grpo_step,
    masked_answers,
    trajectory_canvases,
)

Estimate = Literal["exact", "masked"]


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """Settings of the verb; conf/policy.yaml explains each."""

    model: str
    questions_of: str
    seed: int
    steps: int
    questions: int
    answers: int
    learning_rate: float
    estimate: Estimate
    grpo: GRPO
    sampler: SamplerConfig
    items: int

    def __post_init__(self) -> None:
        require_counts(self, "steps", "questions", "answers", "items")
        _ = load_task(self.questions_of)  # checks the name
        require_choice("estimate", self.estimate, Estimate)


def improve(config: PolicyConfig, run: Run) -> None:
    """Scores the model, trains it, and scores it again."""
    task, model = load_task(config.questions_of), lj.load(config.model, "float32")
    tokenizer = tokenizer_of(model)
    run.begin()
    sampler = with_answer_length(config.sampler, task)
    greedy = sampler.replace(temperature=0.0)

    def score(model: lj.Model) -> Evaluation:
        return lj.evaluate(model, task, greedy, items=config.items, seed=config.seed)

    before, optimizer = score(model), optax.adam(config.learning_rate)
    moments, log = optimizer.init(model.params), []
    items, rng = task.items(config.seed, "train"), np.random.default_rng(config.seed)
    for step in range(config.steps):
        group = [item for item in islice(items, config.questions) for _ in range(config.answers)]
        prompts = prompts_of(model, (item.question for item in group))
        result = lj.generate(model, prompts, sampler, seed=config.seed + step, trace=True)
        scores = scores_of(task, group, result.text)
        reward = scores.get("strict_match", scores["exact_match"])
        rewards = reward.reshape(config.questions, config.answers)
        if config.estimate == "exact":
            canvases = trajectory_canvases(result.trace, model.config)
        else:
            canvases = masked_answers(result.trace, model.config, rng)
        params, moments = grpo_step(
            model.params,
            moments,
            model.config,
            optimizer,
            canvases,
            advantages(rewards).reshape(-1),
            config.grpo,
        )
        model = model.replace(params=params)
        means = {name: float(values.mean()) for name, values in scores.items()}
        nfe, taught = float(result.trace.nfe.mean()), float((rewards.std(axis=1) > 0).mean())
        log.append({"step": step + 1, **means, "nfe": nfe, "taught": taught})
        run.record(log[-1])
    card = f"# A model\n\n{Path(config.model).name}, trained with rewards on `{task.name}`.\n"
    export_model(run.folder / "model", model.config, model.params, tokenizer, card, log)
    run.finish(list(_rows(before, score(model), config.items)))


def scores_of(
    task: Task, items: Sequence[Item], texts: Sequence[str]
) -> dict[str, Float[np.ndarray, " N"]]:
    """Returns whether each answer is right (1 or 0), and in every word if the task can tell."""
    grades = [task.grade(item, text) for item, text in zip(items, texts, strict=True)]
    names = ("exact_match", "strict_match")
    scores = zip(names, zip(*grades, strict=True), strict=True)
    return {name: np.array(each, np.float32) for name, each in scores if each[0] is not None}


def _rows(before: Evaluation, after: Evaluation, items: int) -> Iterator[ResultRow]:
    yield from tally_rows("before", before.tally)
    yield from tally_rows("after", after.tally)
    yield from difference_rows("after/against/before", compared([after], [before]), items)
    if after.strict:
        result = compared([after], [before], strict=True)
        yield from difference_rows("after/against/before/strict", result, items)


main = entry_point("policy", improve, PolicyConfig)
