"""The cost model: steps of tiles and passes, the slowest stage, and unknown operations."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llada_jax.backend.lower import lower
from llada_jax.backend.protocol import Step
from llada_jax.lowered import LoweredWeight, Operation, TensorType, product_step
from llada_jax.phones.cost import (
    matrix_shape,
    price_on_cpu,
    price_on_npu,
    rows_in_a_pass,
    unknown_operations,
)
from tests.phones.small import GRAPHS, PHONE, SHAPE, body

LLADA, VENDOR = PHONE.npu["llada_cpp"], PHONE.npu["vendor"]
Q4 = LoweredWeight((4096, 12288), 4, 32)


def down(rows, kernels=LLADA, weight=Q4, name="layers.0.ffn.down"):
    return price_on_npu(product_step(rows, 12288, 4096, weight, name), kernels, PHONE.memory)


@given(st.integers(2, 32), st.integers(1, 8))
def test_rows_of_a_tile_cost_the_same_and_each_tile_as_much_again(rows, tiles):
    one = down(32).seconds
    assert down(rows).seconds == pytest.approx(one)
    assert down(32 * (tiles - 1) + rows).seconds == pytest.approx(tiles * one)


def test_stages_that_do_not_overlap_are_added():
    kernels = replace(
        LLADA, matrix_tops=10, dma_gbps=50, fast_dequant_gweights=50, overlap="dequantization"
    )
    cost = down(33, kernels)
    n_weights = 4096 * 12288
    assert cost.by_engine["dequantization"] == pytest.approx(2 * n_weights / 50e9)
    assert cost.by_engine["matrix"] == pytest.approx(2 * 64 * n_weights / 10e12)
    assert cost.by_engine["dma"] == cost.by_engine["vector"] == 0
    assert cost.dram_bytes == 2 * n_weights * 4.5 / 8


def test_overlapping_stages_cost_as_much_as_the_slowest():
    slow_memory = replace(VENDOR, dma_gbps=1, matrix_tops=100)
    slow_matrix = replace(VENDOR, dma_gbps=1000, matrix_tops=1)
    for kernels, engine in ((slow_memory, "dma"), (slow_matrix, "matrix")):
        cost = down(64, kernels)
        assert cost.by_engine[engine] == cost.seconds > 0


def test_one_row_runs_in_the_matrix_vector_kernel_if_there_is_one():
    size = 4096 * 12288 * 4.5 / 8
    assert down(1).seconds == pytest.approx(size / LLADA.gemv_gbps / 1e9)
    assert down(1, replace(LLADA, gemv_gbps=0)).seconds == pytest.approx(down(2).seconds)


def test_floats_are_not_dequantized_and_have_16_bits():
    cost = down(32, weight=LoweredWeight((4096, 12288), 32))
    assert cost.by_engine["dequantization"] == 0
    assert cost.dram_bytes == 4096 * 12288 * 2


def test_down_projection_and_head_dequantize_faster():
    assert down(32, name="layers.0.ffn.up").seconds > down(32).seconds
    assert down(32, name="head[0:4096]").seconds == down(32).seconds


def test_a_pass_has_fewer_rows_if_their_activations_exceed_vtcm():
    assert rows_in_a_pass(4096, VENDOR, PHONE.memory) == 128
    tiny = replace(PHONE.memory, vtcm_mib=1)
    assert rows_in_a_pass(4096, VENDOR, tiny) == 64
    assert rows_in_a_pass(10**6, VENDOR, tiny) == VENDOR.tile_rows


@pytest.mark.parametrize(("rows", "moved_mib"), [(128, 0), (512, 80), (1024, 144)])
def test_activations_that_exceed_vtcm_move_instead_of_weights(rows, moved_mib):
    """The vendor's compiler counts these bytes for this product in a16w4."""
    weight = LoweredWeight((4096, 4096), 4)
    cost = price_on_npu(product_step(rows, 4096, 4096, weight, "w"), VENDOR, PHONE.memory)
    moved = cost.dram_bytes - 4096**2 / 2
    assert moved / 2**20 == pytest.approx(moved_mib, rel=0.1)
    assert cost.matrix + cost.dma >= moved / VENDOR.dma_gbps / 1e9


@given(*[st.integers(1, 9)] * 4)
def test_the_shape_of_a_product_follows_from_sizes(batch, rows, inputs, outputs):
    def tensor(*shape):
        return TensorType(shape, "f32")

    operation = Operation(
        "dot_general", "", (tensor(batch, rows, inputs), tensor(batch, outputs, inputs)),
        (tensor(batch, rows, outputs),), inputs,
    )  # fmt: skip
    assert matrix_shape(operation) == (batch, rows, inputs, outputs)


@pytest.mark.parametrize("cached", [0, 32])
def test_a_body_costs_its_layers_and_the_final_norm(cached):
    whole = price_on_npu(body(8, cached), LLADA, PHONE.memory)
    one = price_on_npu(GRAPHS.layer(8, cached), LLADA, PHONE.memory)
    assert whole.overhead == pytest.approx(SHAPE.n_layers * one.overhead)
    norms = 2 * 8 * SHAPE.width * LLADA.elementwise_ns * 1e-9
    assert whole.seconds == pytest.approx(SHAPE.n_layers * one.seconds, abs=4 * norms)


@given(st.sampled_from([1, 8, 40]), st.sampled_from([0, 32, 64]))
def test_engines_add_up_and_all_operations_are_known(rows, cached):
    cost = price_on_npu(GRAPHS.layer(rows, cached), LLADA, PHONE.memory)
    assert sum(cost.by_engine.values()) == pytest.approx(cost.seconds)
    assert unknown_operations(GRAPHS.layer(rows, cached)) == []
    assert cost.seconds > 0 and cost.dram_bytes > 0


def test_more_rows_and_longer_caches_never_cost_less():
    def seconds(rows, cached):
        return price_on_npu(GRAPHS.layer(rows, cached), LLADA, PHONE.memory).seconds

    by_rows = [seconds(rows, 32) for rows in (2, 8, 32, 40, 64)]
    by_cache = [seconds(8, cached) for cached in (0, 32, 64, 96)]
    assert by_rows == sorted(by_rows) and by_cache == sorted(by_cache)


def square(rows: int):
    """A product with 4-bit weights of LLaDA-8B's width."""
    return product_step(rows, 4096, 4096, LoweredWeight((4096, 4096), 4, 32), "w")


def test_a_cpu_product_uses_the_faster_kernel():
    plain = PHONE.cpu["plain"]
    few, many = (price_on_cpu(square(rows), plain, PHONE.memory) for rows in (1, 64))
    assert few.seconds == pytest.approx(4096**2 / plain.gemv_gweights / 1e9)
    unpacking = 4096**2 / plain.unpack_gweights / 1e9
    assert many.seconds == pytest.approx(2 * 64 * 4096**2 / plain.gemm_tops / 1e12 + unpacking)


def test_a_cpu_is_never_faster_than_memory():
    tuned = PHONE.cpu["tuned"]
    assert not tuned.unpack_gweights, "this test needs a kernel without unpacking"
    for rows in (1, 2, 8, 64):
        cost = price_on_cpu(square(rows), tuned, PHONE.memory)
        assert cost.dram_bytes <= 1.000001 * cost.seconds * PHONE.memory.dram_gbps * 1e9


def test_an_unknown_operation_is_described_with_shape_and_price():
    def function(weights, inputs):
        with jax.named_scope("part"):
            return {"out": jnp.sort(inputs["x"])}

    lowered = lower(Step("tried", function, {}, {"x": (4, 8)}))
    (unknown,) = unknown_operations(lowered)
    assert unknown.startswith("sort f32[4, 8]")
    assert "priced as vector work on 32 elements" in unknown
    assert price_on_npu(lowered, LLADA, PHONE.memory).seconds > 0
