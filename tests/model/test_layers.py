"""Attention by a fused kernel matches ours."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llada_jax.model.layers import HIDDEN_SCORE, CachedLayer, attend, fused_attend


@pytest.mark.parametrize(("dtype", "within"), [("float32", 1e-5), ("bfloat16", 2e-3)])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_a_fused_kernel_matches_ours(dtype, within, kv_heads):
    rng = np.random.default_rng(0)

    def drawn(*shape):
        return jnp.asarray(rng.standard_normal(shape), dtype)

    query = drawn(2, 5, 4, 8)
    old, fresh = ([scale * drawn(2, t, kv_heads, 8) for scale in (1, 0.125)] for t in (6, 5))
    cached = CachedLayer(*(part.swapaxes(1, 2) for part in old), 0)
    sees = rng.random((2, 5, 11)) < 0.6
    sees[:, :, 6] = True
    bias = jnp.asarray(np.where(sees, 0, HIDDEN_SCORE), jnp.float32)
    ours, fused = (jax.jit(f)(query, fresh, bias, cached) for f in (attend, fused_attend))
    assert fused.dtype == ours.dtype and fused.shape == ours.shape
    np.testing.assert_allclose(*(np.float32(each) for each in (fused, ours)), atol=within)
