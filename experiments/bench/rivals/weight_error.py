"""How far quantized weights are from the ones that they were made of: a checkpoint in bfloat16."""

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np

from experiments.bench.rivals.gguf_file import gguf_name
from experiments.harness.random_weights import RandomWeights
from llada_jax.backend.weights import restore, store, stored_as
from llada_jax.config import ModelConfig, Quant
from llada_jax.model.params import named_specs

ROWS = 64
"""Of each matrix; its numbers are all of one distribution."""


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
        (rows,) = weights.rows(name, 0, min(ROWS, spec.shape[0]))
        rows = rows.astype(ml_dtypes.bfloat16).astype(np.float32)
        difference = restored(name, rows) - rows
        squares += spec.size * float((difference**2).mean() / (rows**2).mean())
        numbers += spec.size
    return (squares / numbers) ** 0.5
