"""The suite `experts`: rows through the experts that they chose, in float32, int8 and int4.

Beside XLA's `ragged_dot`, which on a CPU multiplies all rows by all experts, and beside a NumPy
loop over the experts that have rows, which reads the same matrices.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from experiments.harness.results import ResultRow
from experiments.harness.timers import best_times
from llada_jax.config import ascending_counts, require_counts
from llada_jax.model.grouped_product import grouped_product
from llada_jax.model.quantize import quantize


@dataclass(frozen=True, kw_only=True)
class ExpertsBenchConfig:
    """What the suite times. The comments are in conf/bench.yaml."""

    experts: tuple[int, ...] = (8, 32, 64, 256)
    experts_per_token: int = 8
    rows: int = 32
    width: int = 1024
    expert_width: int = 1024

    def __post_init__(self) -> None:
        ascending_counts("experts", self.experts)
        require_counts(self, "experts_per_token", "rows", "width", "expert_width")


def time_experts(config: ExpertsBenchConfig, repeats: int, seed: int) -> Iterator[ResultRow]:
    """Yields, for each number of experts, all times and how many times faster ours is."""
    for count in config.experts:
        calls = _contenders(config, count, np.random.default_rng(seed))
        times = best_times(calls, repeats)
        for name, seconds in times.items():
            yield ResultRow(f"experts/{count}/{name}", seconds * 1e3, "ms", n=repeats)
        for other in ("ragged_dot", "numpy_loop"):
            ratio = times[other] / times["float32"]
            yield ResultRow(f"experts/{count}/speed/{other}", ratio, "x its speed")


def _contenders(
    config: ExpertsBenchConfig, count: int, rng: np.random.Generator
) -> dict[str, Callable[[], Any]]:
    weights = rng.standard_normal((count, config.expert_width, config.width), np.float32)
    taken = min(config.experts_per_token, count)
    chosen = [rng.permutation(count)[:taken] for _ in range(config.rows)]
    rows = rng.standard_normal((config.rows * taken, config.width), np.float32)
    sizes = np.bincount(np.concatenate(chosen), minlength=count).astype(np.int32)

    def numpy_loop() -> list[np.ndarray]:
        stops = np.cumsum(sizes)
        return [
            rows[stop - size : stop] @ matrix.T
            for size, stop, matrix in zip(sizes, stops, weights, strict=True)
            if size
        ]

    ours, theirs = jax.jit(grouped_product), jax.jit(_ragged_dot)
    inputs, on_device, n = jnp.asarray(rows), jnp.asarray(weights), jnp.asarray(sizes)
    narrow = {f"int{bits}": quantize(weights, bits) for bits in (8, 4)}
    return {
        "float32": lambda: ours(inputs, on_device, n),
        **{name: lambda w=weight: ours(inputs, w, n) for name, weight in narrow.items()},
        "ragged_dot": lambda: theirs(inputs, on_device, n),
        "numpy_loop": numpy_loop,
    }


def _ragged_dot(
    rows: Float[Array, "T In"], weights: Float[Array, "E Out In"], sizes: Int[Array, " E"]
) -> Float[Array, "T Out"]:
    return jax.lax.ragged_dot(rows, weights.swapaxes(1, 2), sizes)
