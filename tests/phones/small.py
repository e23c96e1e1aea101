"""A small model with its lowered steps, and the profile of a real phone."""

from functools import cache

from llada_jax.backend.lower import lower
from llada_jax.backend.protocol import Bucket
from llada_jax.backend.steps import body_step
from llada_jax.config import ModelConfig
from llada_jax.phones.graphs import Graphs
from llada_jax.phones.profile import load_profile

SHAPE = ModelConfig(
    family="llada", vocab_size=512, width=64, n_layers=4, n_heads=4, n_kv_heads=2, head_dim=16,
    ffn_width=128, rope_theta=1e4, norm_eps=1e-5, max_length=256,
)  # fmt: skip
GRAPHS = Graphs(SHAPE)
PHONE = load_profile("SM8750")


@cache
def body(rows: int, cached: int):
    return lower(body_step(SHAPE, range(SHAPE.n_layers), Bucket(rows, cached)), GRAPHS.quant)
