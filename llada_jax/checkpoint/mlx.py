"""Reads weights that MLX quantized: `name.weight` (uint32), `name.scales` and `name.biases`.

The inputs of each row are divided into groups, and a weight is `scale * q + bias` with the scale
and bias of its group. A 32-bit word contains 32 / bits unsigned integers q, the first one in the
lowest bits. `quantization` in `config.json` has `group_size` and `bits`, and may override both for
single layers.
https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.quantize.html
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from llada_jax.checkpoint.sources import FLOATS, ComputedTensor, StoredTensor
from llada_jax.config import require

BITS = (2, 4, 8)
KINDS = tuple(f"MLX{bits}" for bits in BITS)
_KEYS = ("quantization", "quantization_config")


def mlx_settings(hf: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    """Splits a `config.json` into the keys of the model and the settings of MLX's quantization,
    which are None if it has none.

    Raises ValueError for an unsupported group size, number of bits or mode.
    """
    settings = hf.get(_KEYS[0])
    if not settings:
        return {**hf}, None
    require(isinstance(settings, Mapping), f"quantization is {settings!r}; allowed: an object")
    for name, layer_settings in {"quantization": settings, **settings}.items():
        if isinstance(layer_settings, Mapping):
            _check(name, layer_settings)
    return {key: value for key, value in hf.items() if key not in _KEYS}, settings


def _check(name: str, settings: Mapping[str, Any]) -> None:
    group, bits, mode = (settings.get(key) for key in ("group_size", "bits", "mode"))
    require(mode in (None, "affine"), f"mode of {name} is {mode!r}; allowed: 'affine'")
    require(bits in BITS, f"bits of {name} is {bits!r}; allowed: {', '.join(map(str, BITS))}")
    whole = isinstance(group, int) and 0 < group <= 1 << 16 and group % 32 == 0
    require(whole, f"group_size of {name} is {group!r}; allowed: a multiple of 32")


def mlx_tensors(
    stored: Mapping[str, StoredTensor], settings: Mapping[str, Any]
) -> dict[str, StoredTensor]:
    """Returns the tensors, with one dequantized matrix in place of its three parts.

    Raises ValueError if a part is missing or its shape does not fit the others.
    """
    tensors = {}
    for name, tensor in stored.items():
        layer = name.rpartition(".")[0]
        parts = [stored.get(f"{layer}.{part}") for part in ("weight", "scales", "biases")]
        if tensor.kind == "U32" and tensor is parts[0]:
            override = settings.get(layer)
            layer_settings = override if isinstance(override, Mapping) else settings
            tensors[name] = _dequantized(parts, layer_settings)
        elif tensor not in parts[1:]:
            tensors[name] = tensor
    return tensors


def _dequantized(parts: list[StoredTensor | None], settings: Mapping[str, Any]) -> StoredTensor:
    words, *others = parts
    assert words is not None
    group, bits = settings["group_size"], settings["bits"]
    shape = (*words.shape[:-1], words.shape[-1] * 32 // bits)
    groups = (*shape[:-1], shape[-1] // group)
    for name, part in zip(("scales", "biases"), others, strict=True):
        layer = words.name.rpartition(".")[0]
        require(part is not None, f"{words.file} lacks {layer}.{name}")
        assert part is not None
        require(
            part.shape == groups and part.kind in FLOATS and shape[-1] % group == 0,
            f"{part.name} is {part.kind} {list(part.shape)}; allowed: floats {list(groups)}, of "
            f"{bits} bits in groups of {group}",
        )
    scales, biases = others
    assert scales is not None and biases is not None

    def rows(start: int, stop: int) -> np.ndarray:
        raw = words.read(start, stop).view("<u4")[..., None]
        numbers = raw >> np.arange(0, 32, bits, dtype=np.uint32) & np.uint32((1 << bits) - 1)
        grouped = numbers.reshape(stop - start, -1, group).astype(np.float32)
        scale, bias = (
            part.decode(part.read(start, stop)).astype(np.float32).reshape(stop - start, -1, 1)
            for part in (scales, biases)
        )
        return (scale * grouped + bias).reshape(stop - start, -1)

    return ComputedTensor.of(words, rows, shape, f"MLX{bits}", scales.dtype)
