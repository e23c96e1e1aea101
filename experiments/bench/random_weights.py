"""Random parameters of any shape, generated row by row, to time models without their weights.

They are written to memory, to an export, or to a bfloat16 GGUF file that llama.cpp quantizes. The
module also computes the quantization error of exports and GGUF files.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from experiments.bench.random_matrix import normal, random_pieces
from llada_jax.backend.exported.contents import Export
from llada_jax.backend.exported.manifest import Manifest
from llada_jax.backend.exported.writer import write_export
from llada_jax.backend.weights import join_pieces, restore, storage_spec, store
from llada_jax.checkpoint.gguf_metadata import gguf_keys, gguf_names
from llada_jax.config import ExportConfig, ModelConfig, Quant
from llada_jax.io import atomic
from llada_jax.model.params import ModelParams, abstract_params, named_specs
from llada_jax.model.quantize import QuantArray, quantize

_ARCHITECTURES = ("llada", "diffuse")
"""Prefixes of the metadata: llama.cpp and diffuse-cpp read different ones."""
_ROWS = 64
"""Rows of each matrix that the error is computed from; all rows have the same distribution."""


class RandomWeights:
    """`Weights` of a model in the format `quant`, whose normal numbers have the standard deviations
    of the initialisation. A seed gives the same numbers in any order of reads."""

    def __init__(self, config: ModelConfig, quant: Quant, seed: int = 0):
        self._quant: Quant = quant
        self._specs, self._seed = named_specs(config), seed

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        spec, is_float = self._specs[name], self._quant == "float32"
        for rng, shape in random_pieces(name, spec.shape, start, stop, self._seed):
            if spec.init_std in (None, 0):
                yield np.full(shape, 1.0 if spec.init_std is None else 0.0, np.float32)
                continue
            numbers = normal(rng, shape, spec.init_std)
            if is_float or not spec.quantizable:
                yield numbers if is_float else numbers.astype(ml_dtypes.bfloat16)
            else:
                stored = storage_spec(name, spec.shape, self._quant)
                group = stored.group or shape[-1]
                yield quantize(numbers, stored.bits, group)  # pyright: ignore[reportArgumentType]


def export_random(folder: Path, config: ModelConfig, settings: ExportConfig) -> Manifest:
    """Writes an export of random weights, without the comparison with JAX."""
    weights = RandomWeights(config, settings.quant)
    return write_export(folder, Export(config, weights, settings, "random", verify=False))


def random_params(
    config: ModelConfig,
    quant: Quant,
    seed: int = 0,
    *,
    dtype: Any = "float32",
    experts: bool = True,
) -> ModelParams:
    """Returns random parameters in memory, optionally without the routed experts, as `load` can."""
    weights, leaves = RandomWeights(config, quant, seed), []
    for name, spec in named_specs(config).items():
        if len(spec.shape) > 2 and not experts:
            leaves.append(None)
            continue
        leaf: Any = jax.tree.map(jnp.asarray, join_pieces(weights.rows(name)))
        leaves.append(leaf if isinstance(leaf, QuantArray) else leaf.astype(dtype))
    return jax.tree.unflatten(jax.tree.structure(abstract_params(config)), leaves)


def write_gguf(path: Path, config: ModelConfig, weights: RandomWeights) -> None:
    """Writes a model of LLaDA's family without a tokenizer, whole or not at all. Raises ImportError
    without the extra `gguf`."""
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
            rows = np.concatenate([*weights.rows(name)], dtype=dtype, casting="same_kind")
            writer.write_tensor_data(rows)
        writer.close()


def gguf_name(name: str) -> str:
    """Returns llama.cpp's name of a parameter: `layers.3.ffn.down` is `blk.3.ffn_down.weight`."""
    prefix, _, rest = name.partition(".")
    layer, _, leaf = rest.partition(".")
    return gguf_names()[f"layers.{{i}}.{leaf}" if prefix == "layers" else name].format(i=layer)


def error_as_stored(config: ModelConfig, quant: Quant) -> float:
    """Returns the relative root mean square error of an export's weights."""

    def restored(name: str, rows: np.ndarray) -> np.ndarray:
        spec = storage_spec(name, rows.shape, quant)
        return np.concatenate([restore(piece, spec) for piece in store(iter([rows]), spec)])

    return _error(config, restored)


def error_of_gguf(config: ModelConfig, path: Path) -> float:
    """Returns the relative root mean square error of a GGUF file. Raises ImportError without the
    extra `gguf`."""
    import gguf

    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}

    def restored(name: str, rows: np.ndarray) -> np.ndarray:
        tensor = tensors[gguf_name(name)]
        return gguf.dequantize(tensor.data[: len(rows)], tensor.tensor_type)

    return _error(config, restored)


def _error(config: ModelConfig, restored: Callable[[str, np.ndarray], np.ndarray]) -> float:
    """Returns the error over all matrices of products, weighted by their sizes."""
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
