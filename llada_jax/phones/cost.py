"""Prices a lowered step, operation by operation, on an NPU's engines or on a CPU.

A product with weights costs, for each pass over them (`pass_rows` rows share one),

    max(bytes / dma, weights / dequantization)  and  2 rows inputs outputs / matrix rate,

added or overlapped as the kernels do; rows are padded to tiles. Attention is the products without
weights plus a price for each score. All else is vector work: what lies between two products is
fused into passes, one that ends with each reduction, and a pass costs by its largest tensor.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from llada_jax.config import require
from llada_jax.lowered import Lowered, LoweredWeight, Operation
from llada_jax.phones.profile import CpuKernels, NpuKernels, PhoneMemory
from llada_jax.swap.address_space import MIB

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


class StepCost(NamedTuple):
    """Seconds of a step, or a part of one, by what they wait for; and the bytes that it reads.

    A pass of vector work is booked where it ends. The call from the host is not in it.
    """

    matrix: float = 0.0
    dequantization: float = 0.0
    dma: float = 0.0
    vector: float = 0.0
    host: float = 0.0
    """Attention that the CPU computes while the NPU waits."""
    overhead: float = 0.0
    dram_bytes: float = 0.0

    @property
    def by_engine(self) -> dict[str, float]:
        """Seconds by what is waited for."""
        return dict(zip(self._fields[:-1], self[:-1], strict=True))

    @property
    def seconds(self) -> float:
        return sum(self[:-1])

    def times(self, count: float) -> "StepCost":
        """Returns the cost of so many of them, one after the other."""
        return StepCost(*(count * each for each in self))


def sum_of(costs: Iterable[StepCost]) -> StepCost:
    """Returns the cost of all of them, one after the other."""
    return StepCost(*map(math.fsum, zip(*costs, strict=True)))


def price_on_npu(
    lowered: Lowered, kernels: NpuKernels, memory: PhoneMemory, host: CpuKernels | None = None
) -> StepCost:
    """Prices a step on the NPU; its attention on the CPU, `host`, where the kernels leave it to it.

    Raises ValueError where they do and there is no host.
    """
    beside = host if kernels.attention == "cpu" else None
    require(
        beside is not None or kernels.attention == "npu",
        "attention is 'cpu' without kernels of a CPU; allowed: 'npu', or the CPU's kernels",
    )

    def product(operation: Operation) -> StepCost:
        if operation.weight is not None:
            return _product(operation, lowered.weights[operation.weight], kernels, memory)
        if beside is not None:
            return StepCost(host=_cpu_product(operation, None, beside, memory).seconds)
        return _attention_product(operation, kernels)

    score_ns = kernels.score_ns if beside is None else beside.elementwise_ns
    passes = _priced(lowered, product, kernels.elementwise_ns, score_ns)
    layers = {each.scope.split("/")[0] for each in lowered.operations}
    count = sum(layer.startswith("layer_") for layer in layers)
    return sum_of([*passes, StepCost(overhead=count * kernels.layer_overhead_us * 1e-6)])


def price_on_cpu(lowered: Lowered, kernels: CpuKernels, memory: PhoneMemory) -> StepCost:
    """Prices a step on the CPU, each product by the faster of the kernels for many and few rows."""

    def product(operation: Operation) -> StepCost:
        weight = lowered.weights.get(operation.weight or "")
        return _cpu_product(operation, weight, kernels, memory)

    return sum_of(_priced(lowered, product, kernels.elementwise_ns, kernels.elementwise_ns))


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
) -> StepCost:
    _, rows, inputs, outputs = matrix_shape(operation)
    numbers = inputs * outputs
    size = numbers * stored_bits(weight) / 8
    if rows == 1 and kernels.gemv_gbps:
        return StepCost(dma=size / kernels.gemv_gbps / 1e9, dram_bytes=size)
    passes = math.ceil(rows / rows_in_a_pass(inputs, kernels, memory))
    dma = passes * size / kernels.dma_gbps / 1e9
    unpacking = passes * numbers / _dequant_rate(operation, weight, kernels)
    padded = _up(rows, kernels.tile_rows)
    matrix = 2 * padded * _up(inputs, MATRIX_TILE) * _up(outputs, MATRIX_TILE)
    matrix = matrix / kernels.matrix_tops / 1e12
    matrix += padded // kernels.tile_rows * -(-outputs // MATRIX_TILE) * kernels.readout_us * 1e-6
    vector = rows * (inputs + outputs) * kernels.activation_ns * 1e-9
    stages = {"dma": dma, "dequantization": unpacking}
    if kernels.overlap == "all":
        stages["matrix"], matrix = matrix, 0.0
    slowest = max(stages, key=lambda stage: stages[stage])
    cost = StepCost(matrix=matrix, vector=vector, dram_bytes=passes * size)
    return cost._replace(**{slowest: stages[slowest]})


def _dequant_rate(operation: Operation, weight: LoweredWeight, kernels: NpuKernels) -> float:
    """Weights a second; infinite where nothing is unpacked."""
    name = (operation.weight or "").partition("[")[0]
    fast = name.endswith(FAST_MATRICES)
    rate = kernels.fast_dequant_gweights if fast else kernels.dequant_gweights
    return rate * 1e9 if rate and weight.bits < 16 else math.inf


def rows_in_a_pass(inputs: int, kernels: NpuKernels, memory: PhoneMemory) -> int:
    """Returns what the kernels take at one time; less where the activations exceed half of VTCM."""
    tiles = int(memory.vtcm_mib * MIB / 2 / (2 * inputs)) // kernels.tile_rows
    return max(kernels.tile_rows, min(kernels.pass_rows, tiles * kernels.tile_rows))


def _attention_product(operation: Operation, kernels: NpuKernels) -> StepCost:
    """Prices one of the two products of attention: the cached side is read from memory."""
    batch, left, inputs, right = matrix_shape(operation)
    macs = batch * _up(left, MATRIX_TILE) * _up(inputs, MATRIX_TILE) * _up(right, MATRIX_TILE)
    matrix = 2 * macs / kernels.matrix_tops / 1e12
    size = operation.inputs[1].size * kernels.kv_bits / 8
    dma = size / kernels.dma_gbps / 1e9
    slowest = {"matrix": matrix} if matrix > dma else {"dma": dma}
    return StepCost(**slowest, dram_bytes=size)


def _cpu_product(
    operation: Operation, weight: LoweredWeight | None, kernels: CpuKernels, memory: PhoneMemory
) -> StepCost:
    _, rows, inputs, outputs = matrix_shape(operation)
    many = 2 * operation.macs / kernels.gemm_tops / 1e12
    if weight is None:
        return StepCost(matrix=many)
    numbers = inputs * outputs
    size = numbers * stored_bits(weight) / 8
    reading = size / memory.dram_gbps / 1e9
    unpacking = numbers / kernels.unpack_gweights / 1e9 if kernels.unpack_gweights else 0.0
    few = max(rows * numbers / kernels.gemv_gweights / 1e9, rows * reading)
    if few < max(many + unpacking, reading):
        return StepCost(dma=few, dram_bytes=rows * size)
    if many + unpacking < reading:
        return StepCost(dma=reading, dram_bytes=size)
    return StepCost(matrix=many, dequantization=unpacking, dram_bytes=size)


def _priced(
    lowered: Lowered, product: Callable[[Operation], StepCost], element_ns: float, score_ns: float
) -> Iterator[StepCost]:
    """Yields the costs of products, attention scores and passes of vector work."""
    fused = 0
    in_attention = False  # between a product without weights and the next one with weights
    for operation in lowered.operations:
        is_unknown = operation.name not in KNOWN
        if operation.name == "dot_general":
            yield StepCost(vector=fused * element_ns * 1e-9)
            yield product(operation)
            fused, in_attention = 0, operation.weight is None
        elif in_attention:
            # What is known there is in the price of a score.
            rate = element_ns if is_unknown else score_ns
            priced = is_unknown or operation.name == "exponential"
            yield StepCost(vector=priced * _elements(operation) * rate * 1e-9)
        elif operation.name not in FREE and (operation.scope or operation.name not in MOVES):
            # A change of layout at the edge is free, too: caches lie as they are read.
            fused = max(fused, _elements(operation))
            if operation.name == "reduce":
                yield StepCost(vector=fused * element_ns * 1e-9)
                fused = 0
    yield StepCost(vector=fused * element_ns * 1e-9)


def unknown_operations(lowered: Lowered) -> list[str]:
    """Names operations that either processor prices as something else, and as what."""
    found = (
        f"{each.name} {each.types} at {each.scope or 'the top'}: priced as vector work on "
        f"{_elements(each):,} elements"
        for each in lowered.operations
        if each.name not in KNOWN
    )
    return [*dict.fromkeys(found)]


def _elements(operation: Operation) -> int:
    """Counts the largest tensor that it reads or writes."""
    return max((t.size for t in (*operation.inputs, *operation.outputs)), default=0)


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
