"""A step as it was lowered: its StableHLO module, and its operations as plain data.

The record needs neither JAX nor a converter to be read, so that the device model can price a step
on any machine.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TensorType:
    """Shape and element type, named as StableHLO does (`f32`, `i32`, `i1`)."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class LoweredWeight:
    """A constant of the step: what the file that runs stores for it."""

    shape: tuple[int, ...]
    bits: int
    group: int | None = None  # inputs that share a scale; None: a whole row, or not quantized


@dataclass(frozen=True)
class Operation:
    """One operation of the module, calls to inner functions expanded."""

    name: str  # as in StableHLO, without the dialect: `dot_general`, `add`, `reduce`
    scope: str  # where it comes from: names that `jax.named_scope` gave, as `layer_3`
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
        """What it takes and gives, for messages: `f32[4, 8], f32[8] -> f32[4, 8]`."""
        return " -> ".join(
            ", ".join(f"{t.dtype}{list(t.shape)}" for t in tensors)
            for tensors in (self.inputs, self.outputs)
        )


def product_with(weight: str, rows: int, inputs: int, outputs: int, scope: str = "") -> Operation:
    """Describes rows [rows, inputs] times a weight [outputs, inputs], as it would be lowered."""
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
    """Returns a step that is one product with weights, as it would be lowered."""
    operation = product_with(name, rows, inputs, outputs)
    return Lowered(name, b"", {name: weight}, {}, {}, (operation,))
