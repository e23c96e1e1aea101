"""What the model is fitted to: Table 2's denoising step, and the dynamics of Figures 5a and 8."""

from typing import Any

from experiments.reproduce.chapter import PAPER, TASKS, Chapter, chapter, modelled
from llada_jax.phone.dynamics import SOURCE, statistics
from llada_jax.phone.fit import residuals_of
from llada_jax.phone.profile import load_profile
from llada_jax.phone.published_tasks import PublishedTasks


def table2(world: PublishedTasks) -> Chapter:
    """Compares one denoising step, row by row."""
    phone = load_profile("SM8750")
    rows = [
        modelled(name, found, "ms", reference=published, fitted=True, source=f"{PAPER}, Table 2")
        for name, published, found in residuals_of(world.figures, world.graphs, phone)
    ]
    npu, cpu = phone.npu["llada_cpp"], phone.cpu["plain"]
    return chapter("table2", rows, npu=npu, cpu=cpu, layer_ms=npu.layer_overhead_us / 1e3)


def dynamics(world: PublishedTasks) -> Chapter:
    """Compares the process behind the forwards with the statistics that it is fitted to."""
    found, published = statistics(world.dynamics), world.figures
    first = published["fig8_first_commit_step"]["values"]
    tail = published["fig5a_tail_steps_pct"]["pct"]
    more: Any = {"fitted": True, "trace_source": SOURCE}
    rows = [
        modelled(f"fig8/position{i + 1}", found.first_commit[i], "forwards", reference=first[i],
                  source=f"{PAPER}, Figure 8", **more)
        for i in (0, 7, 15, 23, 31)
    ]  # fmt: skip
    rows += [
        modelled(f"fig5a/{k}", 100 * found.tail_share[k - 1], "%", reference=tail[k - 1],
                  source=f"{PAPER}, Figure 5a", **more)
        for k in (1, 4, 8)
    ]  # fmt: skip
    words = [
        f"`{name}`: prompt of {task.prompt} tokens, {statistics(task.dynamics).forwards:.1f} "
        f"forwards for a block alone (reach {task.dynamics.reach:.2f})."
        for name in TASKS
        if (task := world.task(name))
    ]
    return chapter("dynamics", rows, words, forwards=found.forwards)
