"""Trains a model by GRPO: reinforcement learning from its own answers to a task's questions.

    python -m experiments.policy weaken=0.3 hydra.run.dir=outputs/policy
    python -m experiments.policy questions_of=yes_no steps=10 hydra.run.dir=outputs/yes_no
    python -m experiments.policy weaken=0.3 estimate=masked seed=1 hydra.run.dir=outputs/masked

`results.json` has exact match on held-out items before and after training, and the paired
difference. `metrics.jsonl` has for each step the mean reward and the share of questions with both
right and wrong answers, the only ones with a learning signal. The trained model is not stored.
"""

from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

import llada_jax as lj
from experiments.evaluate.result_rows import difference_rows, tally_rows
from experiments.harness.questions import prompts_of, tokenizer_of
from experiments.harness.run import Run, entry_point
from llada_jax.config import require_choice, require_counts, require_numbers
from llada_jax.evaluation.evaluate import with_answer_length
from llada_jax.evaluation.graded import Evaluation
from llada_jax.evaluation.tasks import load_task
from llada_jax.sampler.config import SamplerConfig
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
    weaken: float
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
        require_numbers(self, "weaken", least=0)
        require_choice("estimate", self.estimate, Estimate)


def improve(config: PolicyConfig, run: Run) -> None:
    """Scores the model, trains it, and scores it again."""
    task = load_task(config.questions_of)
    model = weakened(lj.load(config.model, "float32"), config.weaken, config.seed)
    _ = tokenizer_of(model)  # checks that there is one
    run.begin()
    sampler = with_answer_length(config.sampler, task)
    greedy = sampler.replace(temperature=0.0)

    def score(model: lj.Model) -> Evaluation:
        return lj.evaluate(model, task, greedy, items=config.items, seed=config.seed)

    before, optimizer = score(model), optax.adam(config.learning_rate)
    params, moments = model.params, optimizer.init(model.params)
    items, rng = task.items(config.seed, "train"), np.random.default_rng(config.seed)
    for step in range(config.steps):
        group = [item for item in islice(items, config.questions) for _ in range(config.answers)]
        prompts = prompts_of(model, (item.question for item in group))
        result = lj.generate(model, prompts, sampler, seed=config.seed + step, trace=True)
        right = [task.verify(item, text) for item, text in zip(group, result.text, strict=True)]
        rewards = np.array(right, np.float32).reshape(config.questions, config.answers)
        if config.estimate == "exact":
            canvases = trajectory_canvases(result.trace, model.config)
        else:
            canvases = masked_answers(result.trace, model.config, rng)
        advantage = advantages(rewards).reshape(-1)
        params, moments = grpo_step(
            params, moments, model.config, optimizer, canvases, advantage, config.grpo
        )
        model = model.replace(params=params)
        taught = float((rewards.std(axis=1) > 0).mean())
        run.record({"step": step + 1, "reward": float(rewards.mean()), "taught": taught})
    after = score(model).compared_with(before)
    assert after.against is not None
    rows = [*tally_rows("before", before.tally), *tally_rows("after", after.tally)]
    run.finish([*rows, *difference_rows("after/against/before", after.against, config.items)])


def weakened(model: lj.Model, noise: float, seed: int) -> lj.Model:
    """Returns the model with noise on its layers' matrices, in units of their deviations."""
    rng = np.random.default_rng(seed)

    def add_noise(leaf: Any) -> Any:
        change = rng.normal(size=leaf.shape) * noise * float(np.std(leaf)) * (leaf.ndim > 1)
        return leaf + jnp.asarray(change, leaf.dtype)

    params = model.params
    return model.replace(params=params._replace(layers=jax.tree.map(add_noise, params.layers)))


main = entry_point("policy", improve, PolicyConfig)
