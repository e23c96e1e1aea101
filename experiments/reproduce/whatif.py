"""Predicts what no paper has: other kernels, another CPU, wider mappings, larger windows."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from experiments.harness.estimates import difference, mean_of
from experiments.harness.results import ResultRow
from experiments.reproduce.chapter import Chapter, chapter, modelled
from experiments.reproduce.fig13 import Curve, told_apart
from experiments.reproduce.table6 import ladder
from llada_jax.phone.dynamics import SOURCE, Decoding
from llada_jax.phone.profile import CpuClass
from llada_jax.phone.published_tasks import PublishedTasks
from llada_jax.phone.simulate import simulate
from llada_jax.phone.system import System
from llada_jax.phone.workload import Forward


def whatif(world: PublishedTasks) -> Chapter:
    """Predicts what no paper has: other kernels, another CPU, wider mappings, larger windows."""
    rows, parts = [], {}
    seconds: dict[str, list[float]] = {}
    for rung in ladder(world, kernels="vendor", cpu="tuned"):
        seconds[rung.name] = world.seconds("SM8750", rung.system, rung.workloads)
        name = f"vendor_kernels_tuned_cpu/{rung.name}"
        rows.append(_what(name, seconds[rung.name], rung.source))
        found = simulate(rung.workloads[0], world.phone("SM8750", rung.system))
        parts[rung.name] = found.parts
    workloads = world.workloads("GSM8K", 128, Decoding())
    vendor = System(kernels="vendor", cpu="tuned")
    for runtime in ("remap", "delayed"):
        name = f"scr_{runtime}"
        seconds[name] = world.seconds("SM8750", replace(vendor, runtime=runtime), workloads)
        rows.append(_what(f"vendor_kernels_tuned_cpu/{name}", seconds[name], SOURCE))
    for runtime in ("swap", "wide"):
        for kernels in ("llada_cpp", "vendor"):
            system = System(runtime=runtime, kernels=kernels, cpu=_beside(kernels))
            name = f"SM8850/{runtime}/{kernels}"
            seconds[name] = world.seconds("SM8850", system, workloads)
            rows.append(_what(name, seconds[name], SOURCE))
    curves = dict(_windows(world))
    rows += [
        _what(f"window/{name}/trigger{trigger}", found, SOURCE)
        for name, curve in curves.items()
        for trigger, found in curve.items()
    ]
    words = [f"Windows, `{name}`: {told_apart(curve)}" for name, curve in curves.items()]
    return chapter("whatif", rows, words, parts, **_compared(world, vendor, seconds))


def _compared(
    world: PublishedTasks, vendor: System, seconds: Mapping[str, list[float]]
) -> dict[str, Any]:
    """Returns what the words say: gains beside the paper's, and whether copies hide."""
    mean = {name: mean_of(each) for name, each in seconds.items()}
    published = dict(world.published["table6_s"]["rows"])["CPU+prefixKV"]
    step = world.phone("SM8750", replace(vendor, runtime="wide")).step(Forward(32, 128, 16)).seconds
    staged = world.phone("SM8750", vendor).transfers.seconds
    return {
        "gain": mean["cpu_prefix_kv"].value / mean["scr_delayed"].value,
        "published_gain": published
        / world.figures["fig11_s"]["SM8750"]["GSM8K"]["128"]["llada_cpp"],
        "step": step,
        "staged": staged,
        "hide": "do not hide" if staged > step else "hide",
        "mean": mean,
        "saved": {
            kernels: difference(*(seconds[f"SM8850/{each}/{kernels}"] for each in ("swap", "wide")))
            for kernels in ("llada_cpp", "vendor")
        },
    }


def _windows(world: PublishedTasks) -> Iterator[tuple[str, Curve]]:
    """Yields latency by the trigger, for two classes of kernels and two lengths of windows."""
    for kernels in ("llada_cpp", "vendor"):
        system = System(kernels=kernels, runtime="delayed", cpu=_beside(kernels))
        for ahead in (32, 96):
            decoded = {
                trigger: world.workloads("GSM8K", 128, Decoding(trigger=trigger, ahead=ahead))
                for trigger in (0, 2, 4, 8, 16, 32)
            }
            seconds = {t: world.seconds("SM8750", system, runs) for t, runs in decoded.items()}
            yield f"{kernels}/{32 + ahead}_rows", seconds


def _beside(kernels: str) -> CpuClass:
    """Returns a CPU that keeps up: plain kernels revise for longer than a fast NPU takes a step."""
    return "tuned" if kernels == "vendor" else "plain"


def _what(name: str, seconds: list[float], source: str) -> ResultRow:
    return modelled(f"whatif/{name}", mean_of(seconds), "s", fitted=False, trace_source=source)
