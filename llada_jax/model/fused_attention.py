"""Attention by a fused kernel: what `attend` computes, without scores in memory, on a GPU.

`jax.nn.dot_product_attention` takes cuDNN's kernel where there is one, for bfloat16 and float16.
Elsewhere the same call is a plain graph of XLA, so that it can be tested on a CPU.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from llada_jax.model.layers import attend_to_cache

CUDNN_DTYPES = ("bfloat16", "float16")


def fused_attend(
    query: Float[Array, "B R H Dh"],
    keys: Sequence[Float[Array, "B t K Dh"]],
    values: Sequence[Float[Array, "B t K Dh"]],
    bias: Float[Array, "B R T"],
) -> Float[Array, "B R HDh"]:
    """Runs grouped-query attention as `attend` does; a row sees where the bias is 0."""
    on_gpu = jax.default_backend() == "gpu" and str(query.dtype) in CUDNN_DTYPES
    joined = (jnp.concatenate(parts, axis=1) for parts in (keys, values))
    with jax.numpy_dtype_promotion("standard"):  # JAX's own code mixes dtypes
        out = jax.nn.dot_product_attention(
            query, *joined, mask=bias[:, None] == 0, implementation="cudnn" if on_gpu else None
        )
    return out.reshape(*out.shape[:2], -1)


fused_attend_to_cache = partial(attend_to_cache, attend=fused_attend)
