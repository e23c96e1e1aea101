"""Judges policies on the routing of a trained mixture, task by task, beside drawn routing.

The routing of `conf/train_routed.yaml`'s model lies beside this file, so that nobody has to train
it again. Experts are priced as LLaDA-MoE's: of this model's size they would cost nothing but calls.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

import llada_jax as lj
from experiments.experts.policies_on_phones import compare, phone_costs, statistics_of
from experiments.harness.questions import prompts_of
from experiments.harness.results import ResultRow
from experiments.harness.run import Run
from llada_jax.config import SamplerConfig, require_counts
from llada_jax.evaluation.tasks import load_task
from llada_jax.experts.decoding.generation import record_routing
from llada_jax.experts.routing import RoutingTrace, joined
from llada_jax.experts.shapes import LLADA_MOE
from llada_jax.experts.synthetic import STATISTICS, denoising_trace

STORED = Path(__file__).with_name("small_moe")
TOKENS_PER_STEP = 2
RATIOS = (0.25, 0.5)


@dataclass(frozen=True, kw_only=True)
class RoutingConfig:
    """Says whose routing is judged. The comments are in conf/experts.yaml."""

    model: str | None = None
    tasks: tuple[str, ...] = ("word_problems", "yes_no", "choices", "sudoku")
    answers: int = 4

    def __post_init__(self) -> None:
        require_counts(self, "answers", least=2)
        for task in self.tasks:
            _ = load_task(task)  # which checks the name


def judge_routing(config: RoutingConfig, seed: int, run: Run) -> Iterator[ResultRow]:
    """Yields what recorded and drawn routing are like, and how policies do on them.

    The first two blocks profile the experts. What is recorded goes to the run folder.
    """
    model = None if config.model is None else lj.load(config.model, "float32")
    traces = {}
    for task in config.tasks:
        if model is None:
            traces[f"recorded/{task}"] = RoutingTrace.load(STORED / f"{task}.npz")
        else:
            trace = traces[f"recorded/{task}"] = record_task(model, task, config.answers, seed)
            trace.save(run.folder / f"{task}.npz")
    traces["drawn/llada_moe"] = _drawn_like(next(iter(traces.values())), seed)
    costs = phone_costs("SM8750", LLADA_MOE)
    for name, trace in traces.items():
        yield from statistics_of(trace, name)
        profile = int(np.flatnonzero(trace.begins_block)[2])
        for ratio in RATIOS:
            slots = int(ratio * trace.n_experts)
            yield from compare(trace, f"{name}/{round(100 * ratio)}", costs, slots, profile)


def record_task(model: lj.Model, task: str, answers: int, seed: int) -> RoutingTrace:
    """Decodes items of the test split, one after another, and joins their routing."""
    asked = load_task(task)
    length = asked.gen_length
    sampler = SamplerConfig(
        gen_length=length, block_length=32, steps=length // TOKENS_PER_STEP, cache="blockwise"
    )
    items = islice(asked.items(seed, "test"), answers)
    prompts = prompts_of(model, (item.question for item in items))
    trace = joined([record_routing(model, [each], sampler, seed=seed)[1] for each in prompts])
    settings = {**trace.settings, "fingerprint": model.fingerprint}
    return replace(trace, scores=trace.scores.astype(np.float16), settings=settings)


def _drawn_like(trace: RoutingTrace, seed: int) -> RoutingTrace:
    """Draws routing of this shape from LLaDA-MoE's published statistics."""
    shape = replace(
        LLADA_MOE, n_layers=trace.n_layers, n_experts=trace.n_experts,
        experts_per_token=trace.experts.shape[-1],
    )  # fmt: skip
    blocks = int(trace.block.max()) + 1
    return denoising_trace(
        shape, STATISTICS["llada_moe"], seed=seed, blocks=blocks, tokens_per_step=TOKENS_PER_STEP
    )
