"""Prices the experts of a mixture on the profiled phones."""

import math

from llada_jax.experts.costs import ExpertCosts
from llada_jax.experts.shapes import MoEShape
from llada_jax.lowered import Lowered, LoweredWeight, product_with
from llada_jax.phone.cost import price_on_npu, stored_bits
from llada_jax.phone.profile import load_profile

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


def expert_bytes(shape: MoEShape) -> int:
    """Returns the bytes of one expert, with its scales."""
    bits = stored_bits(LoweredWeight((1,), WEIGHT_BITS, GROUP))
    return math.ceil(shape.expert_weights * bits / 8)
