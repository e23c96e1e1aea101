"""Random weights as the contenders have them: a GGUF file in bfloat16, from which llama.cpp makes
its own formats, and how far quantized weights are from a checkpoint in bfloat16."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from experiments.harness.random_weights import RandomWeights
from llada_jax import atomic
from llada_jax.backend.weights import restore, store, stored_as
from llada_jax.config import ModelConfig, Quant
from llada_jax.model.families.gguf_metadata import gguf_keys, gguf_names
from llada_jax.model.params import named_specs

_ARCHITECTURES = ("llada", "diffuse")
"""Who asks for the metadata: llama.cpp, and diffuse-cpp."""
_ROWS = 64
"""Of each matrix, whose error is taken; its numbers are all of one distribution."""


def write_gguf(path: Path, config: ModelConfig, weights: RandomWeights) -> None:
    """Writes a model of LLaDA's family without a tokenizer; the file appears once it is complete.
    Raises ImportError without the extra `gguf`."""
    import gguf

    specs = named_specs(config)
    with atomic.new_file(path) as part:
        writer = gguf.GGUFWriter(part, _ARCHITECTURES[0])
        for architecture in _ARCHITECTURES:
            for ours, key in gguf_keys(architecture).items():
                value = getattr(config, ours)
                if value is not None and key.startswith(architecture):
                    add: Any = writer.add_float32 if isinstance(value, float) else writer.add_uint32
                    add(key, value)
        writer.add_tokenizer_model("no_vocab")
        writer.add_causal_attention(False)
        for name, spec in specs.items():
            wide = len(spec.shape) == 1  # norms stay float32
            kind = gguf.GGMLQuantizationType.F32 if wide else gguf.GGMLQuantizationType.BF16
            size = (4 if wide else 2) * spec.size
            writer.add_tensor_info(gguf_name(name), spec.shape, np.dtype("float32"), size, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, spec in specs.items():
            dtype = np.float32 if len(spec.shape) == 1 else ml_dtypes.bfloat16
            whole = np.concatenate([*weights.rows(name)], dtype=dtype, casting="same_kind")
            writer.write_tensor_data(whole)
        writer.close()


def gguf_name(name: str) -> str:
    """Returns llama.cpp's name of a parameter: `layers.3.ffn.down` is `blk.3.ffn_down.weight`."""
    prefix, _, rest = name.partition(".")
    layer, _, leaf = rest.partition(".")
    return gguf_names()[f"layers.{{i}}.{leaf}" if prefix == "layers" else name].format(i=layer)


def error_as_stored(config: ModelConfig, quant: Quant) -> float:
    """Returns the error of what an export stores: root mean square, relative to the weights'."""

    def restored(name: str, rows: np.ndarray) -> np.ndarray:
        spec = stored_as(name, rows.shape, quant)
        return np.concatenate([restore(piece, spec) for piece in store(iter([rows]), spec)])

    return _error(config, restored)


def error_of_gguf(config: ModelConfig, path: Path) -> float:
    """Returns the same of a GGUF file. Raises ImportError without the extra `gguf`."""
    import gguf

    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}

    def restored(name: str, rows: np.ndarray) -> np.ndarray:
        tensor = tensors[gguf_name(name)]
        return gguf.dequantize(tensor.data[: len(rows)], tensor.tensor_type)

    return _error(config, restored)


def _error(config: ModelConfig, restored: Callable[[str, np.ndarray], np.ndarray]) -> float:
    """Weighs each matrix that rows are multiplied with by its numbers."""
    weights, squares, numbers = RandomWeights(config, "float32"), 0.0, 0
    for name, spec in named_specs(config).items():
        if len(spec.shape) == 1 or name == "embedding":
            continue
        (rows,) = weights.rows(name, 0, min(_ROWS, spec.shape[0]))
        rows = rows.astype(ml_dtypes.bfloat16).astype(np.float32)
        difference = restored(name, rows) - rows
        squares += spec.size * float((difference**2).mean() / (rows**2).mean())
        numbers += spec.size
    return (squares / numbers) ** 0.5
