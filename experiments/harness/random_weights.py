"""Random parameters of a given shape, made row by row: a model of any size without its weights."""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from llada_jax.backend.exported.contents import Export
from llada_jax.backend.exported.manifest import Manifest
from llada_jax.backend.exported.writer import write_export
from llada_jax.backend.weights import whole
from llada_jax.config import ExportConfig, ModelConfig, Quant
from llada_jax.model.params import ModelParams, abstract_params, named_specs
from llada_jax.model.quantize import QuantArray

_PIECE_ELEMENTS = 1 << 24
_INT4_BLOCK = {"int4_block32": 32, "int4_block128": 128}


class RandomWeights:
    """`Weights` of a model in the numbers that an export stores, so that nothing is rounded:
    uniform integers scaled to the standard deviation that initialisation gives. The same seed gives
    the same numbers in any order of reading."""

    def __init__(self, config: ModelConfig, quant: Quant, seed: int = 0):
        self._specs, self._quant, self._seed = named_specs(config), quant, seed

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        spec = self._specs[name]
        stop = spec.shape[0] if stop is None else stop
        step = max(1, _PIECE_ELEMENTS // max(1, int(np.prod(spec.shape[1:]))))
        for first in range(start, stop, step):
            rng = np.random.default_rng([self._seed, zlib.crc32(name.encode()), first])
            shape = (min(first + step, stop) - first, *spec.shape[1:])
            if spec.init_std in (None, 0):
                yield np.full(shape, 1.0 if spec.init_std is None else 0.0, np.float32)
            elif not spec.quantizable or self._quant == "float32":
                noise = rng.standard_normal(shape, np.float32) * np.float32(spec.init_std)
                yield noise.astype(np.float32 if self._quant == "float32" else ml_dtypes.bfloat16)
            else:
                yield self._integers(rng, name, shape, spec.init_std)

    def _integers(
        self, rng: np.random.Generator, name: str, shape: tuple[int, ...], std: float
    ) -> QuantArray:
        wide = self._quant == "int8" or name == "head"
        numbers = np.frombuffer(rng.bytes(int(np.prod(shape))), np.int8).reshape(shape)
        values = np.maximum(numbers, -127) if wide else (numbers >> 4).astype(ml_dtypes.int4)
        spread = 73.6 if wide else 4.61  # standard deviations of these integers
        groups = 1 if wide else shape[-1] // _INT4_BLOCK.get(self._quant, shape[-1])
        scale = np.full((*shape[:-1], groups), std / spread, np.float32)
        return QuantArray(values, scale)  # pyright: ignore[reportArgumentType]


def export_random(folder: Path, config: ModelConfig, settings: ExportConfig) -> Manifest:
    """Writes an export of such weights, which is not run against JAX."""
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
    """Returns such parameters in memory, floats in a dtype; those of routed experts or, as `load`
    can, without them."""
    weights, leaves = RandomWeights(config, quant, seed), []
    for name, spec in named_specs(config).items():
        if len(spec.shape) > 2 and not experts:
            leaves.append(None)
            continue
        leaf: Any = jax.tree.map(jnp.asarray, whole(weights.rows(name)))
        leaves.append(leaf if isinstance(leaf, QuantArray) else leaf.astype(dtype))
    return jax.tree.unflatten(jax.tree.structure(abstract_params(config)), leaves)
