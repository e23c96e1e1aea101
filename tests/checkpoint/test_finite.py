"""NaN and infinity in a checkpoint are found in every format, and named."""

from pathlib import Path

import gguf
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from llada_jax.checkpoint import open_checkpoint, save_huggingface
from tests.checkpoint.folders import (
    GOLDENS,
    golden_config,
    golden_tensors,
    loaded,
    write_folder,
    write_shards,
)
from tests.checkpoint.test_gguf import finish, gguf_tensors, writer

MODEL = "llada-gqa"
NAME = "model.transformer.blocks.1.q_proj.weight"
BAD = (np.nan, np.inf, -np.inf)


def poisoned(value: float, dtype=np.float32, name: str = NAME) -> dict[str, np.ndarray]:
    """The golden's tensors, with two bad numbers in one of them."""
    tensors = {key: each.astype(dtype) for key, each in golden_tensors(MODEL).items()}
    tensors[name] = tensors[name].copy()
    tensors[name][3, 5] = tensors[name][-1, 0] = value
    return tensors


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("stored", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("dtype", [None, "float32", "int8", "int4"])
def test_safetensors(value: float, stored, dtype: str | None, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, golden_config(MODEL), poisoned(value, stored))
    message = (
        rf"model\.safetensors: {NAME} has 2 numbers that are NaN or infinite, the first at "
        r"\[3, 5\]; allowed: finite"
    )
    with pytest.raises(ValueError, match=message):
        loaded(folder, dtype)


def test_shards_and_a_stream(tmp_path: Path) -> None:
    folder = write_shards(tmp_path, golden_config(MODEL), poisoned(np.nan), 2)
    with pytest.raises(ValueError, match=NAME):
        loaded(folder)
    streamed, _ = open_checkpoint(folder)
    list(streamed.rows("layers.0.attention.query"))
    with pytest.raises(ValueError, match=rf"{NAME} has 2 .* \[3, 5\]"):
        list(streamed.rows("layers.1.attention.query"))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("F32", None), ("BF16", None), ("Q8_0", None), ("Q8_0", "int8"), ("Q4_0", "int4")],
)
def test_gguf_and_the_scales_of_its_blocks(kind: str, dtype: str | None, tmp_path: Path) -> None:
    qtype = gguf.GGMLQuantizationType[kind]
    out = writer(tmp_path / "model.gguf", MODEL)
    for name, tensor in gguf_tensors(MODEL, golden_tensors(MODEL)).items():
        raw = tensor if tensor.ndim == 1 else gguf.quants.quantize(tensor, qtype)
        if name == "blk.1.attn_q.weight":
            raw = raw.copy()
            number = np.float32(np.inf) if kind == "F32" else np.float16(np.inf)
            number = ml_dtypes.bfloat16(np.inf) if kind == "BF16" else number
            raw.view(np.uint8).reshape(len(raw), -1)[4, : number.nbytes] = np.frombuffer(
                number.tobytes(), np.uint8
            )
        out.add_tensor(name, raw, raw_dtype=None if tensor.ndim == 1 else qtype)
    finish(out)
    with pytest.raises(ValueError, match=r"blk\.1\.attn_q\.weight has .* first at \[4, 0\]"):
        loaded(tmp_path / "model.gguf", dtype)


def test_a_model_saved_with_nan_is_refused(tmp_path: Path) -> None:
    config, params = loaded(GOLDENS / MODEL)
    params = jax.tree.map(lambda leaf: leaf.at[..., 0].set(jnp.nan), params)
    save_huggingface(tmp_path, config, params, "float32")
    with pytest.raises(ValueError, match="NaN or infinite"):
        loaded(tmp_path)
