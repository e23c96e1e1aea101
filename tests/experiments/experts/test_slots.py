"""One address space holds the swap planner's tensors and the experts."""

import pytest

from experiments.experts.expert_prices import slots_within
from llada_jax.config import ModelConfig, MoEConfig
from llada_jax.swap.address_budget import Budget
from llada_jax.swap.graph import model_graph
from tests.experts.traces import SMALL

MODEL = ModelConfig(
    family="llada_moe",
    vocab_size=64,
    width=SMALL.width,
    n_layers=SMALL.n_layers,
    n_heads=2,
    n_kv_heads=2,
    head_dim=4,
    ffn_width=16,
    rope_theta=1e4,
    norm_eps=1e-6,
    max_length=64,
    moe=MoEConfig(n_experts=SMALL.n_experts, experts_per_token=2, expert_width=SMALL.expert_width),
)


def operators(experts):
    graph = model_graph(MODEL, rows=8, weight_bits=8, step_ns=100)
    return [each for each in graph.operators if (".expert" in each.name) == experts]


def test_experts_and_dense_weights_fill_the_budget_of_the_swap_planner():
    """The planner's own tensors at its own sizes: so many experts are mapped, one more is not."""
    size = operators(experts=True)[0].weight_bytes
    assert len(operators(experts=True)) == SMALL.n_layers * SMALL.n_experts
    assert size == SMALL.expert_weights
    budget = Budget(
        session_bytes=12_000,
        alignment=64,
        kv_bytes_per_token=32,
        tokens=10,
        reserved_bytes=sum(each.weight_bytes for each in operators(experts=False)),
    )
    slots = slots_within(budget, SMALL, size)
    mapped = budget.fixed_bytes + SMALL.n_layers * slots * budget.aligned(size)
    assert mapped <= budget.session_bytes < mapped + SMALL.n_layers * budget.aligned(size)


def test_no_more_slots_than_experts():
    assert slots_within(Budget(), SMALL, 192) == SMALL.n_experts


def test_a_budget_below_one_expert_a_layer():
    space = Budget(session_bytes=1000, alignment=64, reserved_bytes=240)
    with pytest.raises(
        ValueError, match=r"budget is 744 bytes beside .*; allowed: 768 or more, one expert of 192"
    ):
        slots_within(space, SMALL, 190)
