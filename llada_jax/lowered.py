"""A lowered step: its StableHLO module, and its operations as plain data.

Reading the record needs neither JAX nor a converter, so the cost model of phones can use it on any
machine.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TensorType:
    """Shape and element type, with StableHLO's name (`f32`, `i32`, `i1`)."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class LoweredWeight:
    """The storage of a constant of the step in an executable file."""

    shape: tuple[int, ...]
    bits: int
    group: int | None = None  # inputs that share a scale; None for a whole row or unquantized


@dataclass(frozen=True)
class Operation:
    """One operation of the module, after inlining calls."""

    name: str  # as in StableHLO, without the dialect: `dot_general`, `add`, `reduce`
    scope: str  # names from `jax.named_scope`, such as `layer_3`
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    contraction: int = 0  # length of the summed axes of a `dot_general`
    weight: str | None = None  # name of the weight that is an operand

    @property
    def macs(self) -> int:
        """Multiply-adds of a matrix product, else 0."""
        return self.contraction * sum(output.size for output in self.outputs)

    @property
    def types(self) -> str:
        """Types of operands and results for messages: `f32[4, 8], f32[8] -> f32[4, 8]`."""
        return " -> ".join(
            ", ".join(f"{t.dtype}{list(t.shape)}" for t in tensors)
            for tensors in (self.inputs, self.outputs)
        )


def product_with(weight: str, rows: int, inputs: int, outputs: int, scope: str = "") -> Operation:
    """Returns rows [rows, inputs] times a weight [outputs, inputs] as a lowered operation."""
    left, out = TensorType((rows, inputs), "f32"), TensorType((rows, outputs), "f32")
    matrix = TensorType((outputs, inputs), "f32")
    return Operation("dot_general", scope, (left, matrix), (out,), inputs, weight)


@dataclass(frozen=True)
class Lowered:
    """A step with static shapes, ready for a converter."""

    name: str
    module: bytes
    """StableHLO as a portable artifact; arguments are the weights, then the inputs, in order."""
    weights: Mapping[str, LoweredWeight]
    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    operations: tuple[Operation, ...]

    @property
    def macs(self) -> int:
        """Multiply-adds of all matrix products."""
        return sum(operation.macs for operation in self.operations)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights' numbers, without their scales."""
        return sum(math.prod(w.shape) * w.bits // 8 for w in self.weights.values())


def product_step(rows: int, inputs: int, outputs: int, weight: LoweredWeight, name: str) -> Lowered:
    """Returns a lowered step with one product of rows and a weight, without a module."""
    operation = product_with(name, rows, inputs, outputs)
    return Lowered(name, b"", {name: weight}, {}, {}, (operation,))
