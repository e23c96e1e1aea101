"""Random weights as a GGUF file in bfloat16, from which llama.cpp makes its own formats."""

from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np

from experiments.harness.random_weights import RandomWeights
from llada_jax import atomic
from llada_jax.config import ModelConfig
from llada_jax.model.families.gguf_metadata import gguf_keys, gguf_names
from llada_jax.model.params import named_specs

_ARCHITECTURES = ("llada", "diffuse")
"""Who asks for the metadata: llama.cpp, and diffuse-cpp."""


def write_gguf(path: Path, config: ModelConfig, weights: RandomWeights) -> None:
    """Writes a model of LLaDA's family without a tokenizer; the file appears once it is complete.
    Raises ImportError without the extra `gguf`."""
    import gguf

    specs = named_specs(config)
    with atomic.new_file(path) as part:
        writer = gguf.GGUFWriter(part, _ARCHITECTURES[0])
        for key, value in _metadata(config):
            if isinstance(value, float):
                writer.add_float32(key, value)
            else:
                writer.add_uint32(key, value)
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
            pieces = list(weights.rows(name))
            dtype = np.float32 if len(spec.shape) == 1 else ml_dtypes.bfloat16
            writer.write_tensor_data(np.concatenate(pieces, dtype=dtype, casting="same_kind"))
        writer.close()


def _metadata(config: ModelConfig) -> Iterator[tuple[str, int | float]]:
    for architecture in _ARCHITECTURES:
        for ours, key in gguf_keys(architecture).items():
            value = getattr(config, ours)
            if value is not None and key.startswith(architecture):
                yield key, value


def gguf_name(name: str) -> str:
    """Returns llama.cpp's name of a parameter: `layers.3.ffn.down` is `blk.3.ffn_down.weight`."""
    prefix, _, rest = name.partition(".")
    layer, _, leaf = rest.partition(".")
    return gguf_names()[f"layers.{{i}}.{leaf}" if prefix == "layers" else name].format(i=layer)
