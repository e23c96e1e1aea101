"""Rows times the matrix of their group: equal to a plain loop, with proportional work."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llada_jax.model.grouped_product import MOST_ROWS, grouped_product, tile_rows
from llada_jax.model.quantize import linear, quantize, with_paired_int4

IN, OUT, ROWS, GROUPS = 32, 12, 20, 5


def drawn(seed: int):
    rng = np.random.default_rng(seed)
    shapes = (ROWS, IN), (GROUPS, OUT, IN)
    return [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]


def sizes_of(cuts: list[int]) -> jax.Array:
    return jnp.asarray(np.diff([0, *sorted(cuts), ROWS]), jnp.int32)


CUTS = st.lists(st.integers(0, ROWS), min_size=GROUPS - 1, max_size=GROUPS - 1)
product, alone = jax.jit(grouped_product), jax.jit(linear)


def group_by_group(rows, weights, sizes):
    stops = np.cumsum(sizes)
    parts = [
        alone(rows, jax.tree.map(lambda leaf, g=group: leaf[g], weights))[stop - size : stop]
        for group, (size, stop) in enumerate(zip(sizes.tolist(), stops.tolist(), strict=True))
    ]
    return np.concatenate(parts)


@settings(max_examples=20)
@given(seed=st.integers(0, 99), cuts=CUTS)
def test_each_row_meets_the_matrix_of_its_group(seed, cuts):
    rows, weights = drawn(seed)
    sizes = sizes_of(cuts)
    expected = group_by_group(rows, weights, sizes)
    np.testing.assert_allclose(product(rows, weights, sizes), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bits", [8, 4])
def test_quantized_matrices_are_unpacked_as_alone(bits):
    rows, weights = drawn(0)
    quantized, sizes = quantize(np.asarray(weights), bits), sizes_of([0, 3, 3, 14])
    expected = group_by_group(rows, quantized, sizes)
    np.testing.assert_allclose(product(rows, quantized, sizes), expected, rtol=1e-5, atol=1e-5)


def test_quantized_matrices_are_never_unpacked_as_a_whole():
    rows, weights = drawn(0)
    quantized = quantize(np.asarray(weights), 4)
    program = product.lower(rows, quantized, sizes_of([1, 2, 3, 4])).compile().as_text()
    assert not re.search(rf"f32\[{GROUPS},{OUT},{IN}\]", program)


def test_gradients_match_a_dense_product():
    rows, weights = drawn(1)
    sizes = sizes_of([4, 4, 11, 15])
    own = np.repeat(np.arange(GROUPS), sizes)

    def dense(rows, weights):
        return jnp.sin(jnp.einsum("ri,roi->ro", rows, weights[own])).sum()

    def grouped(rows, weights):
        return jnp.sin(grouped_product(rows, weights, sizes)).sum()

    found, expected = (jax.grad(each, (0, 1))(rows, weights) for each in (grouped, dense))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_arithmetic_is_not_all_rows_by_all_groups():
    groups = 256
    operands = jnp.zeros((ROWS, IN)), jnp.zeros((groups, OUT, IN)), jnp.zeros(groups, jnp.int32)
    flops = product.lower(*operands).compile().cost_analysis()["flops"]
    assert flops < 2 * ROWS * IN * OUT * groups / 50


@pytest.mark.parametrize(
    ("rows", "groups", "size"), [(8, 256, 4), (64, 8, 16), (256, 32, 16), (4096, 8, MOST_ROWS)]
)
def test_rows_of_a_tile(rows, groups, size):
    assert tile_rows(rows, groups) == size


@pytest.mark.parametrize("in_advance", [False, True])
def test_int4_goes_into_loops_in_pairs(in_advance):
    """XLA's CPU makes a byte of each int4 that a loop is given: it would unpack all matrices."""
    rows, weights = drawn(1)
    quantized, sizes = quantize(np.asarray(weights), 4), sizes_of([2, 2, 9, 15])
    given = jax.jit(with_paired_int4)(quantized) if in_advance else quantized
    program = jax.jit(grouped_product).lower(rows, given, sizes).compile()
    assert f"s8[{GROUPS},{OUT},{IN}]" not in (program.as_text() or "")
    np.testing.assert_array_equal(program(rows, given, sizes), product(rows, quantized, sizes))
