"""On an NVIDIA GPU: the same tokens as on the CPU, and its kernels of attention.

JAX_PLATFORMS=cuda,cpu pytest -m device
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import llada_jax as lj
from llada_jax.model.layers import CachedLayer, all_at_once, attend_in_cudnn, attend_in_kernel

pytestmark = pytest.mark.device

QUESTIONS = [
    "Anna had 6 apples. She bought 2 more apples. How many apples did Anna have in the end?",
    "What is 17 + 5?",
]


def tokens_on(platform: str, preset: str, loop: Any) -> np.ndarray:
    with jax.default_device(jax.devices(platform)[0]), jax.default_matmul_precision("highest"):
        model = lj.load("small")
        assert model.tokenizer is not None
        prompts = [
            model.tokenizer.encode_chat([{"role": "user", "content": text}]) for text in QUESTIONS
        ]
        config = lj.SamplerConfig.preset(preset)
        return np.asarray(lj.generate(model, prompts, config, loop=loop).tokens)


@pytest.mark.parametrize("loop", ["compiled", "host"])
@pytest.mark.parametrize("preset", ["threshold", "fast_dllm", "llada_cpp", "multi_block"])
def test_tokens_equal_those_of_the_cpu(preset: str, loop: str):
    on_gpu, on_cpu = tokens_on("cuda", preset, loop), tokens_on("cpu", preset, "compiled")
    np.testing.assert_array_equal(on_gpu, on_cpu)


@pytest.mark.parametrize("dims", [(1, 32, 32, 32, 4096), (2, 5, 4, 2, 7), (1, 1000, 8, 2, 300)])
@pytest.mark.parametrize("kernel", [attend_in_cudnn, attend_in_kernel])
def test_attention_is_close_to_float32(kernel: Any, dims: tuple[int, ...]):
    batch, n_rows, n_heads, n_kv_heads, cached = dims
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal((*shape, 64)), jnp.bfloat16)

    query, fresh = drawn(batch, n_rows, n_heads), (drawn(batch, n_rows, n_kv_heads),) * 2
    kept = CachedLayer(*(drawn(batch, n_kv_heads, cached) for _ in range(2)), 0)
    visible = tuple(
        jnp.asarray(rng.random((batch, n_rows, size)) < 0.7) for size in (cached, n_rows)
    )
    out = jax.jit(kernel)(query, fresh, visible, kept)
    wide = jax.tree.map(jnp.float32, (query, fresh))
    kept = CachedLayer(*map(jnp.float32, kept[:2]), 0)
    with jax.default_matmul_precision("highest"):
        expected = all_at_once(*wide, visible, kept)
    error = jnp.linalg.norm(out.astype(jnp.float32) - expected) / jnp.linalg.norm(expected)
    assert error < 1e-2
