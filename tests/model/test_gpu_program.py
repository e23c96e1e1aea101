"""The program of a step on an NVIDIA GPU, lowered without one: what XLA gets, not what it makes."""

import re
from functools import partial
from math import prod

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from llada_jax.config import ModelConfig
from llada_jax.model import layers
from llada_jax.model.forward import cache_for, forward_rows
from llada_jax.model.params import init_params
from llada_jax.rows import make_rows, write_rows
from llada_jax.types import KVCache, RowsOut

LLADA_8B = ModelConfig(
    family="llada", vocab_size=126464, width=4096, n_layers=32, n_heads=32, n_kv_heads=32,
    head_dim=128, ffn_width=12288, rope_theta=5e5, norm_eps=1e-5, max_length=4096, mask_id=126336,
)  # fmt: skip
ROWS = 32
H200 = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
COPY = re.compile(r"stablehlo\.(\w+) .*tensor<([\dx]+)x\w+>$", re.MULTILINE)


@pytest.fixture
def on_gpu(monkeypatch):
    """Lowers for a GPU that is not there."""
    monkeypatch.setattr(layers, "_on_gpu", lambda query: True)
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=H200)):
        yield


def step_program(batch: int, length: int) -> str:
    """A forward of a block of each canvas and its writes to the cache, from shapes only."""
    new = partial(init_params, LLADA_8B, dtype=jnp.bfloat16)
    params = jax.eval_shape(new, jax.random.key(0))
    cache = jax.eval_shape(partial(cache_for, config=LLADA_8B, batch=batch, length=length), params)
    at = jax.ShapeDtypeStruct((batch, ROWS), jnp.int32)

    def step(params, tokens, positions, cache) -> tuple[RowsOut, KVCache]:
        every = jnp.ones(at.shape, bool), jnp.ones((batch, length), bool)
        rows = make_rows(tokens, positions, *every)
        out = forward_rows(params, LLADA_8B, rows, cache)
        return out, write_rows(cache, rows, out)

    traced = jax.jit(step, donate_argnums=3).trace(params, at, at, cache)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(("batch", "length", "kernels"), [(1, 4096, 1), (8, 256, 1), (1, 1024, 0)])
def test_a_step_reads_each_layers_cache_in_place(on_gpu, batch, length, kernels):
    """Nothing joins, moves or converts half of a layer's keys. Many cached positions are read by
    one kernel a layer, whose operands are the layer's cache itself."""
    program = step_program(batch, length)
    assert program.count("call @run_layer") == LLADA_8B.n_layers
    functions = [text for text in program.split("func.func private ") if "@run_layer" in text[:20]]
    cached = f"tensor<{batch}x{LLADA_8B.n_kv_heads}x{length}x{LLADA_8B.head_dim}xbf16>"
    for function in functions:
        keys, values = re.findall(rf"(%arg\d+): {cached}", function)
        calls = re.findall(r"custom_call @(\S+)\(%\w+, (%\w+), (%\w+), ", function)
        assert calls == [("__gpu$xla.gpu.triton", keys, values)] * kernels
    half = batch * LLADA_8B.n_kv_heads * length * LLADA_8B.head_dim // 2
    made = {name for name, size in COPY.findall(program) if prod(map(int, size.split("x"))) >= half}
    assert made == set()
