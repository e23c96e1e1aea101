"""Formats: exact values survive, others are rounded to near ones, and NaN is defined."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from llada_jax.sampling_engine.formats import bits_per_element, sanitized, store

ROWS = arrays(np.float32, (3, 16), elements=st.floats(-(2.0**99), 2.0**99, width=32))


SMALLEST_SCALE = 2.0**-127
"""Of E8M0."""


@given(rows=ROWS)
@example(rows=np.full((3, 16), 8.18e-43, np.float32))
def test_an_element_is_as_near_as_its_mantissa_allows(rows):
    """Half a step of the element's own binade, or of the smallest one that the scale leaves; the
    block's largest may saturate."""
    found = store(rows, "mx_e4m3").read(0, 3).astype(np.float64)
    blocks = rows.astype(np.float64).reshape(-1, 8)
    top = np.abs(blocks).max(axis=1, keepdims=True)
    info = ml_dtypes.finfo(ml_dtypes.float8_e4m3fn)
    saturates = 2.0 ** np.ceil(np.log2(float(info.max))) / float(info.max) - 1
    top = np.maximum(top, SMALLEST_SCALE * float(info.max))
    smallest = top * 2 * float(info.smallest_subnormal) / float(info.max)
    allowed = np.abs(blocks) * max(2.0**-4, saturates) + smallest
    assert (np.abs(found.reshape(-1, 8) - blocks) <= allowed).all()


def test_representable_numbers_are_preserved():
    rows = np.array([[1.5, -0.5, 0.25, 0, 1, -1.25, 0.75, 1.75]], np.float32) * 2**7
    np.testing.assert_array_equal(store(rows, "mx_e4m3").read(0, 1), rows)


def test_a_block_has_its_own_scale():
    rows = np.repeat(np.float32([[1e-20, 1e20]]), 8, axis=1)
    np.testing.assert_allclose(store(rows, "mx_e4m3").read(0, 1), rows, rtol=0.07)


@pytest.mark.parametrize("format", ["float32", "bfloat16", "mx_e4m3"])
def test_nan_is_loaded_as_minus_infinity_and_infinity_as_the_largest(format):
    rows = np.zeros((1, 16), np.float32)
    rows[0, :2], rows[0, 8] = (np.nan, -np.inf), np.inf
    loaded = sanitized(store(rows, format).read(0, 1), "bfloat16")[0]
    assert (loaded[:2] == -np.inf).all() and (loaded[2:8] == 0).all()
    assert np.isfinite(loaded[8]) and loaded[8] > 1e38


def test_bits_per_element():
    assert [bits_per_element(f) for f in ("float32", "bfloat16", "mx_e4m3")] == [32, 16, 9]


def test_bad_input():
    with pytest.raises(ValueError, match="12 columns; allowed in mx_e4m3: a multiple of 8"):
        store(np.zeros((1, 12), np.float32), "mx_e4m3")
    with pytest.raises(ValueError, match="format is 'fp8'; allowed: 'float32', 'bfloat16'"):
        store(np.zeros((1, 8), np.float32), "fp8")
