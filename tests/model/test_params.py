"""The description of the parameters, and functions that follow from it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llada_jax.checkpoint.config_json import config_from_hf
from llada_jax.config import ModelConfig, MoEConfig
from llada_jax.model.families.family import families
from llada_jax.model.forward import forward
from llada_jax.model.mesh import partition_of
from llada_jax.model.params import (
    Experts,
    FeedForward,
    abstract_params,
    init_params,
    param_count,
)

LLADA_8B = {
    "model_type": "llada",
    "d_model": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "n_kv_heads": 32,
    "mlp_hidden_size": 12288,
    "embedding_size": 126464,
    "vocab_size": 126464,
    "max_sequence_length": 4096,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "weight_tying": False,
}
LLADA2_MINI = {
    "model_type": "llada2_moe",
    "num_hidden_layers": 20,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 5120,
    "first_k_dense_replace": 1,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "num_shared_experts": 1,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "rope_theta": 600000.0,
    "partial_rotary_factor": 0.5,
    "vocab_size": 157184,
}


def tiny(family: str) -> ModelConfig:
    row = families()[family]
    moe = None
    if row.moe_facts is not None:
        moe = MoEConfig(n_experts=4, experts_per_token=2, expert_width=12, first_layer=1,
                        shared_width=20, **row.moe_facts)  # fmt: skip
    facts = {**row.facts, "qk_norm": row.facts.get("qk_norm", bool(row.presence))}
    return ModelConfig(
        family=family, vocab_size=40, width=24, n_layers=3, n_heads=4, n_kv_heads=2, head_dim=8,
        ffn_width=36, rope_theta=1e4, norm_eps=1e-6, max_length=32, moe=moe, **facts,
    )  # fmt: skip


@pytest.mark.parametrize("family", families())
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_have_the_described_shapes(family: str, tied: bool) -> None:
    config = tiny(family).replace(tied_embeddings=tied)
    specs = abstract_params(config)
    params = jax.eval_shape(lambda key: init_params(config, key, jnp.bfloat16), jax.random.key(0))
    assert jax.tree.structure(specs) == jax.tree.structure(params)
    shapes = jax.tree.map(lambda spec, leaf: spec.shape == leaf.shape, specs, params)
    assert all(jax.tree.leaves(shapes))
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.bfloat16)}
    assert (params.head is None) == tied
    assert param_count(config) == sum(leaf.size for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize("family", families())
def test_random_parameters_fit_the_forward(family: str) -> None:
    config = tiny(family).replace(n_layers=2)

    def run(key: jax.Array) -> jax.Array:
        return forward(init_params(config, key), config, jnp.zeros((1, 6), jnp.int32))

    out = jax.eval_shape(run, jax.random.key(0))
    assert out.shape == (1, 6, config.vocab_size)


@pytest.mark.parametrize("family", families())
def test_partitions_have_the_rank_of_their_parameter(family: str) -> None:
    config = tiny(family)
    for spec in jax.tree.leaves(abstract_params(config)):
        partition = partition_of(spec)
        assert len(partition) == len(spec.shape) == len(spec.axes)
        used = [axis for axis in partition if axis is not None]
        assert len(used) == len(set(used))


def test_the_first_layers_of_a_moe_are_dense() -> None:
    layers = abstract_params(tiny("llada2")).layers
    assert [type(layer.ffn) for layer in layers] == [FeedForward, Experts, Experts]


def test_random_parameters_by_their_specification() -> None:
    config = tiny("llada").replace(width=256, ffn_width=512, n_layers=1)
    init = jax.jit(init_params, static_argnums=0)
    params = init(config, jax.random.key(1))
    attention, ffn = params.layers[0].attention, params.layers[0].ffn
    assert isinstance(ffn, FeedForward)
    assert (params.final_norm == 1).all()
    assert np.std(params.embedding) == pytest.approx(0.02, rel=0.05)
    assert np.std(attention.query) == pytest.approx(256**-0.5, rel=0.05)
    assert np.std(ffn.down) == pytest.approx((512 * 2 * config.n_layers) ** -0.5, rel=0.05)
    biased = init(tiny("a2d_qwen2").replace(n_layers=1), jax.random.key(1))
    assert not np.any(biased.layers[0].attention.query_bias)


def test_the_size_of_llada_8b() -> None:
    config = config_from_hf(LLADA_8B)
    assert param_count(config) == 8_015_581_184
    assert config.mask_id == 126336
    outside = 2 * config.vocab_size * config.width
    assert param_count(config) - outside == pytest.approx(6.98e9, rel=1e-3)


def test_the_size_of_llada2_mini() -> None:
    config = config_from_hf(LLADA2_MINI)
    assert param_count(config) == pytest.approx(16.26e9, rel=1e-3)
    assert (config.mask_id, config.block_length, config.rotary_dims) == (156895, 32, 64)
