"""The effect of llada.cpp's parts on SM8750.

Table 6 is the cumulative ablation, Table 7 what fits the address space, Figure 13a the trigger of
the lookahead, Figure 13c staging by resident budget, and Figure 14 power and energy.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

from experiments.harness.estimates import difference, mean_of, ratio
from experiments.harness.results import Kind
from experiments.reproduce.chapter import PAPER, TEXTS, Chapter, band, chapter, modelled, timer_of
from llada_jax.phones.dynamics import SOURCE, Techniques
from llada_jax.phones.memory import Footprint, footprint, transfers_by_rule
from llada_jax.phones.profile import load_profile
from llada_jax.phones.published_tasks import PublishedTasks
from llada_jax.phones.simulate import Energy, simulate
from llada_jax.phones.system import Runtime, System
from llada_jax.phones.uncertainty import POWER_SPREAD
from llada_jax.phones.workload import autoregressive, blockwise

ADDRESS_SPACE_MIB = (3840, 4096)
"""Bounds of the limit on SM8750, whose middle is in the profile: the most that was ever mapped
(Seunghui98/nntrainer 52_flash_experts_on_htp_task.md), and 32 bits."""
METERED = 4
"""Number of runs to average energy over."""
_KINDS: Mapping[str, Kind] = {
    **dict.fromkeys(("cpu_prefix_kv", "npu"), "repeated"),
    **dict.fromkeys(("npu_prefix_kv", "mbsd", "sts", "sls"), "informed"),
}
"""Kinds of the rows of Table 6 that are not predictions."""


def table6(world: PublishedTasks) -> Chapter:
    """Runs the cumulative ablation, and states the largest parts of each row's time."""
    cells = world.figures["fig11_s"]["SM8750"]["GSM8K"]["128"]
    fitted = {"CPU": cells["cpu"], "+SCR": cells["llada_cpp"]}
    published = dict(world.published["table6_s"]["rows"]) | fitted
    rows, words, parts = [], [], {}
    why = TEXTS["table6"]["why"]  # in the order of the table
    for name, (row, (workloads, system)) in zip(why, world.table6().items(), strict=True):
        timer = timer_of("llada_8b", "SM8750", system)
        seconds = mean_of([*map(timer.seconds, workloads)])
        rows.append(
            modelled(f"table6/{name}", seconds, "s", reference=published[row],
                      source=f"{PAPER}, Table 6", fitted=row in fitted,
                      kind=_KINDS.get(name, "modelled"), trace_source=workloads[0].source)
        )  # fmt: skip
        parts[name] = simulate(workloads[0], timer.timer, timer.session.slowdown).parts
        words.append(f"`{name}`: {why[name]}; {_largest(parts[name])}.")
    return replace(chapter("table6", rows, words), parts=parts)


def _largest(parts: dict[str, float]) -> str:
    total, largest = sum(parts.values()), sorted(parts.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in largest)


def table7(world: PublishedTasks) -> Chapter:
    """Predicts which settings fit the address space."""
    runtimes: dict[str, Runtime] = {"No SOMR": "remap", "Paging only": "paging", "SOMR": "swap"}
    memory, prompt = load_profile("SM8750").memory, world.task("GSM8K").prompt
    rows, words = [], []
    for setting, batch, target, published in world.published["table7"]["rows"]:
        system, canvas = System(runtime=runtimes[setting]), prompt + target
        predicted = footprint(system, world.graphs.model, memory, canvas=canvas, rows=batch)
        name = f"table7/{setting.lower().replace(' ', '_')}/{batch}"
        rows.append(
            modelled(name, 1 if predicted.fits else -1, "runs (1) or fails (-1)", fitted=False,
                      kind="informed", source=f"{PAPER}, Table 7",
                      reference=-1 if published == "failed" else 1)
        )  # fmt: skip
        words.append(f"`{name}`: {_outcome(predicted, published == 'failed')}.")
    limit = memory.address_space_mib
    return chapter("table7", rows, words, ends=ADDRESS_SPACE_MIB, limit=limit)


def _outcome(predicted: Footprint, failed: bool) -> str:
    """Describes whether a setting runs, and whether that depends on the uncertain limit."""
    runs = ("fails", "runs")
    low, high = (runs[predicted._replace(limit=limit).fits] for limit in ADDRESS_SPACE_MIB)
    met = "as published" if predicted.fits != failed else "not as published"
    text = f"{runs[predicted.fits]}, {met}: {predicted.reason}"
    if low == high:
        return f"{text}; {low} at both ends of the limit's range"
    return f"{text}; it {low} at 3,840 and {high} at 4,096, so the model does not tell"


def fig13a(world: PublishedTasks) -> Chapter:
    """Predicts latency by the lookahead trigger, a number of remaining masks."""
    figure = world.published["fig13a_trigger_s"]
    published = dict(zip(figure["masks_left"], figure["seconds"], strict=True))

    def seconds(**settings: Any) -> list[float]:
        runs = world.workloads("GSM8K", 128, Techniques(**settings))
        return [*map(timer_of("llada_8b", "SM8750", System()).seconds, runs)]

    predicted = {trigger: seconds(trigger=trigger) for trigger in published}
    best = min(predicted, key=lambda trigger: mean_of(predicted[trigger]).value)
    optimum = min(published, key=lambda trigger: published[trigger])
    source = f"{PAPER}, Figure 13a (its task is not named)"
    row = partial(modelled, source=source, fitted=False, trace_source=SOURCE)
    rows = [row("fig13a/optimum", best, "masks left", reference=optimum, n=world.runs)]
    rows += [
        row(f"fig13a/relative/{trigger}", ratio(predicted[trigger], predicted[optimum]),
            f"of the time at {optimum}", reference=published[trigger] / published[optimum])
        for trigger in predicted if trigger != optimum
    ]  # fmt: skip
    ladder = dict(world.published["table6_s"]["rows"])
    return chapter(
        "fig13a",
        rows,
        optimum=optimum,
        more=difference(predicted[optimum], predicted[0]),
        sliding=ratio(predicted[0], predicted[optimum]),
        fixed=ratio(seconds(trigger=0, slides=False), predicted[optimum]),
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
    """Compares the power and the energy of four systems."""
    figure, prompt = world.published["fig14"], world.task("GSM8K").prompt
    llama, on_cpu = (autoregressive(prompt, 128),), System(body="cpu")
    decoded = world.workloads("GSM8K", 128, Techniques())[:METERED]
    runs = {
        "LLaDA CPU": ("llada_8b", (blockwise(prompt, 128),), on_cpu),
        "LLaDA llada.cpp": ("llada_8b", decoded, System()),
        "Llama CPU": ("llama3_8b", llama, on_cpu),
        "Llama NPU": ("llama3_8b", llama, System(runtime="wide")),
    }
    rows = []
    for name, (shape, workloads, system) in runs.items():
        timer = timer_of(shape, "SM8750", system)
        slowdown = timer.session.slowdown
        energies = [simulate(run, timer.timer, slowdown).energy for run in workloads]
        predicted = Energy(*map(fmean, zip(*energies, strict=True)))
        label = name.replace(" ", "_").lower()
        rows += [
            modelled(f"fig14/{label}/{what}", value, unit, fitted=False, reference=published[name],
                     source=f"{PAPER}, Figure 14", band=band(value, POWER_SPREAD, world.spread),
                     trace_source=workloads[0].source)
            for what, value, unit, published in (
                ("watts", predicted.watts, "W", figure["power_W"]),
                ("joules", predicted.above_idle, "J", figure["energy_J"]),
            )
        ]  # fmt: skip
    joules, watts = figure["energy_J"], figure["power_W"]
    published = joules["LLaDA CPU"] / joules["LLaDA llada.cpp"]
    implied = published * watts["LLaDA llada.cpp"] / watts["LLaDA CPU"]
    return chapter("fig14", rows, published=published, implied=implied)
