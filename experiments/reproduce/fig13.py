"""Figures 13 and 14: when a window looks ahead (a), what staging takes by resident budget (c), and
watts and joules, whose doubt is a factor."""

from functools import partial
from statistics import fmean
from typing import Any

from experiments.harness.estimates import difference, mean_of, ratio
from experiments.reproduce.chapter import PAPER, Chapter, band, chapter, modelled, phone_of
from llada_jax.phone.dynamics import SOURCE, Decoding
from llada_jax.phone.memory import transfers_by_rule
from llada_jax.phone.profile import load_profile
from llada_jax.phone.published_tasks import PublishedTasks
from llada_jax.phone.simulate import Energy, simulate
from llada_jax.phone.system import System
from llada_jax.phone.uncertainty import POWER_SPREAD
from llada_jax.phone.workload import autoregressive, blockwise

METERED = 4
"""Runs whose energy is averaged."""


def fig13a(world: PublishedTasks) -> Chapter:
    """Predicts latency by the number of masks left at which the window grows."""
    figure = world.published["fig13a_trigger_s"]
    published = dict(zip(figure["masks_left"], figure["seconds"], strict=True))

    def seconds(**settings: Any) -> list[float]:
        runs = world.workloads("GSM8K", 128, Decoding(**settings))
        return [*map(phone_of("llada_8b", "SM8750", System()).latency, runs)]

    found = {trigger: seconds(trigger=trigger) for trigger in published}
    best = min(found, key=lambda trigger: mean_of(found[trigger]).value)
    optimum = min(published, key=lambda trigger: published[trigger])
    source = f"{PAPER}, Figure 13a (its task is not named)"
    row = partial(modelled, source=source, fitted=False, trace_source=SOURCE)
    rows = [row("fig13a/optimum", best, "masks left", reference=optimum, n=world.runs)]
    rows += [
        row(f"fig13a/relative/{trigger}", ratio(found[trigger], found[optimum]),
            f"of the time at {optimum}", reference=published[trigger] / published[optimum])
        for trigger in found if trigger != optimum
    ]  # fmt: skip
    ladder = dict(world.published["table6_s"]["rows"])
    return chapter(
        "fig13a",
        rows,
        optimum=optimum,
        more=difference(found[optimum], found[0]),
        sliding=ratio(found[0], found[optimum]),
        fixed=ratio(seconds(trigger=0, slides=False), found[optimum]),
        published_zero=published[0] / published[optimum],
        table_six=ladder["+SOMR"] / ladder["+MBSD"],
    )


def fig13c(world: PublishedTasks) -> Chapter:
    """Predicts synchronous staging by resident budget."""
    ends, inside = world.figures["fig13c_ends_ms"], world.published["fig13c_ms"]
    points = [(b, ms, True) for b, ms in zip(ends["resident_mib"], ends["ms"], strict=True)]
    points += [(b, ms, False) for b, ms in zip(inside["resident_mib"], inside["ms"], strict=True)]
    staged = partial(transfers_by_rule, model=world.graphs.model, profile=load_profile("SM8750"))
    rows = [
        modelled(f"fig13c/{budget}", 1e3 * staged(System(resident_mib=budget)).seconds, "ms",
                 reference=ms, source=f"{PAPER}, Figure 13c", fitted=fitted)
        for budget, ms, fitted in sorted(points, reverse=True)
    ]  # fmt: skip
    return chapter("fig13c", rows)


def fig14(world: PublishedTasks) -> Chapter:
    """Compares the watts and the joules of four systems."""
    figure, prompt = world.published["fig14"], world.task("GSM8K").prompt
    llama, on_cpu = (autoregressive(prompt, 128),), System(body="cpu")
    decoded = world.workloads("GSM8K", 128, Decoding())[:METERED]
    runs = {
        "LLaDA CPU": ("llada_8b", (blockwise(prompt, 128),), on_cpu),
        "LLaDA llada.cpp": ("llada_8b", decoded, System()),
        "Llama CPU": ("llama3_8b", llama, on_cpu),
        "Llama NPU": ("llama3_8b", llama, System(runtime="wide")),
    }
    rows = []
    for name, (shape, workloads, system) in runs.items():
        timer = phone_of(shape, "SM8750", system)
        energies = [simulate(each, timer).energy for each in workloads]
        found = Energy(*map(fmean, zip(*energies, strict=True)))
        label = name.replace(" ", "_").lower()
        rows += [
            modelled(f"fig14/{label}/{what}", value, unit, fitted=False, reference=published[name],
                     source=f"{PAPER}, Figure 14", band=band(value, POWER_SPREAD, world.spread),
                     trace_source=workloads[0].source)
            for what, value, unit, published in (
                ("watts", found.watts, "W", figure["power_W"]),
                ("joules", found.above_idle, "J", figure["energy_J"]),
            )
        ]  # fmt: skip
    joules, watts = figure["energy_J"], figure["power_W"]
    published = joules["LLaDA CPU"] / joules["LLaDA llada.cpp"]
    implied = published * watts["LLaDA llada.cpp"] / watts["LLaDA CPU"]
    return chapter("fig14", rows, published=published, implied=implied)
