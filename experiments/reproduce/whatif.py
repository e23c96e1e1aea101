"""Predicts what no paper has: other kernels, another CPU, wider mappings, larger windows."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from experiments.harness.estimates import difference, mean_of
from experiments.harness.results import ResultRow
from experiments.reproduce.chapter import Chapter, modelled
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
    words += [_whole_gain(world, seconds), _staged_beside(world, vendor, seconds)]
    words += [
        f"64-bit mappings on SM8850 (`wide`) save {saved} s of what swapping takes behind "
        f"{kernels} kernels."
        for kernels in ("llada_cpp", "vendor")
        if (saved := difference(*(seconds[f"SM8850/{r}/{kernels}"] for r in ("swap", "wide"))))
    ]
    return Chapter("whatif", "What if", rows, words, parts)


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


def _whole_gain(world: PublishedTasks, seconds: Mapping[str, list[float]]) -> str:
    """Compares all of the vendor's with its own baseline, as the paper does."""
    cached = mean_of(seconds["cpu_prefix_kv"]).value
    gain = cached / mean_of(seconds["scr_delayed"]).value
    published = dict(world.published["table6_s"]["rows"])["CPU+prefixKV"]
    whole = world.figures["fig11_cells_SM8750_128"]["GSM8K"]["llada_cpp"]
    return (
        "With the vendor's kernels, a tuned CPU and mappings from the NPU's side, the whole system "
        f"is {gain:.0f} times faster than the tuned CPU with a cache, where the paper's is "
        f"{published / whole:.0f} times faster than the plain one."
    )


def _staged_beside(
    world: PublishedTasks, vendor: System, seconds: Mapping[str, list[float]]
) -> str:
    """Says whether copies hide behind the vendor's steps, and what the three ways to map cost."""
    alone = world.phone("SM8750", replace(vendor, runtime="wide"))
    step = alone.step(Forward(32, 128, 16)).seconds
    staged = world.phone("SM8750", vendor).transfers.seconds
    swap, remap, delayed = (mean_of(seconds[n]) for n in ("scr", "scr_remap", "scr_delayed"))
    return (
        f"A step of 32 rows takes {step:.2f} s with these kernels and its copies {staged:.2f} s, "
        f"which {'do not hide' if staged > step else 'hide'} behind it: the swap runtime costs "
        f"{swap} s, mapping again {remap} s, and mapping from the NPU's side {delayed} s."
    )


def _beside(kernels: str) -> CpuClass:
    """Returns a CPU that keeps up: plain kernels revise for longer than a fast NPU takes a step."""
    return "tuned" if kernels == "vendor" else "plain"


def _what(name: str, seconds: list[float], source: str) -> ResultRow:
    return modelled(f"whatif/{name}", mean_of(seconds), "s", fitted=False, trace_source=source)
