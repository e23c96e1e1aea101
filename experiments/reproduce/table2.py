"""Table 2: one denoising step, which the kernels' rates are fitted to."""

from experiments.reproduce.chapter import PAPER, Chapter, modelled
from llada_jax.phone.fit import residuals_of
from llada_jax.phone.profile import load_profile
from llada_jax.phone.published_tasks import PublishedTasks


def table2(world: PublishedTasks) -> Chapter:
    """Compares one denoising step, row by row."""
    points = residuals_of(world.figures, world.graphs, load_profile("SM8750"))
    rows = [
        modelled(name, found, "ms", reference=published, fitted=True, source=f"{PAPER}, Table 2")
        for name, published, found in points
    ]
    npu, cpu = load_profile("SM8750").npu["llada_cpp"], load_profile("SM8750").cpu["plain"]
    words = [
        f"Fitted: dequantization {npu.dequant_gweights:.1f} G weights/s "
        f"({npu.fast_dequant_gweights:.1f} for FFN down, from Figure 3a), "
        f"{npu.layer_overhead_us / 1e3:.2f} ms a layer that no row shares; on the CPU "
        f"{cpu.gemm_tops:.3f} TOPS after a pass over the weights at {cpu.unpack_gweights:.1f} G/s.",
        "The NPU unpacks all weights again for each tile of 32 rows: that is the staircase. Both "
        "rates agree with an independent ledger (21 to 26 and 45 to 50 G weights/s), which was not "
        "used.",
        "Assumed: the step of Table 2 has no mapping event in it, and its head runs on the CPU "
        "with int8 matrix instructions (at the rate of the plain CPU kernels the head alone would "
        "cost more than Figure 3a leaves room for).",
    ]
    return Chapter("table2", "Table 2: one denoising step on SM8750", rows, words)
