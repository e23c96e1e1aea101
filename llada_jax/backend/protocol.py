"""What a backend is: it takes steps, which are functions with static shapes, and gives executables.

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
    """Static shape of a forward: rows of each canvas, and cached positions that they may read."""

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
    """By the names of the parameters; `head[0:8192]` is some rows of one."""
    inputs: Shapes


class Weights(Protocol):
    """Where a backend takes the weights from, one at a time: a model in memory, or a checkpoint."""

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        """Yields rows of a parameter's first axis, in order, in pieces.

        Each piece is a float array, or a `QuantArray` where the source is quantized already.
        """
        ...


class Executable(Protocol):
    """A compiled step."""

    def allocate(self, name: str, /) -> np.ndarray:
        """Zeros for the input `name`, float32, where `run` can read them without a copy."""
        ...

    def run(self, arrays: Mapping[str, np.ndarray], /) -> Mapping[str, np.ndarray]:
        """Takes all inputs by name, returns all outputs; these are valid until the next run."""
        ...


class Backend(Protocol):
    """Compiles steps."""

    def compile(self, steps: Sequence[Step], weights: Weights) -> dict[str, Executable]:
        """Executables by the names of the steps, which share one copy of their weights.

        Raises ValueError, before any work, that names what the target cannot take.
        """
        ...
