"""Weights as MLX quantizes them: `name.weight` uint32 with `name.scales` and `name.biases`.

A row's inputs are in groups, and a weight is `scale * q + bias` of its group. Each word holds 32 /
bits unsigned integers q, the first one in its lowest bits. `quantization` in `config.json` has
`group_size` and `bits`, and other ones for a layer under the layer's name.
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
    """Returns a `config.json` without MLX's keys, and what they have; None if they are not there.

    Raises ValueError for a group size or a number of bits that is not read, and for other modes
    than `affine`.
    """
    settings = hf.get(_KEYS[0])
    if not settings:
        return {**hf}, None
    require(isinstance(settings, Mapping), f"quantization is {settings!r}; allowed: an object")
    for name, each in {"quantization": settings, **settings}.items():
        if isinstance(each, Mapping):
            _check(name, each)
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
    """Returns the tensors with each quantized one in place of its three parts.

    Raises ValueError for parts that are missing or do not fit each other.
    """
    tensors = {}
    for name, tensor in stored.items():
        layer = name.rpartition(".")[0]
        parts = [stored.get(f"{layer}.{part}") for part in ("weight", "scales", "biases")]
        if tensor.kind == "U32" and tensor is parts[0]:
            own = settings.get(layer)
            tensors[name] = _joined(parts, own if isinstance(own, Mapping) else settings)
        elif tensor not in parts[1:]:
            tensors[name] = tensor
    return tensors


def _joined(parts: list[StoredTensor | None], settings: Mapping[str, Any]) -> StoredTensor:
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
