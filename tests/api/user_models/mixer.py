"""A toy architecture in a user's file: a row is the mean of its visible rows, mixed with itself."""

import jax
import jax.numpy as jnp

import llada_jax as lj
from llada_jax.types import KVCache, RowsOut

WIDTH, VOCAB = 16, 40
CONFIG = lj.ModelConfig(
    family="mixer", vocab_size=VOCAB, width=WIDTH, n_layers=1, n_heads=1, n_kv_heads=1,
    head_dim=WIDTH, ffn_width=WIDTH, rope_theta=1e4, norm_eps=1e-6, max_length=128, mask_id=39,
    eos_id=38,
)  # fmt: skip


def new_params(seed=0):
    names = ("embedding", "place", "mix", "head")
    keys = jax.random.split(jax.random.key(seed), len(names))
    shapes = {"embedding": (VOCAB, WIDTH), "place": (CONFIG.max_length, WIDTH)}
    return {
        name: jax.random.normal(key, shapes.get(name, (WIDTH, WIDTH)))
        for name, key in zip(names[:3], keys, strict=False)
    } | {"head": jax.random.normal(keys[3], (WIDTH, VOCAB))}


def forward_rows(params, rows, cache):
    at = jnp.minimum(rows.positions, CONFIG.max_length - 1)
    own = params["embedding"][rows.tokens] + params["place"][at]
    values = (own[:, :, None, :],)  # one layer, one head
    cached = jnp.where(rows.sees_cache[..., None], cache.values[0], 0)
    fresh = jnp.where(rows.sees_rows[..., None], own[:, None], 0)
    count = rows.sees_cache.sum(-1) + rows.sees_rows.sum(-1)
    mean = (cached.sum(2) + fresh.sum(2)) / jnp.maximum(count, 1).astype(own.dtype)[..., None]
    return RowsOut(jnp.tanh(own + mean @ params["mix"]), values, values)


def logits(params, hidden):
    return hidden @ params["head"]


def empty_cache(params, batch, length):
    keys, values = jnp.zeros((2, batch, 1, length, WIDTH))
    return KVCache((keys,), (values,))


def mixer(seed=0, **changes):
    functions = {"forward_rows": forward_rows, "logits": logits, "empty_cache": empty_cache}
    return lj.Model.custom(CONFIG, new_params(seed), **functions | changes)
