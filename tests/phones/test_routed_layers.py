"""Mixtures are mapped and planned with all experts, and priced by the activated ones."""

import math
from functools import cache

import jax
import pytest

from llada_jax.backend.weights import storage_spec
from llada_jax.config import MoEConfig
from llada_jax.model.architecture import ARCHITECTURES, architecture
from llada_jax.model.architecture.parameters import body_matrices, named_specs
from llada_jax.model.params import init_params
from llada_jax.phones.cost import price_on_npu
from llada_jax.phones.graphs import Graphs, graphs_of
from llada_jax.phones.memory import weights_mib
from llada_jax.phones.routed_layers import experts_by_rows, layer_costs
from llada_jax.phones.simulate import ForwardTimer, simulate
from llada_jax.phones.system import System
from llada_jax.phones.workload import Forward, Workload
from llada_jax.swap.address_space import MIB
from llada_jax.swap.graph import model_graph
from tests.phones.small import GRAPHS, PHONE, SHAPE

NAMES = sorted(file.stem for file in ARCHITECTURES.glob("*.yaml"))
MIXED = SHAPE.replace(
    moe=MoEConfig(n_experts=8, experts_per_token=2, expert_width=32, first_layer=1, shared_width=48)
)
MIXED_GRAPHS = Graphs(MIXED)
STEP = Forward(32, 96, 32)
WIDE = System(runtime="wide")


@cache
def parameter_shapes(model):
    """Returns the shapes of all parameters of a random initialisation."""
    return jax.tree.leaves(jax.eval_shape(lambda key: init_params(model, key), jax.random.key(0)))


def count_weights(model, min_axes=2) -> int:
    """Returns the weights of all parameters with `min_axes` axes or more: 2 for matrices."""
    return sum(leaf.size for leaf in parameter_shapes(model) if leaf.ndim >= min_axes)


@pytest.mark.parametrize("name", NAMES)
def test_all_modules_count_the_same_weight_bytes(name):
    """Norms and biases are not mapped: up to 0.14 % of the smallest models."""
    model, bits = architecture(name), 4.5
    assert sum(spec.size for spec in named_specs(model).values()) == count_weights(
        model, min_axes=0
    )
    embeddings = model.vocab_size * model.width * (1 if model.tied_embeddings else 2)
    assert (
        sum(matrix.weights for matrix in body_matrices(model)) == count_weights(model) - embeddings
    )
    body = (count_weights(model) - embeddings) * bits / 8
    head = model.vocab_size * model.width * bits / 8
    memory = weights_mib(model, head=False) * MIB
    assert memory == pytest.approx(body, rel=1e-3)
    assert weights_mib(model, head=True) * MIB == pytest.approx(body + head, rel=1e-3)
    graph = model_graph(model, weight_bits=bits, step_ns=10**9)
    assert graph.weight_bytes == pytest.approx(body, rel=1e-3)
    stored = (
        storage_spec(m.name, named_specs(model)[m.name].shape, "int8") for m in body_matrices(model)
    )
    exported = sum(math.prod(weight.shape) for weight in stored)
    assert exported * bits / 8 == pytest.approx(body, rel=1e-3)


def test_llada2_flash_has_a_hundred_billion_weights():
    flash = architecture("llada2_flash")
    assert weights_mib(flash, head=True) * MIB == pytest.approx(57.5e9, rel=0.01)
    assert weights_mib(flash, head=True) > 20 * weights_mib(architecture("llada_8b"), head=True) / 2


@pytest.mark.parametrize("rows", [1, 7, 32, 256])
def test_activated_experts_of_independent_rows_are_binomial(rows):
    n_experts = experts_by_rows(MoEConfig(n_experts=256, experts_per_token=8, expert_width=1), rows)
    assert sum(n_experts.values()) == pytest.approx(256 * (1 - (1 - 8 / 256) ** rows), rel=1e-4)
    assert sum(n * experts for n, experts in n_experts.items()) == pytest.approx(rows * 8, rel=1e-4)


def test_a_mixture_of_one_expert_costs_as_much_as_the_dense_layer():
    """Except for the router and the weighted sum."""
    moe = MoEConfig(n_experts=1, experts_per_token=1, expert_width=SHAPE.ffn_width)
    one = SHAPE.replace(moe=moe)

    def price(lowered):
        return price_on_npu(lowered, PHONE.npu["llada_cpp"], PHONE.memory)

    layer = GRAPHS.layer(32, 96)
    dense = price(layer)
    (routed, *_) = layer_costs(one, layer, 32, price)
    for engine in ("matrix", "dequantization", "dma"):
        added = routed.by_engine[engine] - dense.by_engine[engine]
        assert -1e-12 < added < 0.1 * dense.by_engine[engine] + 1e-7
    assert routed.by_engine["overhead"] == dense.by_engine["overhead"]


def test_only_layers_after_the_first_dense_ones_are_routed():
    step = ForwardTimer(MIXED_GRAPHS, PHONE, WIDE).step(STEP)
    layers = [event.task for event in step.events if event.task.name.startswith("layer")]
    assert layers[0].seconds != layers[1].seconds == layers[3].seconds


def test_a_step_costs_the_weights_of_its_activated_experts():
    """LLaDA2.0-flash dequantizes 163 of 256 experts in a layer of 32 rows."""
    graphs = graphs_of("llada2_flash")
    workload = Workload((Forward(32, 128, 32),), 1, 1, "a test")
    run = simulate(workload, ForwardTimer(graphs, PHONE, WIDE))
    assert run.experts_per_layer == pytest.approx(163.3, abs=0.1)
    single = (
        256 * 32 * (8 / 256) * (1 - 8 / 256) ** 31
    )  # experts of one row use the matrix-vector kernel
    kernels = PHONE.npu["llada_cpp"]
    expert = 31 * 3 * 4096 * 1024
    read = single * expert * 4.5 / 8 / (kernels.gemv_gbps * 1e9)
    assert run.parts["dma"] == pytest.approx(read, rel=0.05)
    dequantized = (163.3 - single + 1) * expert / 1e9
    seconds = run.parts["dequantization"]
    assert (
        dequantized / kernels.fast_dequant_gweights
        < seconds
        < dequantized / kernels.dequant_gweights
    )


def test_a_mixture_is_refused_by_runtime_none():
    with pytest.raises(ValueError, match="runtime is 'none', which maps all at once: 5"):
        ForwardTimer(graphs_of("llada2_flash"), PHONE, System(runtime="none"))
