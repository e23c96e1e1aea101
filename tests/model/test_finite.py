"""NaN and infinity are found in every kind of float, and in a model's outputs."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from llada_jax.model.finite import all_finite, require_finite_results


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_every_float_of_two_bytes(dtype) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(every)
    assert all_finite(every[finite])
    ordinary = np.ones((2, 3), dtype)
    for bad in every[~finite]:
        ordinary[1, 2] = bad
        assert not all_finite(ordinary)


def test_floats_of_four_bytes_and_empty_arrays() -> None:
    largest = np.finfo(np.float32).max
    assert all_finite(np.array([0, -0.0, largest, -largest, 1e-45], np.float32))
    assert all_finite(np.zeros((0, 4), np.float32))
    for value in (np.nan, np.inf, -np.inf, -np.nan):
        assert not all_finite(np.array([[1, value], [0, 2]], np.float32)[:, ::-1])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_results_are_numbers(dtype) -> None:
    results = {"token": jnp.arange(3), "confidence": jnp.ones(3, dtype), "seconds": 2.0, "text": ""}
    require_finite_results("a forward", results)
    require_finite_results("a forward", None)
    for bad in (np.nan, np.inf):
        broken = results | {"confidence": results["confidence"].at[1].set(bad)}
        with pytest.raises(FloatingPointError, match="a forward: NaN or infinite; allowed: finite"):
            require_finite_results("a forward", broken)
