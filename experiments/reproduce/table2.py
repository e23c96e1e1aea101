"""Table 2: one denoising step, which the kernels' rates are fitted to."""

from experiments.reproduce.chapter import PAPER, Chapter, chapter, modelled
from llada_jax.phone.fit import residuals_of
from llada_jax.phone.profile import load_profile
from llada_jax.phone.published_tasks import PublishedTasks


def table2(world: PublishedTasks) -> Chapter:
    """Compares one denoising step, row by row."""
    phone = load_profile("SM8750")
    rows = [
        modelled(each.name, each.modelled, "ms", reference=each.published, fitted=True,
                  source=f"{PAPER}, Table 2")
        for each in residuals_of(world.figures, world.graphs, phone)
    ]  # fmt: skip
    npu, cpu = phone.npu["llada_cpp"], phone.cpu["plain"]
    return chapter("table2", rows, npu=npu, cpu=cpu, layer_ms=npu.layer_overhead_us / 1e3)
