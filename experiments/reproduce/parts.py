"""Parts of a phone alone: one layer, shared bandwidth, and a sweep of mappings."""

from collections.abc import Iterator

from experiments.harness.results import ResultRow
from experiments.reproduce.chapter import Chapter, chapter, modelled
from llada_jax.lowered import LoweredWeight
from llada_jax.phone.cost import price_on_npu
from llada_jax.phone.profile import load_profile
from llada_jax.phone.published_tasks import PublishedTasks
from llada_jax.phone.single_steps import product_step
from llada_jax.phone.timeline import LaneTask, run


def platform(world: PublishedTasks) -> Chapter:
    """Compares one fully connected layer, shared bandwidth, and a sweep of mappings."""
    sweep, profile = world.published["fc_sweep"], load_profile("SM8750")
    weight = LoweredWeight((sweep["outputs"], sweep["inputs"]), 4)
    rows = []
    fitted = {64: world.figures["platform_fc_64_rows"]["us"]}
    measured = dict(zip(sweep["rows"], sweep["us"], strict=True)) | fitted
    for count, wanted in sorted(measured.items()):
        step = product_step(count, sweep["inputs"], sweep["outputs"], weight, "fc")
        seconds = price_on_npu(step, profile.npu["hexkl"], profile.memory).seconds
        rows.append(
            modelled(f"fc/rows{count}", seconds * 1e6, "us", reference=wanted,
                      source=sweep["source"], fitted=count in fitted)
        )  # fmt: skip
    rows += _bandwidths(world)
    remap = world.figures["platform_remap_sweep"]
    moved = remap["buffers"] * remap["buffer_mib"] / 1024
    rows.append(
        modelled("remap/delayed", moved * profile.mapping.delayed_ms_per_gib, "ms",
                  reference=remap["ms"], source=remap["source"], fitted=True)
    )  # fmt: skip
    return chapter("platform", rows)


def _bandwidths(world: PublishedTasks) -> Iterator[ResultRow]:
    fitted, published = world.figures["platform_bandwidth_gbps"], world.published["bandwidth_gbps"]
    profile = load_profile("SM8650")
    cpu = profile.cpu["tuned"].gemv_gweights * 4.5 / 8
    npu = profile.npu["llada_cpp"].dma_gbps
    tasks = [LaneTask("npu", "npu", 1.0, npu * 1e9), LaneTask("cpu", "cpu", 1.0, cpu * 1e9)]
    both = run(tasks, profile.memory.dram_gbps)
    overlap = min(event.end for event in both.events)
    drawn = sum(
        min(event.end, overlap) / event.end * event.task.dram_bytes for event in both.events
    )
    values = {"npu": npu, "cpu": cpu, "together": drawn / overlap / 1e9}
    for name, value in values.items():
        yield modelled(
            f"bandwidth/SM8650/{name}", value, "GB/s", reference=(fitted | published)[name],
            source=published["source"], fitted=name in fitted,
        )  # fmt: skip
