"""What experts cost on the profiled phones, by the device model's prices."""

import math

from llada_jax.experts.budget import slots_within
from llada_jax.experts.costs import ExpertCosts
from llada_jax.experts.shapes import MoEShape
from llada_jax.lowered import Lowered, LoweredWeight, Operation, TensorType
from llada_jax.phone.cost import MIB, price_on_npu, stored_bits
from llada_jax.phone.profile import CpuKernels, Memory, Profile, load_profile
from llada_jax.swap.budget import Budget

WEIGHT_BITS, GROUP = 4, 32
"""Q4_0."""
BLOCK_ROWS = 32
CALL = 10e-6
"""Seconds of an expert beside its products: three operations within one call. Inferred."""
FIRST_ON_CPU = 90e-6
"""Seconds until the CPU's threads are awake: what a polled call to the NPU takes the other way
round (measured on SM8750). Inferred."""


def phone_costs(
    soc: str, shape: MoEShape, npu: str = "llada_cpp", cpu: str = "plain"
) -> ExpertCosts:
    """The experts of a model on a phone, with the kernels named.

    The NPU's time for an expert is that of a block's 32 rows, whatever its load: they share one
    tile. The rest of a layer has the price of square matrices, and its share of the step's call.
    Attention's scores and what staging costs once a step are left out, for all policies alike.
    """
    phone = load_profile(soc)
    npu_kernels, cpu_kernels = phone.kernels(npu), phone.cpu_kernels(cpu)
    expert = price_on_npu(expert_step(shape, BLOCK_ROWS), npu_kernels, phone.memory)
    square = price_on_npu(_step([(shape.width, shape.width, "dense")], BLOCK_ROWS), npu_kernels,
                          phone.memory)  # fmt: skip
    layer = npu_kernels.layer_overhead_us + npu_kernels.step_overhead_us / shape.n_layers
    return ExpertCosts(
        cpu_few_row=shape.expert_weights * 1e-9 / cpu_kernels.gemv_gweights,
        cpu_expert=_read_by_cpu(shape, cpu_kernels, phone.memory),
        cpu_row=2 * shape.expert_weights * 1e-12 / cpu_kernels.gemm_tops,
        cpu_first=FIRST_ON_CPU,
        accelerator=expert.seconds + CALL,
        transfer=expert_bytes(shape) * 1e-9 / phone.mapping.copy_gbps,
        dense=square.seconds * shape.dense_weights / shape.width**2 + layer * 1e-6,
    )


def _read_by_cpu(shape: MoEShape, kernels: CpuKernels, memory: Memory) -> float:
    """Seconds that the kernel for many rows takes for the weights: at least until they are read."""
    from_memory = expert_bytes(shape) * 1e-9 / memory.dram_gbps
    if not kernels.unpack_gweights:
        return from_memory
    return max(from_memory, shape.expert_weights * 1e-9 / kernels.unpack_gweights)


def expert_step(shape: MoEShape, rows: int) -> Lowered:
    """The products of one expert."""
    width, inner = shape.width, shape.expert_width
    return _step([(width, inner, "ffn.gate"), (width, inner, "ffn.up"), (inner, width, "ffn.down")],
                 rows)  # fmt: skip


def _step(matrices: list[tuple[int, int, str]], rows: int) -> Lowered:
    weights = {
        name: LoweredWeight((inputs, outputs), WEIGHT_BITS, GROUP)
        for inputs, outputs, name in matrices
    }
    operations = tuple(
        Operation(
            "dot_general",
            "",
            (TensorType((rows, inputs), "f32"), TensorType((inputs, outputs), "f32")),
            (TensorType((rows, outputs), "f32"),),
            contraction=inputs,
            weight=name,
        )
        for inputs, outputs, name in matrices
    )
    return Lowered("experts", b"", weights, {}, {}, operations)


def stored_bytes(weights: int) -> int:
    """With the scales."""
    return math.ceil(weights * stored_bits(LoweredWeight((1,), WEIGHT_BITS, GROUP)) / 8)


def expert_bytes(shape: MoEShape) -> int:
    """Of one expert."""
    return stored_bytes(shape.expert_weights)


def slots_in_address_space(soc: str, shape: MoEShape, tokens: int) -> int:
    """Experts of a layer that the NPU's session maps beside dense weights, keys and values."""
    return slots_within(session_budget(load_profile(soc), shape, tokens), shape,
                        expert_bytes(shape))  # fmt: skip


def session_budget(phone: Profile, shape: MoEShape, tokens: int) -> Budget:
    """The swap planner's budget of a session, with what it maps all the time."""
    return Budget(
        session_bytes=int(phone.memory.mapping_cap_mib * MIB),
        kv_bytes_per_token=shape.kv_bytes_per_token,
        tokens=tokens,
        reserved_bytes=stored_bytes(shape.n_layers * shape.dense_weights),
    )
