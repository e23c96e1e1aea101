"""Checkpoint folders for tests: the goldens, and folders written from tensors."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import load_file, save_file

from llada_jax.checkpoint import load_params
from llada_jax.config import ModelConfig
from llada_jax.model.forward import forward
from llada_jax.model.params import ModelParams

GOLDENS = Path(__file__).parents[1] / "goldens"
FAMILIES = ("llada-mha", "llada-gqa", "llada-moe", "llada2-moe", "dream")
NEW_FAMILIES = (
    "llada-moe-released",
    "sdar-b4",
    "sdar-moe-b4",
    "rnd1",
    "fast-dllm-v2",
    "stable-diffcoder",
    "dream-reasoner",
    "a2d-qwen2-mdlm",
    "a2d-qwen3-mdlm",
    "nemotron",
    "wedlm",
    "wedlm-bias",
    "ar-llama",
    "ar-llama3",
    "ar-qwen2",
    "ar-qwen3",
)
"""Goldens of the families of 2026: every forward is tested, and the special cases of each."""
TOLERANCE = 2e-4

_forward = jax.jit(forward, static_argnums=1)


def loaded(source: Path | str, dtype: str | None = None) -> tuple[ModelConfig, ModelParams]:
    """A checkpoint's configuration and parameters, without the folder of its tokenizer."""
    return load_params(source, dtype)[:2]


def golden_config(name: str) -> dict[str, Any]:
    return json.loads((GOLDENS / name / "config.json").read_text())


def golden_tensors(name: str) -> dict[str, np.ndarray]:
    return load_file(GOLDENS / name / "model.safetensors")


def golden_forward(name: str) -> tuple[np.ndarray, np.ndarray, int | None]:
    """Tokens, logits and the block length of the mask."""
    data = np.load(GOLDENS / name / "forward.npz")
    block_length = int(data["block_length"]) if "block_length" in data else None
    return data["tokens"], data["logits"], block_length


def write_folder(folder: Path, hf: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf))
    save_file(tensors, folder / "model.safetensors")
    return folder


def write_shards(
    folder: Path, hf: dict[str, Any], tensors: dict[str, np.ndarray], n_shards: int
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf))
    shard_of = {}
    for index in range(n_shards):
        shard = f"model-{index + 1:05}-of-{n_shards:05}.safetensors"
        names = sorted(tensors)[index::n_shards]
        save_file({name: tensors[name] for name in names}, folder / shard)
        shard_of.update(dict.fromkeys(names, shard))
    index = {"metadata": {}, "weight_map": shard_of}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def logits(
    config: ModelConfig, params: ModelParams, tokens: np.ndarray, block_length: int | None = None
) -> np.ndarray:
    if block_length is not None:
        config = config.replace(block_length=block_length)
    return np.asarray(_forward(params, config, tokens))


def same_bits(left: ModelParams, right: ModelParams) -> bool:
    """Whether two trees have the same structure, dtypes and bits."""
    if jax.tree.structure(left) != jax.tree.structure(right):
        return False
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(
        a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs
    )
