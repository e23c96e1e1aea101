"""Routing of our own forwards, with random and trained weights, and the same within a budget."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

import llada_jax as lj
from experiments.experts.costs import phone_costs
from experiments.harness.results import ResultRow
from experiments.harness.run import Run
from llada_jax.config import ModelConfig, MoEConfig, SamplerConfig, require
from llada_jax.evaluation.tasks import load_task
from llada_jax.experts.decoding.generation import generate_within_budget, record_routing
from llada_jax.experts.policy import POLICIES
from llada_jax.experts.routing import (
    RoutingTrace,
    experts_per_step,
    imbalance,
    step_similarity,
)
from llada_jax.experts.shapes import LLADA2_MINI, LLADA_MOE, MoEShape
from llada_jax.experts.slots import slots_at_ratio
from llada_jax.model.params import init_params

NARROW = {
    "vocab_size": 512, "width": 64, "n_heads": 4, "n_kv_heads": 4, "head_dim": 16,
    "ffn_width": 128, "rope_theta": 5e4, "norm_eps": 1e-6, "max_length": 512, "mask_id": 511,
    "eos_id": 510,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RecordedConfig:
    """What is decoded. The comments are in conf/experts.yaml."""

    trained: str | None = "tiny_moe"
    layers: int = 3
    gen_length: int = 64
    steps: int = 32

    def __post_init__(self) -> None:
        require(self.layers > 1, f"layers is {self.layers}; allowed: 2 or more")
        _ = self.sampler

    @property
    def sampler(self) -> SamplerConfig:
        return SamplerConfig(
            gen_length=self.gen_length, block_length=32, steps=self.steps, cache="blockwise"
        )


def narrow_models(layers: int) -> dict[str, ModelConfig]:
    """The routers of LLaDA-MoE and LLaDA2-mini over narrow layers."""
    moe = MoEConfig(n_experts=64, experts_per_token=8, expert_width=32)
    mini = MoEConfig(
        n_experts=256, experts_per_token=8, expert_width=16, first_layer=1, shared_width=16,
        router="sigmoid", n_groups=8, groups_per_token=4, normalize_weights=True,
        weight_scale=2.5, selection_bias=True,
    )  # fmt: skip
    return {
        LLADA_MOE.name: ModelConfig(family="llada_moe", n_layers=layers, moe=moe, **NARROW),
        LLADA2_MINI.name: ModelConfig(family="llada2_moe", n_layers=layers, moe=mini, **NARROW),
    }


class Subject(NamedTuple):
    """A model, the sizes that it is priced at, and what it is asked."""

    model: lj.Model
    shape: MoEShape
    prompt: Sequence[Sequence[int]]


def subjects(config: RecordedConfig, seed: int) -> Iterator[Subject]:
    """Random weights in published shapes; then the trained model, if there is one."""
    shapes = {shape.name: shape for shape in (LLADA_MOE, LLADA2_MINI)}
    prompt = np.random.default_rng(seed).integers(1, 500, (1, 32)).tolist()
    for name, narrow in narrow_models(config.layers).items():
        params = init_params(narrow, jax.random.key(seed))
        yield Subject(lj.Model(narrow, params, None), shapes[name], prompt)
    if config.trained is not None:
        yield trained_subject(config.trained, seed)


def trained_subject(source: str, seed: int) -> Subject:
    """A question of the test split for a model of `conf/train_moe.yaml`."""
    model = lj.load(source, "float32")
    assert model.tokenizer is not None
    question = load_task("choices").item(seed, 0, "test").question
    prompt = model.tokenizer.encode_chat([{"role": "user", "content": question}])
    return Subject(model, shape_of("tiny_moe", model.config), [prompt])


def shape_of(name: str, config: ModelConfig) -> MoEShape:
    """What moving and running the experts of a model needs to know. Raises ValueError for a model
    without routed experts."""
    moe = config.moe
    require(moe is not None, f"{config.family} has no routed experts; allowed: a model that has")
    assert moe is not None
    heads = 2 * (config.n_heads + config.n_kv_heads) * config.head_dim
    routed = config.n_layers - moe.first_layer
    dense = config.n_layers * heads + moe.first_layer * 3 * config.ffn_width + config.vocab_size
    return MoEShape(
        name=name,
        n_layers=routed,
        n_experts=moe.n_experts,
        experts_per_token=moe.experts_per_token,
        width=config.width,
        expert_width=moe.expert_width,
        dense_weights=config.width * (dense // routed + 3 * moe.shared_width),
    )


def run_recorded(config: RecordedConfig, seed: int, run: Run) -> Iterator[ResultRow]:
    """Statistics of recorded routing, and whether a budget changes any token."""
    for subject in subjects(config, seed):
        name = subject.shape.name
        result, trace = record_routing(subject.model, subject.prompt, config.sampler, seed=seed)
        _save(result, trace, run, name)
        yield _row(f"recorded/{name}/experts_per_step", experts_per_step(trace), "experts")
        yield _row(f"recorded/{name}/similarity_1", step_similarity(trace), "cosine")
        yield _row(f"recorded/{name}/imbalance", imbalance(trace).mean(), "x the mean load")
        yield from _within_budget(subject, config, seed, result, trace)


def _save(result: lj.Result, routing: RoutingTrace, run: Run, name: str) -> None:
    """The routing beside the trace of the decoding that it belongs to, step for step."""
    assert result.trace is not None
    result.trace.save(run.folder / f"trace_{name}.npz")
    routing.save(run.folder / f"routing_{name}.npz")


def _within_budget(
    subject: Subject, config: RecordedConfig, seed: int, result: lj.Result, trace: RoutingTrace
) -> Iterator[ResultRow]:
    model, shape, prompt = subject
    costs = phone_costs("SM8750", shape)
    for policy in ("hybrimoe", "denoising"):
        budgeted = generate_within_budget(
            model,
            prompt,
            POLICIES[policy],
            costs,
            slots_at_ratio(0.25, shape),
            trace.first_steps(1),
            config.sampler,
            seed=seed,
        )
        equal = np.mean(budgeted.result.tokens == result.tokens)
        hits = budgeted.policy_run.hits / budgeted.policy_run.uses
        name = f"budgeted/{shape.name}/25/{policy}"
        yield _row(f"{name}/equal_tokens", equal, "of the tokens")
        yield _row(f"{name}/hit_rate", hits, "of activated experts")
        yield _row(f"{name}/transfers", budgeted.store.moved, "experts")
        yield ResultRow(
            name=f"{name}/tokens_per_second",
            value=trace.committed.sum() / budgeted.policy_run.seconds,
            unit="tokens/s",
            kind="modelled",
        )


def _row(name: str, value: float, unit: str) -> ResultRow:
    return ResultRow(name=name, value=value, unit=unit)
