"""Our contenders run a forward and a decoding, and layers are timed separately."""

import jax
import jax.numpy as jnp
import pytest

from experiments.bench.random_weights import random_params
from experiments.bench.rivals.answers import LayerClock
from experiments.bench.rivals.ours import Ours, clocked
from experiments.bench.rivals.rivals_bench import RivalsBenchConfig, time_rivals
from llada_jax.api.denoisers import denoiser_for
from llada_jax.config import ModelConfig
from llada_jax.model.head import ScoreRules
from llada_jax.model.quantize import QuantArray

SHAPE = ModelConfig(
    family="llada", vocab_size=96, width=32, n_layers=2, n_heads=2, n_kv_heads=2, head_dim=16,
    ffn_width=64, rope_theta=5e5, norm_eps=1e-5, max_length=512, mask_id=95, eos_id=94, pad_id=94,
)  # fmt: skip
TOLD = {"cached": 32, "prompt_length": 8, "gen_length": 8, "block_length": 4}


def test_int8_is_in_the_matrices_and_the_rest_is_narrow():
    params = random_params(SHAPE, "int8", dtype="bfloat16")
    assert isinstance(params.layers[1].ffn.down, QuantArray)
    floats = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim == 1]
    assert {leaf.dtype for leaf in floats} == {jnp.dtype("bfloat16")}
    assert params.embedding.dtype == jnp.bfloat16


def test_layers_are_a_part_of_a_forward():
    clock = LayerClock()
    denoiser = clocked(denoiser_for(SHAPE, ScoreRules()), clock)
    ours = Ours(denoiser, random_params(SHAPE, "float32", dtype="bfloat16"), SHAPE, TOLD)
    assert ours.forward(4).token.shape == (1, 4)
    assert clock.seconds > 0


@pytest.mark.slow
def test_a_small_shape_from_beginning_to_end(tmp_path):
    config = RivalsBenchConfig(
        rows=(4,),
        layers=1,
        ours=("litert/int8", "native/int8", "xla/int8"),
        scratch=str(tmp_path / "scratch"),
    )
    rows = {row.name: row for row in time_rivals(SHAPE, config, repeats=2)}
    for kind in config.ours:
        assert 0 < rows[f"forward/{kind}/4"].value < rows[f"decode/{kind}"].value
        assert rows[f"weight_error/{kind}"].value < 0.02
    assert rows["ratio/decode/xla/int8"].value > 0
    assert rows["read_bandwidth"].value > 0
    assert not list((tmp_path / "scratch").iterdir())
