"""Decodes within a budget of experts, beside a recorded run without one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

import llada_jax as lj
from experiments.experts.expert_prices import phone_costs
from experiments.harness.results import ResultRow
from experiments.harness.run import Run
from llada_jax.config import ModelConfig, SamplerConfig, require
from llada_jax.evaluation.tasks import load_task
from llada_jax.experts.decoding.expert_file import ExpertFile
from llada_jax.experts.decoding.generation import (
    generate_within_budget,
    record_routing,
    write_experts_of,
)
from llada_jax.experts.expert_policies import POLICIES
from llada_jax.experts.shapes import MoEShape
from llada_jax.model.architecture.parameters import body_matrices, head_weights


@dataclass(frozen=True, kw_only=True)
class RecordedConfig:
    """Says what is decoded. The comments are in conf/experts.yaml."""

    trained: str = "tiny_moe"
    gen_length: int = 64
    steps: int = 32

    def __post_init__(self) -> None:
        _ = self.sampler

    @property
    def sampler(self) -> SamplerConfig:
        return SamplerConfig(
            gen_length=self.gen_length, block_length=32, steps=self.steps, cache="blockwise"
        )


class RoutedModel(NamedTuple):
    """A model, the sizes that it is priced at, and what it is asked."""

    model: lj.Model
    shape: MoEShape
    prompt: Sequence[Sequence[int]]


def trained_model(source: str, seed: int) -> RoutedModel:
    """Asks a model of `conf/train_moe.yaml` a question of the test split."""
    model = lj.load(source, "float32")
    assert model.tokenizer is not None
    question = load_task("choices").item(seed, 0, "test").question
    prompt = model.tokenizer.encode_chat([{"role": "user", "content": question}])
    return RoutedModel(model, shape_of("tiny_moe", model.config), [prompt])


def shape_of(name: str, config: ModelConfig) -> MoEShape:
    """Returns the sizes that decide what moving and running a model's experts costs. Raises
    ValueError for a model without routed experts."""
    moe = config.moe
    require(moe is not None, f"{config.family} has no routed experts; allowed: a model that has")
    assert moe is not None
    routed = config.n_layers - moe.first_layer
    plain = [each for each in body_matrices(config) if each.copies == 1]
    dense = sum(each.weights for each in plain if not each.name.endswith("router"))
    return MoEShape(
        name=name,
        n_layers=routed,
        n_experts=moe.n_experts,
        experts_per_token=moe.experts_per_token,
        width=config.width,
        expert_width=moe.expert_width,
        dense_weights=(dense + head_weights(config)) // routed,
    )


def run_recorded(config: RecordedConfig, seed: int, run: Run) -> Iterator[ResultRow]:
    """Yields whether a budget changes any token, and what it costs.

    The run folder gets the routing beside the trace that it belongs to, step for step.
    """
    model, shape, prompt = trained_model(config.trained, seed)
    row = partial(ResultRow, fingerprint=model.fingerprint)
    result, routing = record_routing(model, prompt, config.sampler, seed=seed)
    result.trace.save(run.folder / f"trace_{shape.name}.npz")
    routing.save(run.folder / f"routing_{shape.name}.npz")
    costs, slots = phone_costs("SM8750", shape), shape.slots_at(0.25)
    write_experts_of(config.trained, run.folder / "experts", "float32")
    file = ExpertFile(run.folder / "experts")
    for policy in ("hybrimoe", "denoising"):
        budgeted = generate_within_budget(
            model, file, prompt, POLICIES[policy], costs, slots, routing.loads[:1], config.sampler,
            seed=seed,
        )  # fmt: skip
        equal = np.mean(budgeted.result.tokens == result.tokens)
        hits = budgeted.policy_run.hits / budgeted.policy_run.uses
        speed = routing.committed.sum() / budgeted.policy_run.seconds
        name = f"budgeted/{shape.name}/25/{policy}"
        yield row(f"{name}/equal_tokens", equal, "of the tokens")
        yield row(f"{name}/hit_rate", hits, "of activated experts")
        yield row(f"{name}/transfers", budgeted.slots.read, "experts")
        yield row(f"{name}/tokens_per_second", speed, "tokens/s", kind="modelled")
