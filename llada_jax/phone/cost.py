"""Prices a lowered step, operation by operation, on an NPU's engines or on a CPU.

A product with weights costs, for each pass over them (`pass_rows` rows share one),

    max(bytes / dma, weights / dequantization)  and  2 rows inputs outputs / matrix rate,

added or overlapped as the kernels do; rows are padded to tiles. Attention is the products without
weights plus a price for each score. All else is vector work: what lies between two products is
fused into passes, one that ends with each reduction, and a pass costs by its largest tensor.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from llada_jax.lowered import Lowered, LoweredWeight, Operation
from llada_jax.phone.profile import CpuKernels, NpuKernels, PhoneMemory
from llada_jax.swap.address_budget import MIB

MATRIX_TILE = 32
FAST_MATRICES = ("ffn.down", "head", "embedding")
"""Products whose dequantization was measured to be faster, by the end of their weight's name."""

FREE = {"reshape", "broadcast_in_dim", "slice", "iota", "convert"}
"""Fused into what reads them."""
MOVES = {"transpose", "concatenate", "pad", "gather", "dynamic_slice", "dynamic_update_slice"}
ELEMENTWISE = {
    *("add", "subtract", "multiply", "divide", "negate", "maximum", "minimum", "rsqrt", "sqrt"),
    *("exponential", "log", "logistic", "tanh", "cosine", "sine", "power", "abs", "sign"),
    *("compare", "select", "and", "or", "not", "clamp", "floor", "round_nearest_even", "reduce"),
}
KNOWN = {"dot_general"} | FREE | MOVES | ELEMENTWISE

Engine = Literal["matrix", "dequantization", "dma", "vector", "overhead"]
BUSY_ENGINES: tuple[Engine, ...] = ("matrix", "dequantization", "dma", "vector")
ENGINES: tuple[Engine, ...] = (*BUSY_ENGINES, "overhead")


class OperationCost(NamedTuple):
    """Seconds of one operation by the engine that it waits for, and the bytes that it reads.

    A pass of vector work is booked where it ends.
    """

    matrix: float = 0.0
    dequantization: float = 0.0
    dma: float = 0.0
    vector: float = 0.0
    dram_bytes: float = 0.0


class UnknownOperation(NamedTuple):
    """An operation that the model does not know, and how it was priced instead."""

    name: str
    scope: str
    shapes: str
    priced_as: str

    def __str__(self) -> str:
        return f"{self.name} {self.shapes} at {self.scope or 'the top'}: priced as {self.priced_as}"


class PartCost(NamedTuple):
    """One layer, or what comes before and after all of them."""

    scope: str
    seconds: float
    dram_bytes: float
    by_engine: dict[Engine, float]

    def times(self, count: float) -> "PartCost":
        """Returns the cost of so many of them, one after the other."""
        by_engine: dict[Engine, float] = {e: count * s for e, s in self.by_engine.items()}
        return PartCost(self.scope, count * self.seconds, count * self.dram_bytes, by_engine)


class StepCost(NamedTuple):
    """A lowered step on one processor, without the call from the host."""

    parts: tuple[PartCost, ...]
    unknown: tuple[UnknownOperation, ...]

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts)

    @property
    def dram_bytes(self) -> float:
        return sum(part.dram_bytes for part in self.parts)

    @property
    def by_engine(self) -> dict[Engine, float]:
        """Seconds by what is waited for."""
        return {engine: sum(part.by_engine[engine] for part in self.parts) for engine in ENGINES}


def price_on_npu(lowered: Lowered, kernels: NpuKernels, memory: PhoneMemory) -> StepCost:
    """Prices a step on the NPU."""

    def product(operation: Operation) -> OperationCost:
        if operation.weight is None:
            return _attention_product(operation, kernels)
        return _product(operation, lowered.weights[operation.weight], kernels, memory)

    rates = _VectorRates(kernels.elementwise_ns * 1e-9, kernels.score_ns * 1e-9)
    return _step(lowered, product, rates, kernels.layer_overhead_us * 1e-6)


def price_on_cpu(lowered: Lowered, kernels: CpuKernels, memory: PhoneMemory) -> StepCost:
    """Prices a step on the CPU. A product takes the faster of the kernels for many and few rows,
    and at least until its weights are read."""

    def product(operation: Operation) -> OperationCost:
        weight = lowered.weights.get(operation.weight or "")
        return _cpu_product(operation, weight, kernels, memory)

    seconds = kernels.elementwise_ns * 1e-9
    return _step(lowered, product, _VectorRates(seconds, seconds), 0.0)


class _VectorRates(NamedTuple):
    """Seconds for an element of a pass, and for an attention score."""

    element: float
    score: float


def _is_free(operation: Operation) -> bool:
    """Says whether it is fused, or a layout's change at the edge: caches lie as they are read."""
    return operation.name in FREE or (operation.name in MOVES and not operation.scope)


def matrix_shape(operation: Operation) -> tuple[int, int, int, int]:
    """Returns batch, rows, inputs and outputs of [b, rows, inputs] by [b, inputs, outputs].

    Follows from the numbers of elements alone: batch = |a| |b| / (|out| inputs^2).
    """
    inputs = operation.contraction
    left, right = (tensor.size for tensor in operation.inputs)
    batch = left * right // (operation.outputs[0].size * inputs**2)
    return batch, left // (batch * inputs), inputs, right // (batch * inputs)


def stored_bits(weight: LoweredWeight) -> float:
    """Bits of one number with its share of a 16-bit scale. Floats are 16 bits on a phone."""
    if weight.bits >= 16:
        return 16.0
    return weight.bits + (16 / weight.group if weight.group else 0.0)


def _product(
    operation: Operation, weight: LoweredWeight, kernels: NpuKernels, memory: PhoneMemory
) -> OperationCost:
    _, rows, inputs, outputs = matrix_shape(operation)
    numbers = inputs * outputs
    size = numbers * stored_bits(weight) / 8
    if rows == 1 and kernels.gemv_gbps:
        return OperationCost(dma=size / kernels.gemv_gbps / 1e9, dram_bytes=size)
    passes = math.ceil(rows / rows_in_a_pass(inputs, kernels, memory))
    dma = passes * size / kernels.dma_gbps / 1e9
    unpacking = passes * numbers / _dequant_rate(operation, weight, kernels)
    padded = _up(rows, kernels.tile_rows)
    matrix = 2 * padded * _up(inputs, MATRIX_TILE) * _up(outputs, MATRIX_TILE)
    matrix = matrix / kernels.matrix_tops / 1e12
    matrix += padded // kernels.tile_rows * -(-outputs // MATRIX_TILE) * kernels.readout_us * 1e-6
    vector = rows * (inputs + outputs) * kernels.activation_ns * 1e-9
    cost = OperationCost(vector=vector, dram_bytes=passes * size)
    if kernels.overlap == "all":
        slowest = max(dma, unpacking, matrix)
        return cost._replace(**{_name_of(slowest, dma, unpacking): slowest})
    fetched = max(dma, unpacking)
    return cost._replace(matrix=matrix, **{_name_of(fetched, dma, unpacking): fetched})


def _name_of(seconds: float, dma: float, unpacking: float) -> str:
    return {dma: "dma", unpacking: "dequantization"}.get(seconds, "matrix")


def _dequant_rate(operation: Operation, weight: LoweredWeight, kernels: NpuKernels) -> float:
    """Weights a second; infinite where nothing is unpacked."""
    name = (operation.weight or "").partition("[")[0]
    fast = name.endswith(FAST_MATRICES)
    rate = kernels.fast_dequant_gweights if fast else kernels.dequant_gweights
    return rate * 1e9 if rate and weight.bits < 16 else math.inf


def rows_in_a_pass(inputs: int, kernels: NpuKernels, memory: PhoneMemory) -> int:
    """Returns what the kernels take at one time; less where the activations exceed half of VTCM."""
    fitting = int(memory.vtcm_mib * MIB / 2 / (2 * inputs))
    return max(
        kernels.tile_rows, min(kernels.pass_rows, fitting // kernels.tile_rows * kernels.tile_rows)
    )


def _attention_product(operation: Operation, kernels: NpuKernels) -> OperationCost:
    """Prices one of the two products of attention: the cached side is read from memory."""
    batch, left, inputs, right = matrix_shape(operation)
    macs = batch * _up(left, MATRIX_TILE) * _up(inputs, MATRIX_TILE) * _up(right, MATRIX_TILE)
    matrix = 2 * macs / kernels.matrix_tops / 1e12
    size = operation.inputs[0].size * kernels.kv_bits / 8
    dma = size / kernels.dma_gbps / 1e9
    cost = OperationCost(dram_bytes=size)
    return cost._replace(matrix=matrix) if matrix > dma else cost._replace(dma=dma)


def _cpu_product(
    operation: Operation, weight: LoweredWeight | None, kernels: CpuKernels, memory: PhoneMemory
) -> OperationCost:
    _, rows, inputs, outputs = matrix_shape(operation)
    many = 2 * operation.macs / kernels.gemm_tops / 1e12
    if weight is None:
        return OperationCost(matrix=many)
    numbers = inputs * outputs
    size = numbers * stored_bits(weight) / 8
    reading = size / memory.dram_gbps / 1e9
    unpacking = numbers / kernels.unpack_gweights / 1e9 if kernels.unpack_gweights else 0.0
    few = max(rows * numbers / kernels.gemv_gweights / 1e9, rows * reading)
    if few < max(many + unpacking, reading):
        return OperationCost(dma=few, dram_bytes=rows * size)
    if many + unpacking < reading:
        return OperationCost(dma=reading, dram_bytes=size)
    return OperationCost(matrix=many, dequantization=unpacking, dram_bytes=size)


def _step(
    lowered: Lowered,
    product: Callable[[Operation], OperationCost],
    rates: _VectorRates,
    layer_overhead: float,
) -> StepCost:
    costs: dict[str, list[OperationCost]] = {}
    fused = 0
    for operation, in_attention in _with_attention(lowered.operations):
        here = costs.setdefault(operation.scope.split("/")[0], [])
        if operation.name == "dot_general":
            here.append(OperationCost(vector=fused * rates.element))
            here.append(product(operation))
            fused = 0
            continue
        is_unknown = operation.name not in KNOWN
        if in_attention:
            # What is known there is in the price of a score.
            rate = rates.element if is_unknown else rates.score
            priced = is_unknown or operation.name == "exponential"
            here.append(OperationCost(vector=priced * _elements(operation) * rate))
        elif not _is_free(operation):
            fused = max(fused, _elements(operation))
            if operation.name == "reduce":
                here.append(OperationCost(vector=fused * rates.element))
                fused = 0
    if fused:
        here.append(OperationCost(vector=fused * rates.element))
    parts = (
        _part(scope, operations, layer_overhead if scope.startswith("layer_") else 0.0)
        for scope, operations in costs.items()
    )
    return StepCost(tuple(parts), unknown_operations(lowered))


def _with_attention(operations: Iterable[Operation]) -> Iterator[tuple[Operation, bool]]:
    """Marks what lies between a product without weights and the next one with weights."""
    inside = False
    for operation in operations:
        if operation.name == "dot_general":
            inside = operation.weight is None
        yield operation, inside


def _part(scope: str, costs: list[OperationCost], overhead: float) -> PartCost:
    by_engine: dict[Engine, float] = {
        engine: sum(getattr(cost, engine) for cost in costs) for engine in BUSY_ENGINES
    }
    by_engine["overhead"] = overhead
    dram = sum(cost.dram_bytes for cost in costs)
    return PartCost(scope, sum(by_engine.values()), dram, by_engine)


def unknown_operations(lowered: Lowered) -> tuple[UnknownOperation, ...]:
    """Returns operations of a step that either processor would price as something else."""
    found = (
        UnknownOperation(
            each.name, each.scope, each.types, f"vector work on {_elements(each):,} elements"
        )
        for each in lowered.operations
        if each.name not in KNOWN
    )
    return tuple(dict.fromkeys(found))


def _elements(operation: Operation) -> int:
    """Counts the largest tensor that it reads or writes."""
    return max((t.size for t in (*operation.inputs, *operation.outputs)), default=0)


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
