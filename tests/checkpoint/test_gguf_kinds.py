"""Every kind of block of a GGUF file, in files of random bytes, gives the values of `gguf`."""

from pathlib import Path

import gguf
import jax
import ml_dtypes
import numpy as np
import pytest

from llada_jax.checkpoint.gguf import block_kinds
from llada_jax.checkpoint.gguf_metadata import config_from_gguf, gguf_names
from llada_jax.checkpoint.sources import param_sources
from llada_jax.model.quantize import dequantize, is_quantized
from tests.checkpoint.folders import loaded

WIDTH, VOCAB = 256, 8
SCALES = {
    "Q6_K": [208],
    "Q5_K": [0, 2],
    "Q4_K": [0, 2],
    "Q5_1": [0, 2],
    "Q4_1": [0, 2],
    "Q3_K": [108],
    "Q2_K": [80, 82],
    "TQ2_0": [64],
    "TQ1_0": [52],
    "IQ1_M": [],
    "MXFP4": [],
    "NVFP4": [],
}
"""Offsets of a block's float16 numbers, which random bytes could make NaN; by default the first."""
METADATA = {
    "block_count": 1,
    "embedding_length": WIDTH,
    "feed_forward_length": WIDTH,
    "attention.head_count": 4,
    "attention.head_count_kv": 4,
    "context_length": 64,
}


def drawn_blocks(kind: str, n_rows: int, rng: np.random.Generator) -> np.ndarray:
    numbers, n_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = rng.integers(0, 256, (n_rows, WIDTH // numbers, n_bytes), dtype=np.uint8)
    for at in SCALES.get(kind, [0]):
        scale = rng.uniform(-0.01, 0.01, raw.shape[:2]).astype(np.float16)
        raw[..., at : at + 2] = scale[..., None].view(np.uint8)
    if kind == "MXFP4":  # its scales are exponents
        raw[..., 0] = rng.integers(110, 127, raw.shape[:2])
    if kind == "IQ1_M":  # its float16 is spread over four numbers, four bits each
        raw[..., 55] = 0x20
    return raw.reshape(n_rows, -1)


def drawn_file(path: Path, kind: str) -> dict[str, np.ndarray]:
    """Writes a model, and returns the values of its matrices."""
    out = gguf.GGUFWriter(path, "dream")
    for key, value in METADATA.items():
        out.add_uint32(f"dream.{key}", value)
    out.add_rope_freq_base(1e6)
    out.add_layer_norm_rms_eps(1e-6)
    out.add_mask_token_id(VOCAB - 1)
    facts = {f"dream.{key}": value for key, value in METADATA.items()}
    facts |= {"general.architecture": "dream", "dream.rope.freq_base": 1e6,
              "dream.attention.layer_norm_rms_epsilon": 1e-6}  # fmt: skip
    values, rng = {}, np.random.default_rng(0)
    for source in param_sources(config_from_gguf(facts, VOCAB), gguf_names()):
        (name,), shape = source.tensors, source.spec.shape
        if len(shape) == 1:
            out.add_tensor(name, np.ones(shape, np.float32))
            continue
        qtype = gguf.GGMLQuantizationType[kind]
        raw = drawn_blocks(kind, shape[0], rng)
        out.add_tensor(name, raw, raw_dtype=qtype)
        values[source.name] = gguf.dequantize(raw, qtype)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return values


def matrices(config, params) -> dict[str, np.ndarray]:
    sources = param_sources(config, gguf_names())
    leaves = jax.tree.leaves(params, is_leaf=is_quantized)
    named = zip(sources, leaves, strict=True)
    return {source.name: leaf for source, leaf in named if len(source.spec.shape) > 1}


@pytest.mark.parametrize("kind", block_kinds())
def test_values_match_the_library(kind: str, tmp_path: Path) -> None:
    values = drawn_file(tmp_path / "model.gguf", kind)
    found = matrices(*loaded(tmp_path / "model.gguf", "float32"))
    assert found.keys() == values.keys()
    for name, expected in values.items():
        np.testing.assert_array_equal(found[name], expected)
    as_stored = matrices(*loaded(tmp_path / "model.gguf"))
    for name, expected in values.items():
        np.testing.assert_array_equal(as_stored[name], expected.astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize(("dtype", "steps"), [("int8", 127), ("int4", 7)])
def test_they_load_as_integers_within_half_a_step(
    dtype: str, steps: int, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    values = drawn_file(tmp_path / "model.gguf", "Q4_K")
    found = matrices(*loaded(tmp_path / "model.gguf", dtype))
    for name, expected in values.items():
        if is_quantized(found[name]):
            error = np.abs(dequantize(found[name], "float32") - expected).max()
            assert error <= 0.51 * np.abs(expected).max() / steps
    said = capsys.readouterr().err
    assert f"model.gguf as {dtype}: rounding anew moves weights of Q4_K by " in said
    quantized = [name for name in values if is_quantized(found[name])]
    lost = [dequantize(found[name], "float32") - values[name] for name in quantized]
    share = np.sqrt(sum(map(_squares, lost)) / sum(_squares(values[name]) for name in quantized))
    assert f"Q4_K by {share:.2%} of their size" in said


def _squares(numbers: np.ndarray) -> float:
    return float(np.square(numbers, dtype=np.float64).sum())


def test_every_kind_of_released_files_is_among_them() -> None:
    assert {"Q2_K", "Q3_K", "Q4_K", "IQ3_S", "IQ3_XXS", "MXFP4", "TQ1_0", "TQ2_0"} <= {
        *block_kinds()
    }


def test_another_kind_is_named(tmp_path: Path) -> None:
    out = gguf.GGUFWriter(tmp_path / "model.gguf", "dream")
    for key, value in METADATA.items():
        out.add_uint32(f"dream.{key}", value)
    out.add_rope_freq_base(1e6)
    out.add_layer_norm_rms_eps(1e-6)
    facts = {f"dream.{key}": value for key, value in METADATA.items()}
    facts |= {"general.architecture": "dream", "dream.rope.freq_base": 1e6,
              "dream.attention.layer_norm_rms_epsilon": 1e-6}  # fmt: skip
    for source in param_sources(config_from_gguf(facts, VOCAB), gguf_names()):
        out.add_tensor(source.tensors[0], np.ones(source.spec.shape, np.int16))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    with pytest.raises(ValueError, match=r"is I16.*; allowed: F32, F16, BF16, Q4_0, .*Q2_K"):
        loaded(tmp_path / "model.gguf")
