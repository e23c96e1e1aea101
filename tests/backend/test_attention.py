"""A head at a time gives what the model's own attention gives, for every canvas by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llada_jax.backend.attention import HeadsFirst, attend_by_canvas
from llada_jax.model.layers import HIDDEN_SCORE, CachedLayer, attend_to_cache

ROWS, HEAD_DIM = 3, 8


@pytest.mark.parametrize("canvases", [1, 2])
@pytest.mark.parametrize("cached", [0, 5])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2)])
def test_it_is_the_models_attention(canvases, cached, heads, kv_heads):
    rng = np.random.default_rng(0)

    def noise(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape, np.float32))

    rows = canvases * ROWS
    query = noise(1, rows, heads, HEAD_DIM)
    keys, values = noise(1, rows, kv_heads, HEAD_DIM), noise(1, rows, kv_heads, HEAD_DIM)
    hidden = rng.random((1, rows, cached + ROWS)) < 0.3
    hidden[..., -1] = False  # a row that sees nothing gives any value
    bias = jnp.where(hidden, jnp.float32(HIDDEN_SCORE), jnp.float32(0))
    caches = [
        HeadsFirst(noise(kv_heads, cached, HEAD_DIM), noise(kv_heads, cached, HEAD_DIM))
        for _ in range(canvases)
    ]
    found = attend_by_canvas(query, (keys, values), bias, caches)
    for canvas, cache in enumerate(caches):
        own = slice(canvas * ROWS, (canvas + 1) * ROWS)
        fresh = keys[:, own], values[:, own]
        old = CachedLayer(*(part.swapaxes(0, 1)[None] for part in cache))
        wanted = attend_to_cache(query[:, own], fresh, bias[:, own], old)
        np.testing.assert_allclose(found[:, own], wanted, rtol=1e-5, atol=1e-6)
