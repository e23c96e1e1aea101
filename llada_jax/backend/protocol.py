"""Interfaces of a backend, which compiles steps (functions with static shapes) to executables.

A new backend is one file that implements `Backend`, and one line in `llada_jax.api`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jaxtyping import Array

Shapes = Mapping[str, tuple[int, ...]]
Inputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class Bucket:
    """Static shape of a forward pass: rows of each canvas, cached positions, and canvases."""

    rows: int
    cache: int
    canvases: int = 1

    @property
    def name(self) -> str:
        packed = f"_canvases{self.canvases}" if self.canvases > 1 else ""
        return f"rows{self.rows}_cache{self.cache}{packed}"

    @property
    def all_rows(self) -> int:
        return self.canvases * self.rows


@dataclass(frozen=True)
class Step:
    """A pure function of float32 arrays: `function(weights, inputs) -> outputs`, all by name."""

    name: str
    function: Callable[[Mapping[str, Array], Mapping[str, Array]], dict[str, Array]]
    weights: Shapes
    """Shapes by parameter name; a name such as `head[0:8192]` is a range of rows of one."""
    inputs: Shapes


class Weights(Protocol):
    """A source of weights, one at a time: a model in memory or a checkpoint."""

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        """Yields rows of a parameter's first axis, in order, in pieces.

        Each piece is a float array, or a `QuantArray` if the source is already quantized.
        """
        ...


class Executable(Protocol):
    """A compiled step."""

    def allocate(self, name: str, /) -> np.ndarray:
        """Returns float32 zeros for the input `name`, in memory that `run` reads without a copy."""
        ...

    def run(self, arrays: Mapping[str, np.ndarray], /) -> Mapping[str, np.ndarray]:
        """Maps all inputs by name to all outputs, which are valid until the next run."""
        ...


class Backend(Protocol):
    """Compiles steps to executables."""

    def compile(self, steps: Sequence[Step], weights: Weights) -> dict[str, Executable]:
        """Returns executables by the names of the steps; they share one copy of the weights.

        Raises ValueError that names an unsupported operation, before compiling.
        """
        ...
