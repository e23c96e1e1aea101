"""Prices the experts of a mixture on the profiled phones."""

import math

from llada_jax.config import require
from llada_jax.experts.costs import ExpertCosts
from llada_jax.experts.shapes import MoEShape
from llada_jax.lowered import Lowered, LoweredWeight, product_with
from llada_jax.phone.cost import price_on_npu, stored_bits
from llada_jax.phone.profile import load_profile
from llada_jax.swap.address_budget import MIB, Budget

WEIGHT_BITS, GROUP = 4, 32
"""Q4_0."""
BLOCK_ROWS = 32
CALL = 10e-6
"""Seconds of an expert beyond its products: three operations within one call. Inferred."""
FIRST_ON_CPU = 90e-6
"""Seconds until the CPU's threads wake: as a polled call to the NPU (SM8750). Inferred."""


def phone_costs(
    soc: str, shape: MoEShape, npu: str = "llada_cpp", cpu: str = "plain"
) -> ExpertCosts:
    """Returns what the experts of a model cost on a phone, with the kernels named.

    The NPU's time for an expert is that of a block's 32 rows, whatever its load: they share one
    tile. The rest of a layer has the price of square matrices, and its share of the step's call.
    Attention's scores and what staging costs once a step are left out, for all policies alike.
    """
    phone = load_profile(soc)
    npu_kernels, cpu_kernels = phone.kernels(npu), phone.cpu_kernels(cpu)

    def on_npu(*matrices: tuple[int, int, str]) -> float:
        """Prices products with weights: inputs, outputs and the name of each."""
        weights = {name: LoweredWeight((o, i), WEIGHT_BITS, GROUP) for i, o, name in matrices}
        operations = tuple(product_with(name, BLOCK_ROWS, i, o) for i, o, name in matrices)
        step = Lowered("experts", b"", weights, {}, {}, operations)
        return price_on_npu(step, npu_kernels, phone.memory, cpu_kernels).seconds

    width, inner, weights = shape.width, shape.expert_width, shape.expert_weights
    read = expert_bytes(shape) * 1e-9 / phone.memory.dram_gbps
    unpack = weights * 1e-9 / (cpu_kernels.unpack_gweights or math.inf)
    layer = npu_kernels.layer_overhead_us + npu_kernels.step_overhead_us / shape.n_layers
    return ExpertCosts(
        cpu_few_row=weights * 1e-9 / cpu_kernels.gemv_gweights,
        cpu_expert=max(read, unpack),
        cpu_row=2 * weights * 1e-12 / cpu_kernels.gemm_tops,
        cpu_first=FIRST_ON_CPU,
        accelerator=on_npu(
            (width, inner, "ffn.gate"), (width, inner, "ffn.up"), (inner, width, "ffn.down")
        )
        + CALL,
        transfer=expert_bytes(shape) * 1e-9 / phone.mapping.copy_gbps,
        dense=on_npu((width, width, "dense")) * shape.dense_weights / width**2 + layer * 1e-6,
    )


def stored_bytes(weights: int) -> int:
    """Returns the bytes of so many weights, with their scales."""
    return math.ceil(weights * stored_bits(LoweredWeight((1,), WEIGHT_BITS, GROUP)) / 8)


def expert_bytes(shape: MoEShape) -> int:
    """Returns the bytes of one expert."""
    return stored_bytes(shape.expert_weights)


def slots_in_address_space(soc: str, shape: MoEShape, tokens: int) -> int:
    """Returns how many experts of a layer an NPU's session maps beside dense weights and KV.

    Raises ValueError where there is not one for each layer.
    """
    space = Budget(
        session_bytes=int(load_profile(soc).memory.mapping_cap_mib * MIB),
        kv_bytes_per_token=shape.kv_bytes_per_token,
        tokens=tokens,
        reserved_bytes=stored_bytes(shape.n_layers * shape.dense_weights),
    )
    return slots_within(space, shape, expert_bytes(shape))


def slots_within(space: Budget, shape: MoEShape, size: int) -> int:
    """Divides what the swap planner's budget leaves into slots of one expert of so many bytes, the
    same number for every layer; more than all experts are never needed.

    Raises ValueError where there is not one slot for each layer.
    """
    left = space.session_bytes - space.fixed_bytes
    row = space.aligned(size) * shape.n_layers
    require(
        left >= row,
        f"budget is {left} bytes beside what is mapped all the time; allowed: {row} or more, one "
        f"expert of {space.aligned(size)} bytes for each of {shape.n_layers} layers",
    )
    return min(left // row, shape.n_experts)
