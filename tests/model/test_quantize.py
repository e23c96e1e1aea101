"""Quantized weights: their dequantized values, and products with them."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llada_jax.model import quantize as quantize_module
from llada_jax.model.quantize import Bits, QuantArray, dequantize, linear, quantize

LIMIT: dict[Bits, int] = {8: 127, 4: 7}


def random_weight(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def scales_by_definition(weight: np.ndarray, bits: Bits) -> np.ndarray:
    group = weight.shape[-1] if bits == 8 else 32
    groups = weight.reshape(*weight.shape[:-1], -1, group)
    return np.abs(groups).max(axis=-1) / LIMIT[bits]


@pytest.mark.parametrize("bits", [8, 4])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    rows=st.sampled_from([1, 5]),
    groups=st.sampled_from([1, 3]),
    exponent=st.integers(-20, 20),
    seed=st.integers(0, 1000),
)
def test_the_error_is_within_half_a_step(
    bits: Bits, rows: int, groups: int, exponent: int, seed: int
) -> None:
    weight = random_weight(rows, 32 * groups, seed=seed) * np.float32(2.0**exponent)
    quantized = quantize(weight, bits)
    assert quantized.values.dtype == (jnp.int8 if bits == 8 else jnp.int4)
    scale = scales_by_definition(weight, bits)
    np.testing.assert_allclose(quantized.scale, scale, rtol=1e-6)
    step = np.repeat(scale, weight.shape[1] // scale.shape[1], axis=1)
    error = np.abs(np.asarray(dequantize(quantized, jnp.float32)) - weight)
    assert (error <= step * (0.5 + 1e-4)).all()
    assert np.abs(np.asarray(quantized.values, np.int32)).max() == LIMIT[bits]


@pytest.mark.parametrize("bits", [8, 4])
def test_pieces_make_the_whole(bits: Bits, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random_weight(3, 7, 64)
    whole = quantize(weight, bits)
    monkeypatch.setattr(quantize_module, "_CHUNK_ELEMENTS", 150)
    for part, leaf in zip(quantize(weight, bits), whole, strict=True):
        np.testing.assert_array_equal(part, leaf)
    assert whole.values.shape == weight.shape
    assert whole.scale.shape == (3, 7, 1 if bits == 8 else 2)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_weights_quantize_as_their_float32(bits: Bits, dtype: type) -> None:
    weight = random_weight(4, 64).astype(dtype)
    expected = quantize(weight.astype(np.float32), bits)
    for found, leaf in zip(quantize(weight, bits), expected, strict=True):
        np.testing.assert_array_equal(found, leaf)


@pytest.mark.parametrize("bits", [8, 4])
def test_rows_of_zeros(bits: Bits) -> None:
    weight = random_weight(3, 64)
    weight[1] = 0
    quantized = quantize(weight, bits)
    assert np.isfinite(quantized.scale).all()
    assert not np.asarray(dequantize(quantized, jnp.float32))[1].any()


def test_int4_needs_whole_groups() -> None:
    with pytest.raises(ValueError, match=r"int4 weight has 48 inputs; allowed: a multiple of 32"):
        quantize(random_weight(2, 48), 4)


def test_an_int8_product_is_the_integer_one() -> None:
    x, weight = random_weight(2, 3, 64, seed=1), quantize(random_weight(5, 64), 8)
    step = np.abs(x).max(axis=-1, keepdims=True) / 127
    integers = np.rint(x / step).astype(np.int64)
    dot = integers @ np.asarray(weight.values, np.int64).T
    expected = dot * step * np.asarray(weight.scale)[:, 0]
    found = jax.jit(linear)(jnp.asarray(x), weight)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_product_is_near_the_product_with_the_float_weight(bits: Bits) -> None:
    x, weight = random_weight(64, 256, seed=1), random_weight(128, 256)
    exact = x @ weight.T
    error = np.asarray(linear(jnp.asarray(x), quantize(weight, bits))) - exact
    # Rounding is uniform within a step: its deviation is step / sqrt(12), of weights and inputs.
    step = scales_by_definition(weight, bits).mean()
    of_inputs = np.abs(x).max(axis=-1).mean() / 127 if bits == 8 else 0
    predicted = np.sqrt(256 / 12 * (step**2 + of_inputs**2))
    assert error.std() == pytest.approx(predicted, rel=0.1)


def test_an_int4_product_matches_the_dequantized_weight() -> None:
    x, weight = random_weight(3, 64, seed=1), quantize(random_weight(5, 64), 4)
    expected = x @ np.asarray(dequantize(weight, jnp.float32)).T
    np.testing.assert_allclose(linear(jnp.asarray(x), weight), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("bits", [8, 4])
def test_a_product_has_the_dtype_of_its_input(bits: Bits, dtype: jnp.dtype) -> None:
    x = jnp.asarray(random_weight(3, 64), dtype)
    weight = random_weight(5, 64, seed=1)
    out = linear(x, quantize(weight, bits))
    assert out.dtype == dtype
    exact = np.asarray(x, np.float32) @ weight.T
    assert np.abs(np.asarray(out, np.float32) - exact).max() < (0.4 if bits == 8 else 4)


@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e-30, 1e30])
def test_int8_inputs_of_any_size(scale: float) -> None:
    x = random_weight(3, 64, seed=1)
    weight = quantize(random_weight(5, 64), 8)
    unit = np.asarray(linear(jnp.asarray(x), weight))
    found = np.asarray(jax.jit(linear)(jnp.asarray(np.float32(scale) * x), weight))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, unit * scale, rtol=1e-5, atol=1e-36)


def test_a_quantized_weight_is_a_tree_that_slices_by_rows() -> None:
    weight = quantize(random_weight(6, 64), 4)
    part = jax.tree.map(lambda leaf: leaf[2:4], weight)
    assert isinstance(part, QuantArray)
    np.testing.assert_array_equal(
        dequantize(part, jnp.float32), dequantize(weight, jnp.float32)[2:4]
    )


def test_a_function_is_a_matrix() -> None:
    """So hosts hand a layer products that run outside JAX."""
    weight = jnp.arange(6.0).reshape(2, 3)
    x = jnp.arange(12.0).reshape(4, 3)
    np.testing.assert_array_equal(linear(x, lambda rows: rows @ weight.T), linear(x, weight))


@pytest.mark.parametrize("bits", [8, 4])
def test_a_single_row_is_multiplied_as_two(bits: Bits) -> None:
    """XLA's CPU is slow for one row."""
    weight = quantize(np.random.default_rng(3).normal(size=(24, 64)).astype(np.float32), bits)
    rows = jax.random.normal(jax.random.key(4), (2, 1, 64))
    product = jax.jit(linear)
    assert "tensor<2x64x" in product.lower(rows[:1], weight).as_text()
    np.testing.assert_allclose(product(rows[:1], weight), product(rows, weight)[:1], rtol=1e-5)
