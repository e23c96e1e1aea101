"""Graphs: orders, transfer times, and the graphs of models."""

import math

import pytest

from llada_jax.config import ModelConfig, MoEConfig
from llada_jax.swap.address_space import MIB, MappingPath
from llada_jax.swap.graph import Graph, Operator, model_graph
from tests.swap.small_graphs import chain

LLADA_8B = ModelConfig(
    family="llada",
    vocab_size=126464,
    width=4096,
    n_layers=32,
    n_heads=32,
    n_kv_heads=32,
    head_dim=128,
    ffn_width=12288,
    rope_theta=5e5,
    norm_eps=1e-5,
    max_length=4096,
)


def test_llada_8b_has_the_published_size():
    """The Q4_0 body of llada.cpp has 117 MiB per layer and 3,744 MiB in total."""
    graph = model_graph(LLADA_8B, weight_bits=4.5, step_ns=478_100_000)
    assert len(graph) == 7 * 32
    assert graph.weight_bytes == 3744 * MIB
    assert sum(op.weight_bytes for op in graph.operators[:7]) == 117 * MIB
    assert graph.compute_ns == pytest.approx(478_100_000, rel=1e-6)


def test_operators_depend_on_the_operators_that_they_read():
    graph = model_graph(LLADA_8B.replace(n_layers=2), weight_bits=4, step_ns=1000)
    index_of = {operator.name.split(".", 1)[1]: i for i, operator in enumerate(graph.operators)}
    reads = {
        name: {graph.operators[i].name.split(".", 1)[1] for i in graph.operators[index].depends}
        for name, index in index_of.items()
    }
    assert reads["0.attention.key"] == set()
    assert reads["0.attention.output"] == {
        "0.attention.query", "0.attention.key", "0.attention.value"
    }  # fmt: skip
    assert reads["0.ffn.up"] == {"0.attention.output"}
    assert reads["1.attention.value"] == {"0.ffn.down"}


def test_every_expert_is_an_operator():
    moe = MoEConfig(n_experts=5, experts_per_token=2, expert_width=8, first_layer=1, shared_width=4)
    config = LLADA_8B.replace(n_layers=3, width=16, moe=moe)
    graph = model_graph(config, weight_bits=8, step_ns=1000)
    experts = [op for op in graph.operators if ".expert" in op.name]
    assert len(experts) == 2 * 5
    assert {op.weight_bytes for op in experts} == {3 * 16 * 8}
    (last,) = [op for op in graph.operators if op.name == "layers.2.ffn.sum"]
    assert len(last.depends) == 6 and last.weight_bytes == 0


def test_transfers_take_the_time_of_the_mapping_path():
    graph = MappingPath(7, 0, 1e9, "measured", "a test").price(chain([1000, 3], [5, 5], [0, 0]))
    assert [op.transfer_ns for op in graph.operators] == [1000, 3]
    assert graph.transfer_ns([0, 1]) == 1010
    without_copy = MappingPath(7, 0, math.inf, "measured", "a test").price(graph)
    assert without_copy.transfer_ns([0, 1]) == 7


def test_valid_orders():
    first, second = Operator("a", 1, 1), Operator("b", 1, 1, depends=(0,))
    graph = Graph((first, second, Operator("c", 1, 1)))
    assert graph.is_order([0, 1, 2]) and graph.is_order([2, 0, 1])
    assert not graph.is_order([1, 0, 2]) and not graph.is_order([0, 1])
    assert not graph.is_order([0, 0, 1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Graph(()), "0 operators; allowed: 1 or more"),
        (lambda: Operator("a", -1, 0), "weight_bytes is -1; allowed: 0 or more"),
        (lambda: Operator("a", 1, 0.5), "compute_ns is 0.5; allowed: 0 or more"),
        (lambda: Operator("a", 1, 0, -3), "transfer_ns is -3; allowed: 0 or more"),
        (lambda: Graph((Operator("a", 1, 1, depends=(0,)),)), "'a' depends on operator 0; allowed"),
        (lambda: Graph((Operator("a", 1, 1),), -1), "map_ns is -1; allowed: 0 or more"),
        (
            lambda: model_graph(LLADA_8B, weight_bits=0, step_ns=1),
            "weight_bits is 0; allowed: above 0",
        ),
    ],
)
def test_invalid_input_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
