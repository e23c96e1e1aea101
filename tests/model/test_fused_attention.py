"""Attention by a fused kernel gives what ours gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llada_jax.model.fused_attention import fused_attend
from llada_jax.model.layers import HIDDEN_SCORE, attend


@pytest.mark.parametrize(("dtype", "within"), [("float32", 1e-5), ("bfloat16", 2e-3)])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_a_fused_kernel_gives_what_ours_gives(dtype, within, kv_heads):
    keys = jax.random.split(jax.random.key(0), 4)
    query = jax.random.normal(keys[0], (2, 5, 4, 8), dtype)
    old, new = (jax.random.normal(key, (2, 2, t, kv_heads, 8), dtype) for key, t in
                zip(keys[1:3], (6, 5), strict=True))  # fmt: skip
    sees = jax.random.bernoulli(keys[3], 0.6, (2, 5, 11)).at[:, :, 6].set(True)
    bias = jnp.where(sees, jnp.float32(0), HIDDEN_SCORE)
    values = [old[1] / 8, new[1] / 8]
    ours, fused = (f(query, [old[0], new[0]], values, bias) for f in (attend, fused_attend))
    assert fused.dtype == ours.dtype and fused.shape == ours.shape
    np.testing.assert_allclose(*(np.float32(each) for each in (fused, ours)), atol=within)
