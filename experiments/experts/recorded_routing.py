"""Records the routing of our own forwards, and decodes the same within a budget of experts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

import llada_jax as lj
from experiments.experts.expert_prices import phone_costs
from experiments.harness.results import Kind, ResultRow
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
from llada_jax.model.architecture.parameters import body_matrices, head_weights
from llada_jax.model.params import init_params

NARROW = {
    "vocab_size": 512, "width": 64, "n_heads": 4, "n_kv_heads": 4, "head_dim": 16,
    "ffn_width": 128, "rope_theta": 5e4, "norm_eps": 1e-6, "max_length": 512, "mask_id": 511,
    "eos_id": 510,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RecordedConfig:
    """Says what is decoded. The comments are in conf/experts.yaml."""

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
    """Returns the routers of LLaDA-MoE and LLaDA2-mini over narrow layers."""
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


class RoutedModel(NamedTuple):
    """A model, the sizes that it is priced at, and what it is asked."""

    model: lj.Model
    shape: MoEShape
    prompt: Sequence[Sequence[int]]


def routed_models(config: RecordedConfig, seed: int) -> Iterator[RoutedModel]:
    """Yields random weights in published shapes, then the trained model, if there is one."""
    shapes = {shape.name: shape for shape in (LLADA_MOE, LLADA2_MINI)}
    prompt = np.random.default_rng(seed).integers(1, 500, (1, 32)).tolist()
    for name, narrow in narrow_models(config.layers).items():
        params = init_params(narrow, jax.random.key(seed))
        yield RoutedModel(lj.Model(narrow, params, None), shapes[name], prompt)
    if config.trained is not None:
        yield trained_model(config.trained, seed)


def trained_model(source: str, seed: int) -> RoutedModel:
    """Asks a model of `conf/train_moe.yaml` a question of the test split."""
    model = lj.load(source, "float32")
    assert model.tokenizer is not None
    question = load_task("choices").item(seed, 0, "test").question
    prompt = model.tokenizer.encode_chat([{"role": "user", "content": question}])
    return RoutedModel(model, shape_of("tiny_moe", model.config), [prompt])


def shape_of(name: str, config: ModelConfig) -> MoEShape:
    """Returns the sizes that decide what moving and running a model's experts costs.

    Raises ValueError for a model without routed experts.
    """
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
    """Yields statistics of recorded routing, and whether a budget changes any token.

    The run folder gets each routing beside the trace that it belongs to, step for step.
    """
    for routed in routed_models(config, seed):
        name = routed.shape.name
        result, routing = record_routing(routed.model, routed.prompt, config.sampler, seed=seed)
        assert result.trace is not None
        result.trace.save(run.folder / f"trace_{name}.npz")
        routing.save(run.folder / f"routing_{name}.npz")
        yield _row(f"recorded/{name}/experts_per_step", experts_per_step(routing), "experts")
        yield _row(f"recorded/{name}/similarity_1", step_similarity(routing), "cosine")
        yield _row(f"recorded/{name}/imbalance", imbalance(routing).mean(), "x the mean load")
        yield from _within_budget(routed, config, seed, result, routing)


def _within_budget(
    routed: RoutedModel, config: RecordedConfig, seed: int, result: lj.Result, routing: RoutingTrace
) -> Iterator[ResultRow]:
    model, shape, prompt = routed
    costs, slots = phone_costs("SM8750", shape), slots_at_ratio(0.25, shape)
    for policy in ("hybrimoe", "denoising"):
        profile = routing.first_steps(1)
        budgeted = generate_within_budget(
            model, prompt, POLICIES[policy], costs, slots, profile, config.sampler, seed=seed
        )
        equal = np.mean(budgeted.result.tokens == result.tokens)
        hits = budgeted.policy_run.hits / budgeted.policy_run.uses
        speed = routing.committed.sum() / budgeted.policy_run.seconds
        name = f"budgeted/{shape.name}/25/{policy}"
        yield _row(f"{name}/equal_tokens", equal, "of the tokens")
        yield _row(f"{name}/hit_rate", hits, "of activated experts")
        yield _row(f"{name}/transfers", budgeted.store.moved, "experts")
        yield _row(f"{name}/tokens_per_second", speed, "tokens/s", kind="modelled")


def _row(name: str, value: float, unit: str, kind: Kind = "measured") -> ResultRow:
    return ResultRow(name=name, value=value, unit=unit, kind=kind)
