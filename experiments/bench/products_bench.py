"""The suite `products`: int8 products of the native backend against LiteRT's, from memory.

Each shape has as many matrices as fill `bytes`, so that no cache holds them. Products run one after
the other, on all cores; one round of LiteRT's is one graph.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from experiments.bench.peak import instruction_sets
from experiments.harness.results import ResultRow
from experiments.harness.timers import spread, times_in_turns
from llada_jax.backend.litert.runtime import LiteRT
from llada_jax.backend.protocol import Step
from llada_jax.backend.resources import available_cores
from llada_jax.backend.weights import StoredPiece
from llada_jax.config import ascending_counts, require_counts
from llada_jax.model.quantize import QuantArray, linear


@dataclass(frozen=True, kw_only=True)
class ProductsBenchConfig:
    """Settings of the verb; conf/bench.yaml explains each."""

    shapes: tuple[tuple[int, int], ...] = ((4096, 4096), (12288, 4096), (4096, 12288))
    rows: tuple[int, ...] = (1, 2, 4, 8, 32, 128)
    bytes: int = 1 << 30

    def __post_init__(self) -> None:
        ascending_counts("rows", self.rows)
        require_counts(self, "bytes")


class _Matrices:
    """`Weights` of matrices by name."""

    def __init__(self, matrices: Mapping[str, Sequence[Any]]) -> None:
        self._matrices = matrices

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[QuantArray]:
        yield QuantArray(*(array[start:stop] for array in self._matrices[name]))


def time_products(config: ProductsBenchConfig, repeats: int) -> Iterator[ResultRow]:
    """Yields the rows of the suite. Raises ImportError without llvmlite."""
    from llada_jax.backend.native.kernel import best_instructions
    from llada_jax.backend.native.product import Multiplier, aligned_floats, pack

    source = f"{best_instructions()}, of {instruction_sets()}"
    yield ResultRow("cores", available_cores(), "cores", source=source)
    rng, multiply = np.random.default_rng(0), Multiplier()
    for outputs, inputs in config.shapes:
        shape = (outputs, inputs)
        names = [f"matrix{i}" for i in range(max(1, config.bytes // (outputs * inputs)))]
        scale = np.full((outputs, 1), 1e-3, np.float32)
        matrices = {name: (_drawn(rng, shape), scale) for name in names}
        packed = [pack([[StoredPiece(*matrices[name])]], [shape]) for name in names]

        def function(weights: Mapping[str, Any], arrays: Mapping[str, Any]) -> dict[str, Any]:
            return {name: linear(arrays["hidden"], weights[name]) for name in weights}

        steps = [
            Step(f"rows{n}", function, dict.fromkeys(names, shape), {"hidden": (n, inputs)})
            for n in config.rows
        ]
        executables = LiteRT("int8").compile(steps, _Matrices(matrices))
        for n in config.rows:
            x = aligned_floats(n, inputs)
            x[:] = rng.standard_normal(x.shape)
            outs = [aligned_floats(n, weight.outputs) for weight in packed]

            litert = partial(executables[f"rows{n}"].run, {"hidden": x})
            native = partial(_multiply_all, multiply, x, packed, outs)
            seconds = times_in_turns({"litert": litert, "native": native}, repeats)
            size, name = len(names) * outputs * inputs, f"products/{outputs}x{inputs}/rows{n}"
            for way, took in seconds.items():
                yield from spread(f"{name}/{way}", [size / t / 1e9 for t in took], "GB/s")
            ratios = [a / b for a, b in zip(*seconds.values(), strict=True)]
            yield from spread(f"{name}/ratio", ratios, "x LiteRT")
        yield ResultRow(f"products/{outputs}x{inputs}/load", os.getloadavg()[0], "processes")


def _multiply_all(multiply: Any, x: np.ndarray, weights: Any, outs: list[np.ndarray]) -> Any:
    for weight, out in zip(weights, outs, strict=True):
        multiply(x, weight, out)
    return outs


def _drawn(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    numbers = np.frombuffer(rng.bytes(shape[0] * shape[1]), np.int8).reshape(shape)
    return np.maximum(numbers, -127)
