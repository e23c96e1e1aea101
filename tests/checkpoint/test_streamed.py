"""Parameters streamed a few rows at a time equal loaded parameters."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llada_jax.checkpoint import load_params, open_checkpoint, save_huggingface
from llada_jax.checkpoint.sources import StoredTensor
from llada_jax.config import ModelConfig, MoEConfig
from llada_jax.model.params import ModelParams, named_specs, parameter_name
from llada_jax.model.quantize import QuantArray, dequantize
from tests.checkpoint.folders import (
    FAMILIES,
    GOLDENS,
    golden_config,
    golden_tensors,
    write_folder,
    write_shards,
)
from tests.checkpoint.test_gguf import EVERY_PAIR, write_gguf
from tests.drawn_params import drawn_params


def by_name(params: ModelParams) -> dict[str, Any]:
    leaves = jax.tree.leaves_with_path(params, is_leaf=lambda leaf: isinstance(leaf, QuantArray))
    return {parameter_name(path): leaf for path, leaf in leaves}


def joined(pieces: Iterator[Any]) -> Any:
    return jax.tree.map(lambda *parts: np.concatenate([np.asarray(p) for p in parts]), *pieces)


def wide(leaf: Any) -> np.ndarray:
    leaf = dequantize(leaf, np.float32) if isinstance(leaf, QuantArray) else leaf
    return np.asarray(leaf, np.float32)


def assert_streams(source: Path) -> None:
    """Every parameter, whole and in part, equals the source loaded in float32."""
    config, params, _ = load_params(source, "float32")
    streamed, _ = open_checkpoint(source)
    assert streamed.config == config
    loaded = by_name(params)
    assert loaded.keys() == named_specs(config).keys()
    for name, expected in loaded.items():
        np.testing.assert_array_equal(wide(joined(streamed.rows(name))), expected)
        length = len(expected)
        for start, stop in ((0, 1), (1, length - 1), (length // 2, None), (length - 1, length)):
            if start < (length if stop is None else stop):
                part = wide(joined(streamed.rows(name, start, stop)))
                np.testing.assert_array_equal(part, expected[start:stop])


@pytest.mark.parametrize("family", FAMILIES)
def test_one_file(family: str) -> None:
    assert_streams(GOLDENS / family)


@pytest.mark.parametrize("family", ["llada-gqa", "llada2-moe"])
def test_shards(family: str, tmp_path: Path) -> None:
    assert_streams(write_shards(tmp_path, golden_config(family), golden_tensors(family), 3))


@pytest.mark.parametrize(("model", "kind"), EVERY_PAIR)
def test_gguf(model: str, kind: str, tmp_path: Path) -> None:
    """LLaDA's queries and keys have permuted rows there."""
    assert_streams(write_gguf(tmp_path / "model.gguf", model, kind))


@pytest.mark.parametrize("model", ["llada-gqa", "dream"])
def test_integers_of_q4_0_stay(model: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", model, "Q4_0")
    _, params, _ = load_params(path, "int4")
    streamed, _ = open_checkpoint(path)
    quantized = {n: leaf for n, leaf in by_name(params).items() if isinstance(leaf, QuantArray)}
    assert len(quantized) >= 15
    for name, expected in quantized.items():
        for start, stop in ((0, None), (3, 9)):
            found = joined(streamed.rows(name, start, stop))
            assert isinstance(found, QuantArray) and found.values.dtype == ml_dtypes.int4
            np.testing.assert_array_equal(found.values, expected.values[start:stop])
            np.testing.assert_array_equal(found.scale, expected.scale[start:stop])


@pytest.mark.parametrize("stored", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_floats_come_as_they_are_stored(stored: Any, tmp_path: Path) -> None:
    tensors = {name: tensor.astype(stored) for name, tensor in golden_tensors("llada-gqa").items()}
    folder = write_folder(tmp_path, golden_config("llada-gqa"), tensors)
    streamed, _ = open_checkpoint(folder)
    up = joined(streamed.rows("layers.1.ffn.up"))
    expected = tensors["model.transformer.blocks.1.up_proj.weight"]
    np.testing.assert_array_equal(up, expected, strict=True)


@settings(max_examples=40)
@given(
    start=st.integers(0, 63),
    length=st.integers(1, 64),
    elements=st.integers(1, 3000),
    name=st.sampled_from(["layers.0.attention.query", "layers.1.ffn.down", "final_norm"]),
)
def test_pieces_of_any_size_make_any_part(
    start: int, length: int, elements: int, name: str
) -> None:
    streamed, _ = open_checkpoint(GOLDENS / "llada-mha")
    stop = min(start + length, 64)
    expected = joined(streamed.rows(name))[start:stop]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llada_jax.checkpoint.sources._STREAMED_ELEMENTS", elements)
        pieces = list(streamed.rows(name, start, stop))
    columns = int(np.prod(expected.shape[1:]))
    assert max(map(len, pieces)) <= max(1, elements // columns)
    np.testing.assert_array_equal(joined(iter(pieces)), expected)


def test_experts_come_one_at_a_time() -> None:
    streamed, _ = open_checkpoint(GOLDENS / "llada2-moe")
    assert streamed.config.moe is not None
    pieces = list(streamed.rows("layers.1.ffn.up"))
    assert [piece.shape[0] for piece in pieces] == [1] * streamed.config.moe.n_experts


def test_a_single_expert_is_a_stack_of_one(tmp_path: Path) -> None:
    config = ModelConfig(
        family="llada_moe",
        vocab_size=64,
        width=32,
        n_layers=1,
        n_heads=2,
        n_kv_heads=2,
        head_dim=16,
        ffn_width=16,
        rope_theta=1e4,
        norm_eps=1e-5,
        max_length=64,
        qk_norm=True,
        moe=MoEConfig(n_experts=1, experts_per_token=1, expert_width=16),
    )
    params = drawn_params(config)
    save_huggingface(tmp_path / "model", config, params, "float32")
    assert_streams(tmp_path / "model")


def test_only_requested_parameters_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    real = StoredTensor.pieces

    def counted(self: StoredTensor, *asked: int) -> Iterator[np.ndarray]:
        nonlocal read
        for rows in real(self, *asked):
            read += rows.nbytes
            yield rows

    monkeypatch.setattr(StoredTensor, "pieces", counted)
    streamed, _ = open_checkpoint(GOLDENS / "llada2-moe")
    config = streamed.config
    assert read == 0
    for _ in streamed.rows("embedding", 4, 7):
        pass
    assert read == 3 * config.width * 4
    read = 0
    for _ in streamed.rows("layers.1.attention.key"):  # some rows of a fused matrix
        pass
    assert read == config.n_kv_heads * config.head_dim * config.width * 4


def test_sources_are_checked_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no model at '.*absent'; allowed: a bundled mod"):
        open_checkpoint(tmp_path / "absent")
    tensors = golden_tensors("llada-gqa")
    del tensors["model.transformer.blocks.1.up_proj.weight"]
    folder = write_folder(tmp_path / "lacks", golden_config("llada-gqa"), tensors)
    with pytest.raises(ValueError, match=r"lacks lacks model\.transformer\.blocks\.1\.up_proj\.we"):
        open_checkpoint(folder)


def test_bundled_models_stream_with_their_tokenizer() -> None:
    streamed, tokenizer = open_checkpoint("tiny")
    expected, params, folder = load_params("tiny", "bfloat16")
    assert streamed.config == expected and tokenizer == folder
    found = joined(streamed.rows("layers.2.attention.output"))
    np.testing.assert_array_equal(jnp.asarray(found), params.layers[2].attention.output)
