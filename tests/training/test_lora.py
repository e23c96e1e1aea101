"""Adapters: they begin as zero, train with bases of any dtype, and merge into plain floats."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llada_jax.checkpoint import load_params, save_huggingface
from llada_jax.config import LoraConfig
from llada_jax.model.forward import forward
from llada_jax.model.lora import Adapter, init_adapters, merge_adapters, with_adapters
from llada_jax.model.quantize import AdaptedWeight, dequantize, is_quantized, linear, quantize
from llada_jax.training.loop import train
from llada_jax.training.state import create_state, make_train_step, trained_params
from tests.drawn_params import cast_params, drawn_params
from tests.training import echo

MODEL = echo.MODEL.replace(
    vocab_size=32, width=32, n_layers=2, head_dim=16, rotary_dims=16, ffn_width=32
)
LORA = LoraConfig(rank=4, alpha=8.0)
CONFIG = echo.CONFIG.replace(steps=30, peak_lr=0.03, optimizer="adamw", weight_decay=0.0, lora=LORA)


@cache
def base(dtype: str | None = None):
    params = drawn_params(MODEL, 3)
    return jax.block_until_ready(params if dtype is None else cast_params(MODEL, params, dtype))


def drawn(lora: LoraConfig = LORA) -> dict[str, Adapter]:
    found = init_adapters(MODEL, lora, jax.random.key(0))
    key = jax.random.key(1)
    return {
        name: each._replace(up=0.1 * jax.random.normal(key, each.up.shape))
        for name, each in found.items()
    }


def test_each_matrix_has_an_adapter_with_a_zero_update():
    adapters = init_adapters(MODEL, LORA, jax.random.key(0))
    assert len(adapters) == 7 * MODEL.n_layers
    down, up = adapters["layers.1.ffn.down"]
    assert down.shape == (4, 32) and up.shape == (32, 4)
    for mine, theirs in zip(
        *map(jax.tree.leaves, (merge_adapters(base(), adapters, LORA), base())), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
    few = init_adapters(MODEL, LoraConfig(targets=("query",)), jax.random.key(0))
    assert list(few) == ["layers.0.attention.query", "layers.1.attention.query"]


@pytest.mark.parametrize("dtype", ["float32", "int8", "int4"])
def test_merged_parameters_match_base_and_adapters(dtype):
    tokens = jnp.arange(2 * 12).reshape(2, 12) % 30 + 2
    params, adapters = base(dtype), drawn()
    floats = jax.tree.map(
        lambda leaf: dequantize(leaf, jnp.float32) if is_quantized(leaf) else leaf,
        params, is_leaf=is_quantized,
    )  # fmt: skip
    floats = cast_params(MODEL, floats, "float32")
    beside = forward(with_adapters(floats, adapters, LORA), MODEL, tokens)
    together = forward(merge_adapters(params, adapters, LORA), MODEL, tokens)
    np.testing.assert_allclose(beside, together, rtol=2e-4, atol=2e-4)
    assert float(jnp.abs(together - forward(floats, MODEL, tokens)).max()) > 0.01


def test_an_adapted_product_adds_the_low_rank_product():
    rng = np.random.default_rng(0)
    x, matrix = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 32), (8, 32)))
    down, up = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 32), (8, 2)))
    found = linear(x, AdaptedWeight(matrix, down, up))
    np.testing.assert_allclose(found, x @ (matrix + up @ down).T, rtol=1e-4, atol=1e-4)
    narrow = quantize(matrix, 8)
    found = linear(x, AdaptedWeight(narrow, down, up)) - linear(x, narrow)
    np.testing.assert_allclose(found, x @ (up @ down).T, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("dtype", "changes"),
    [
        pytest.param("float32", {}, marks=pytest.mark.slow),
        ("int8", {"matmul_dtype": "bfloat16", "activation_dtype": "bfloat16"}),
        pytest.param("int4", {"remat": True}, marks=pytest.mark.slow),
    ],
)
def test_the_loss_falls_and_the_base_is_unchanged(dtype, changes):
    config = CONFIG.replace(**changes)
    parent = base(dtype)
    before = jax.device_get(parent)
    state, step = create_state(MODEL, config, parent), make_train_step(MODEL, config, parent=parent)
    losses = []
    for number in range(config.steps):
        state, metrics = step(state, echo.batch_at(echo.example, config, 1, number))
        losses.append(float(metrics["loss"]))
    assert np.mean(losses[-8:]) < 0.85 * np.mean(losses[:4])
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(parent), before)
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {np.dtype("float32")}
    assert all(np.abs(each.up).max() > 0 for each in state.params.values())


@pytest.mark.slow
def test_a_run_of_adapters_resumes_and_exports_a_plain_model(tmp_path):
    config = CONFIG.replace(steps=4, log_every=2, checkpoint_every=2)
    whole = train(
        tmp_path / "whole", MODEL, config, echo.example, progress=False, parent=base("int8")
    )
    for steps in (2, 4):
        part = config.replace(steps=steps)
        state = train(
            tmp_path / "run", MODEL, part, echo.example, progress=False, parent=base("int8")
        )
    jax.tree.map(np.testing.assert_array_equal, state.params, whole.params)
    size = sum(each.stat().st_size for each in (tmp_path / "run").rglob("*") if each.is_file())
    assert size < 300_000, "a checkpoint has the adapters and their moments alone"
    save_huggingface(
        tmp_path / "model", MODEL, trained_params(state.params, config, base("int8")), "float32"
    )
    _, loaded, _ = load_params(tmp_path / "model", "float32")
    expected = merge_adapters(base("int8"), whole.params, LORA)
    jax.tree.map(np.testing.assert_array_equal, loaded, expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LoraConfig(rank=0), "rank is 0; allowed: 1 or more"),
        (lambda: LoraConfig(alpha=0.0), "alpha is 0.0; allowed: above 0"),
        (lambda: LoraConfig(targets=("router",)), r"lora.targets is \['router'\]; allowed: one or"),
        (lambda: LoraConfig(targets=()), r"lora.targets is \[\]; allowed: one or more of query"),
        (lambda: CONFIG.replace(optimizer="muon"), "optimizer is 'muon' with lora; allowed: 'adam"),
        (
            lambda: create_state(MODEL, CONFIG),
            "lora is set without a parent; allowed: with",
        ),
        (
            lambda: CONFIG.replace(activation_dtype="bfloat16"),
            "activation_dtype is 'bfloat16' with matmul_dtype 'float32'; allowed: 'float32', or",
        ),
    ],
)
def test_models_without_target_matrices_are_an_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()
