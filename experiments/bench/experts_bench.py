"""The suite `experts`: rows through the experts that they chose, in float32, int8 and int4.

Beside XLA's `ragged_dot`, which on a CPU multiplies all rows by all experts, and beside a NumPy
loop over the experts that have rows, which reads the same matrices.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from experiments.harness.results import ResultRow
from experiments.harness.timers import best_times
from llada_jax.model.grouped_product import grouped_product
from llada_jax.model.quantize import quantize

EXPERTS, TAKEN, ROWS, WIDTH = (8, 32, 64, 256), 8, 32, 1024
"""Numbers of experts; how many of them each row takes; rows; inputs and outputs of an expert."""


def time_experts(
    repeats: int, seed: int, experts: Sequence[int] = EXPERTS, width: int = WIDTH
) -> Iterator[ResultRow]:
    """Yields, for each number of experts, all times and how many times faster ours is."""
    for count in experts:
        calls = _contenders(count, width, np.random.default_rng(seed))
        times = best_times(calls, repeats)
        for name, seconds in times.items():
            yield ResultRow(f"experts/{count}/{name}", seconds * 1e3, "ms", n=repeats)
        for other in ("ragged_dot", "numpy_loop"):
            ratio = times[other] / times["float32"]
            yield ResultRow(f"experts/{count}/speed/{other}", ratio, "x its speed")


def _contenders(count: int, width: int, rng: np.random.Generator) -> dict[str, Callable[[], Any]]:
    weights = rng.standard_normal((count, width, width), np.float32)
    taken = min(TAKEN, count)
    chosen = [rng.permutation(count)[:taken] for _ in range(ROWS)]
    rows = rng.standard_normal((ROWS * taken, width), np.float32)
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
