"""The GGUF file is a LLaDA model that our reader loads."""

import gguf
import numpy as np
import pytest

import llada_jax as lj
from experiments.bench.random_weights import (
    RandomWeights,
    error_as_stored,
    error_of_gguf,
    gguf_name,
    write_gguf,
)
from llada_jax.config import ModelConfig

SHAPE = ModelConfig(
    family="llada", vocab_size=96, width=64, n_layers=2, n_heads=2, n_kv_heads=2, head_dim=32,
    ffn_width=96, rope_theta=5e5, norm_eps=1e-5, max_length=64, mask_id=95,
)  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "random.gguf"
    write_gguf(path, SHAPE, RandomWeights(SHAPE, "float32"))
    return path


def test_it_is_the_model_that_was_written(path):
    model = lj.load(path, "float32")
    assert model.config.replace(mask_id=95) == SHAPE
    (down,) = RandomWeights(SHAPE, "float32").rows("layers.1.ffn.down")
    np.testing.assert_allclose(model.params.layers[1].ffn.down, down, rtol=2**-8)


@pytest.mark.parametrize("architecture", ["llada", "diffuse"])
def test_both_programs_find_their_keys(path, architecture):
    fields = gguf.GGUFReader(path).fields
    assert fields[f"{architecture}.block_count"].contents() == 2
    assert fields[f"{architecture}.rope.freq_base"].contents() == 5e5


def test_names():
    assert gguf_name("layers.3.ffn.down") == "blk.3.ffn_down.weight"
    assert gguf_name("head") == "output.weight"


def test_bfloat16_is_exact(path):
    assert error_of_gguf(SHAPE, path) == 0


def test_fewer_bits_have_larger_errors():
    wide = SHAPE.replace(width=128, head_dim=64)
    errors = [error_as_stored(wide, quant) for quant in ("int8", "int4_block32", "int4")]
    assert 0.003 < errors[0] < 0.02 and errors == sorted(errors)
