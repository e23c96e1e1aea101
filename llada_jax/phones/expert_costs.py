"""The costs of a mixture's experts on a phone, for schedules and policies (`llada_jax.experts`)."""

import math

from llada_jax.experts.schedule import ExpertCosts
from llada_jax.experts.shapes import MoEShape
from llada_jax.lowered import Lowered, LoweredWeight, product_with
from llada_jax.phones.cost import price_on_npu, stored_bits
from llada_jax.phones.profile import Profile

WEIGHT_BITS, GROUP = 4, 32
"""Q4_0."""
BLOCK_ROWS = 32
CALL = 10e-6
"""Seconds of an expert in addition to its products: three operations in a call. Inferred."""
FIRST_ON_CPU = 90e-6
"""Seconds until the CPU's threads wake, the same as a polled NPU call (SM8750). Inferred."""


def expert_costs(
    phone: Profile, shape: MoEShape, npu: str = "llada_cpp", cpu: str = "plain"
) -> ExpertCosts:
    """Returns the costs of a model's experts on a phone, with the named kernels. An expert takes
    the NPU the time of a block's 32 rows at any load, because these share a tile. The rest of a
    layer costs its square matrices and a share of the step's call. Attention scores and staging
    costs per step are left out, which affects all policies equally."""
    npu_kernels, cpu_kernels = phone.kernels(npu), phone.cpu_kernels(cpu)

    def on_npu(*matrices: tuple[int, int, str]) -> float:
        """Returns the seconds of products, given as inputs, outputs and name."""
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


def expert_bytes(shape: MoEShape) -> int:
    """Returns the bytes of one expert, with its scales."""
    bits = stored_bits(LoweredWeight((1,), WEIGHT_BITS, GROUP))
    return math.ceil(shape.expert_weights * bits / 8)
