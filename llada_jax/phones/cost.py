"""The price of one forward: seconds of a lowered step, operation by operation.

On the NPU, a product with weights reads and dequantizes its weights once per pass (`pass_rows` rows
share a pass), and multiplies rows that are padded to whole tiles:

    weights = passes * max(bytes / dma, weights / dequantization)
    matrix  = 2 * padded rows * inputs * outputs / matrix rate

Kernels that pipeline all stages take the maximum of the two, others their sum (arXiv 2606.13740,
section 2.2 and Figure 3a; T-MAN, arXiv 2511.11248). Attention is the products without weights, plus
a price per score. All other operations are vector work: those between two products are fused, and a
fused group costs by its largest tensor. On a CPU, each product runs with the faster of two kernels.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from llada_jax.config import require
from llada_jax.lowered import Lowered, LoweredWeight, Operation
from llada_jax.phones.profile import CpuKernels, NpuKernels, PhoneMemory
from llada_jax.swap.address_space import MIB

_MATRIX_TILE = 32
"""The matrix engine multiplies tiles with 32 inputs and 32 outputs, whatever their rows."""
_FAST_MATRICES = ("ffn.down", "head", "embedding")
"""Ends of the names of matrices that dequantize faster: measured kernels unpack the down projection
and the head at about twice the rate of the others."""

FREE = {"reshape", "broadcast_in_dim", "slice", "iota", "convert"}
"""Operations that a compiler fuses into the operation that reads their result."""
_MOVES = {"transpose", "concatenate", "pad", "gather", "dynamic_slice", "dynamic_update_slice"}
_ELEMENTWISE = {
    *("add", "subtract", "multiply", "divide", "negate", "maximum", "minimum", "rsqrt", "sqrt"),
    *("exponential", "log", "logistic", "tanh", "cosine", "sine", "power", "abs", "sign"),
    *("compare", "select", "and", "or", "not", "clamp", "floor", "round_nearest_even", "reduce"),
}
KNOWN = {"dot_general"} | FREE | _MOVES | _ELEMENTWISE


class StepCost(NamedTuple):
    """Seconds of a step or a part of it, split by the engine that the step waits for.

    Stages that are hidden behind a slower one are not included, so the seconds add up to the time
    of the step. The call from the host is not included.
    """

    matrix: float = 0.0
    dequantization: float = 0.0
    dma: float = 0.0
    vector: float = 0.0
    host: float = 0.0
    """Attention on the CPU, during which the NPU waits."""
    overhead: float = 0.0
    dram_bytes: float = 0.0
    """Bytes that are read from memory: not a time."""

    @property
    def by_engine(self) -> dict[str, float]:
        """Seconds by the name of the engine."""
        return dict(zip(self._fields[:-1], self[:-1], strict=True))

    @property
    def seconds(self) -> float:
        return sum(self[:-1])

    def times(self, count: float) -> "StepCost":
        """Returns the cost of `count` such steps, one after the other."""
        return StepCost(*(count * part for part in self))


def sum_of(costs: Iterable[StepCost]) -> StepCost:
    """Returns the cost of several steps, one after the other."""
    return StepCost(*map(math.fsum, zip(*costs, strict=True)))


def price_on_npu(
    lowered: Lowered, kernels: NpuKernels, memory: PhoneMemory, host: CpuKernels | None = None
) -> StepCost:
    """Returns the cost of a step on the NPU.

    If the kernels leave attention to the CPU (`attention` is "cpu"), `host` are the CPU's kernels
    for it, and ValueError is raised without them.
    """
    attention_host = host if kernels.attention == "cpu" else None
    require(
        attention_host is not None or kernels.attention == "npu",
        "attention is 'cpu' without kernels of a CPU; allowed: 'npu', or the CPU's kernels",
    )

    def price_product(operation: Operation) -> StepCost:
        if operation.weight is not None:
            return _weight_product(operation, lowered.weights[operation.weight], kernels, memory)
        if attention_host is not None:
            return StepCost(host=_cpu_product(operation, None, attention_host, memory).seconds)
        return _attention_product(operation, kernels)

    score_ns = kernels.score_ns if attention_host is None else attention_host.elementwise_ns
    costs = _price_operations(lowered, price_product, kernels.elementwise_ns, score_ns)
    scopes = {operation.scope.split("/")[0] for operation in lowered.operations}
    n_layers = sum(scope.startswith("layer_") for scope in scopes)
    return sum_of([*costs, StepCost(overhead=n_layers * kernels.layer_overhead_us * 1e-6)])


def price_on_cpu(lowered: Lowered, kernels: CpuKernels, memory: PhoneMemory) -> StepCost:
    def price_product(operation: Operation) -> StepCost:
        weight = lowered.weights.get(operation.weight or "")
        return _cpu_product(operation, weight, kernels, memory)

    element_ns = kernels.elementwise_ns
    return sum_of(_price_operations(lowered, price_product, element_ns, element_ns))


def matrix_shape(operation: Operation) -> tuple[int, int, int, int]:
    """Returns (batch, rows, inputs, outputs) of [batch, rows, inputs] x [batch, inputs, outputs].

    An operation does not record which axes are batch axes. The tensors' sizes are enough:
    |left| * |right| / |output| = batch * inputs^2.
    """
    inputs = operation.contraction
    left, right = (tensor.size for tensor in operation.inputs)
    batch = left * right // (operation.outputs[0].size * inputs**2)
    return batch, left // (batch * inputs), inputs, right // (batch * inputs)


def stored_bits(weight: LoweredWeight) -> float:
    """Returns the bits of one stored weight, with its share of its group's 16-bit scale.

    Floats are stored as 16 bits on a phone.
    """
    if weight.bits >= 16:
        return 16.0
    return weight.bits + (16 / weight.group if weight.group else 0.0)


def _weight_product(
    operation: Operation, weight: LoweredWeight, kernels: NpuKernels, memory: PhoneMemory
) -> StepCost:
    _, rows, inputs, outputs = matrix_shape(operation)
    n_weights = inputs * outputs
    n_bytes = n_weights * stored_bits(weight) / 8
    # A single row wastes nearly all of a tile, so some libraries have a matrix-vector kernel.
    # It waits for memory only; the measured rate includes its dequantization.
    if rows == 1 and kernels.gemv_gbps:
        return StepCost(dma=n_bytes / kernels.gemv_gbps / 1e9, dram_bytes=n_bytes)
    # Dequantized weights do not fit into VTCM, so the next pass has to start again from DRAM. This
    # makes the time a staircase in the rows.
    spilled = _spilled_bytes(rows, inputs + outputs, kernels, memory)
    passes = 1 if spilled else math.ceil(rows / rows_in_a_pass(inputs, kernels, memory))
    dma = passes * n_bytes / kernels.dma_gbps / 1e9
    dequantization = passes * n_weights / _dequant_rate(operation, weight, kernels)
    padded_rows = _round_up(rows, kernels.tile_rows)
    macs = padded_rows * _round_up(inputs, _MATRIX_TILE) * _round_up(outputs, _MATRIX_TILE)
    n_accumulators = padded_rows // kernels.tile_rows * -(-outputs // _MATRIX_TILE)
    matrix = 2 * macs / kernels.matrix_tops / 1e12 + n_accumulators * kernels.readout_us * 1e-6
    vector = rows * (inputs + outputs) * kernels.activation_ns * 1e-9
    pipelined = {"dma": dma, "dequantization": dequantization}
    if kernels.overlap == "all":
        pipelined["matrix"], matrix = matrix, 0.0
    slowest = max(pipelined, key=lambda stage: pipelined[stage])
    # A spilled block is written before it can be read, so no other stage hides these transfers.
    spills = StepCost(dma=spilled / kernels.dma_gbps / 1e9, dram_bytes=spilled)
    cost = StepCost(matrix=matrix, vector=vector, dram_bytes=passes * n_bytes)
    return sum_of([cost._replace(**{slowest: pipelined[slowest]}), spills])


def _spilled_bytes(rows: int, width: int, kernels: NpuKernels, memory: PhoneMemory) -> float:
    """Returns the traffic of activations, [rows, width] with inputs and outputs, beyond VTCM.

    The vendor's compiler reads weights once, and moves activations that do not fit between DRAM and
    VTCM for each block of weights. It reports these bytes (`backend.qnn.compiler.Traffic`).
    """
    n_bytes = 2 * rows * width
    return kernels.spill_passes * n_bytes if n_bytes >= memory.vtcm_mib * MIB else 0.0


def _dequant_rate(operation: Operation, weight: LoweredWeight, kernels: NpuKernels) -> float:
    """Returns weights per second; infinite if the kernels multiply the stored format directly."""
    name = (operation.weight or "").partition("[")[0]  # a chunk of the head is `head[0:4096]`
    is_fast = name.endswith(_FAST_MATRICES)
    rate = kernels.fast_dequant_gweights if is_fast else kernels.dequant_gweights
    return rate * 1e9 if rate and weight.bits < 16 else math.inf


def rows_in_a_pass(inputs: int, kernels: NpuKernels, memory: PhoneMemory) -> int:
    """Returns how many rows share one pass over a matrix.

    This is `pass_rows`, or less for wide inputs: half of VTCM is assumed to hold float16
    activations, the rest is left to the weight tiles. At least one tile of rows always runs.
    """
    tiles_that_fit = int(memory.vtcm_mib * MIB / 2 / (2 * inputs)) // kernels.tile_rows
    return max(kernels.tile_rows, min(kernels.pass_rows, tiles_that_fit * kernels.tile_rows))


def _attention_product(operation: Operation, kernels: NpuKernels) -> StepCost:
    """Returns the cost of queries x keys or of weights x values.

    The keys or values are the second operand. They are read from memory while the product runs.
    """
    batch, left, inputs, right = matrix_shape(operation)
    sides = (_round_up(size, _MATRIX_TILE) for size in (left, inputs, right))
    matrix = 2 * batch * math.prod(sides) / kernels.matrix_tops / 1e12
    n_bytes = operation.inputs[1].size * kernels.kv_bits / 8
    dma = n_bytes / kernels.dma_gbps / 1e9
    slowest = {"matrix": matrix} if matrix > dma else {"dma": dma}
    return StepCost(**slowest, dram_bytes=n_bytes)


def _cpu_product(
    operation: Operation, weight: LoweredWeight | None, kernels: CpuKernels, memory: PhoneMemory
) -> StepCost:
    """Returns the cost of a product with the faster kernel: matrix-matrix or matrix-vector.

    The matrix-matrix kernel may unpack all weights first, whatever the rows, and cannot be faster
    than one read of the weights. The matrix-vector kernel reads the weights for every row.
    """
    _, rows, inputs, outputs = matrix_shape(operation)
    multiply = 2 * operation.macs / kernels.gemm_tops / 1e12
    if weight is None:
        return StepCost(matrix=multiply)
    n_weights = inputs * outputs
    n_bytes = n_weights * stored_bits(weight) / 8
    one_read = n_bytes / memory.dram_gbps / 1e9
    unpack = n_weights / kernels.unpack_gweights / 1e9 if kernels.unpack_gweights else 0.0
    by_vectors = max(rows * n_weights / kernels.gemv_gweights / 1e9, rows * one_read)
    if by_vectors < max(multiply + unpack, one_read):
        return StepCost(dma=by_vectors, dram_bytes=rows * n_bytes)
    if multiply + unpack < one_read:
        return StepCost(dma=one_read, dram_bytes=n_bytes)
    return StepCost(matrix=multiply, dequantization=unpack, dram_bytes=n_bytes)


def _price_operations(
    lowered: Lowered,
    price_product: Callable[[Operation], StepCost],
    element_ns: float,
    score_ns: float,
) -> Iterator[StepCost]:
    """Yields the costs of products, of attention scores and of fused groups of vector work.

    A fused group ends before each product and after each reduction, whose result must be complete
    before anything reads it. It costs by the largest tensor that one of its operations touches.
    """
    fused_elements = 0
    in_attention = False  # between a product without weights and the next product with weights
    for operation in lowered.operations:
        is_unknown = operation.name not in KNOWN
        if operation.name == "dot_general":
            yield StepCost(vector=fused_elements * element_ns * 1e-9)
            yield price_product(operation)
            fused_elements, in_attention = 0, operation.weight is None
        elif in_attention:
            # `score_ns` covers mask, softmax and layout changes. It is charged at the softmax's
            # exponential, which runs once per score; known operations around it are included.
            if is_unknown or operation.name == "exponential":
                rate = element_ns if is_unknown else score_ns
                yield StepCost(vector=_n_elements(operation) * rate * 1e-9)
        elif operation.name not in FREE and (operation.scope or operation.name not in _MOVES):
            # Moves outside any layer only rearrange the step's arguments, such as the cache. A
            # phone stores these in the layout that the kernels read.
            fused_elements = max(fused_elements, _n_elements(operation))
            if operation.name == "reduce":
                yield StepCost(vector=fused_elements * element_ns * 1e-9)
                fused_elements = 0
    yield StepCost(vector=fused_elements * element_ns * 1e-9)


def unknown_operations(lowered: Lowered) -> list[str]:
    """Describes each operation that the model does not know, and how it is priced instead."""
    descriptions = (
        f"{operation.name} {operation.types} at {operation.scope or 'the top'}: priced as vector "
        f"work on {_n_elements(operation):,} elements"
        for operation in lowered.operations
        if operation.name not in KNOWN
    )
    return [*dict.fromkeys(descriptions)]


def _n_elements(operation: Operation) -> int:
    """Returns the size of the largest tensor that the operation reads or writes."""
    return max((t.size for t in (*operation.inputs, *operation.outputs)), default=0)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
