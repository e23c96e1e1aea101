"""What parts of llada.cpp are worth on SM8750: the ablation (Table 6), what fits into the address
space (Table 7), when a window looks ahead (Figure 13a), what staging takes by resident budget
(13c), and watts and joules (Figure 14), whose doubt is a factor."""

from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

from experiments.harness.estimates import difference, mean_of, ratio
from experiments.harness.results import Kind
from experiments.reproduce.chapter import PAPER, TEXTS, Chapter, band, chapter, modelled, phone_of
from llada_jax.phones.dynamics import SOURCE, Techniques
from llada_jax.phones.memory import Footprint, footprint, transfers_by_rule
from llada_jax.phones.profile import load_profile
from llada_jax.phones.published_tasks import PublishedTasks
from llada_jax.phones.simulate import Energy, simulate
from llada_jax.phones.system import Runtime, System
from llada_jax.phones.uncertainty import POWER_SPREAD
from llada_jax.phones.workload import Workload, autoregressive, blockwise, vanilla

ADDRESS_SPACE_MIB = (3840, 4096)
"""What is known of the limit on SM8750, whose middle the profile has: so much was mapped at one
time (Seunghui98/nntrainer 52_flash_experts_on_htp_task.md), and more than 32 bits cannot be."""
METERED = 4
"""Runs whose energy is averaged."""


class Rung(NamedTuple):
    """One row of Table 6: which forwards, on which software."""

    name: str
    published: str
    workloads: tuple[Workload, ...]
    system: System
    kind: Kind = "modelled"


def ladder(world: PublishedTasks) -> list[Rung]:
    """Returns the nine rows of Table 6."""
    prompt = world.task("GSM8K").prompt
    whole, cached = (vanilla(prompt, 128),), (blockwise(prompt, 128),)

    def decoded(**settings: Any) -> tuple[Workload, ...]:
        return world.workloads("GSM8K", 128, Techniques(**settings))

    on_cpu, remap, swap = System(body="cpu"), System(runtime="remap"), System(runtime="swap")
    without_sls = {"skip_logits": False, "refresh": 0}
    return [
        Rung("cpu", "CPU", whole, on_cpu),
        Rung("cpu_prefix_kv", "CPU+prefixKV", cached, on_cpu, "repeated"),
        Rung("npu", "NPU", whole, remap, "repeated"),
        Rung("npu_prefix_kv", "NPU+prefixKV", cached, remap, "informed"),
        Rung("somr", "+SOMR", cached, swap),
        Rung("mbsd", "+MBSD", decoded(commit="one", **without_sls), swap, "informed"),
        Rung("sts", "+STS", decoded(**without_sls), swap, "informed"),
        Rung("sls", "+SLS", decoded(refresh=0), swap, "informed"),
        Rung("scr", "+SCR", decoded(), swap),
    ]


def table6(world: PublishedTasks) -> Chapter:
    """Runs the cumulative ablation, and says why each row costs what it costs."""
    cells = world.figures["fig11_s"]["SM8750"]["GSM8K"]["128"]
    fitted = {"CPU": cells["cpu"], "+SCR": cells["llada_cpp"]}
    published = dict(world.published["table6_s"]["rows"]) | fitted
    rows, words, parts = [], [], {}
    for rung in ladder(world):
        phone = phone_of("llada_8b", "SM8750", rung.system)
        seconds = mean_of([*map(phone.latency, rung.workloads)])
        rows.append(
            modelled(f"table6/{rung.name}", seconds, "s", reference=published[rung.published],
                      source=f"{PAPER}, Table 6", fitted=rung.published in fitted,
                      kind=rung.kind, trace_source=rung.workloads[0].source)
        )  # fmt: skip
        parts[rung.name] = simulate(rung.workloads[0], phone).parts
        why = TEXTS["table6"]["why"][rung.name]
        words.append(f"`{rung.name}`: {why}; {_largest(parts[rung.name])}.")
    return replace(chapter("table6", rows, words), parts=parts)


def _largest(parts: dict[str, float]) -> str:
    total, largest = sum(parts.values()), sorted(parts.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in largest)


def table7(world: PublishedTasks) -> Chapter:
    """Says which settings fit into the address space."""
    runtimes: dict[str, Runtime] = {"No SOMR": "remap", "Paging only": "paging", "SOMR": "swap"}
    memory, prompt = load_profile("SM8750").memory, world.task("GSM8K").prompt
    rows, words = [], []
    for setting, batch, target, published in world.published["table7"]["rows"]:
        system, canvas = System(runtime=runtimes[setting]), prompt + target
        found = footprint(system, world.graphs.model, memory, canvas=canvas, rows=batch)
        name = f"table7/{setting.lower().replace(' ', '_')}/{batch}"
        rows.append(
            modelled(name, 1 if found.fits else -1, "runs (1) or fails (-1)", fitted=False,
                      kind="informed", source=f"{PAPER}, Table 7",
                      reference=-1 if published == "failed" else 1)
        )  # fmt: skip
        words.append(f"`{name}`: {_outcome(found, published == 'failed')}.")
    limit = memory.address_space_mib
    return chapter("table7", rows, words, ends=ADDRESS_SPACE_MIB, limit=limit)


def _outcome(found: Footprint, failed: bool) -> str:
    """Says whether a setting runs, and whether that hangs on the limit's place."""
    runs = ("fails", "runs")
    low, high = (runs[found._replace(limit=limit).fits] for limit in ADDRESS_SPACE_MIB)
    met = "as published" if found.fits != failed else "not as published"
    text = f"{runs[found.fits]}, {met}: {found.reason}"
    if low == high:
        return f"{text}; {low} at both ends of the limit's range"
    return f"{text}; it {low} at 3,840 and {high} at 4,096, so the model does not tell"


def fig13a(world: PublishedTasks) -> Chapter:
    """Predicts latency by the number of masks left at which the window grows."""
    figure = world.published["fig13a_trigger_s"]
    published = dict(zip(figure["masks_left"], figure["seconds"], strict=True))

    def seconds(**settings: Any) -> list[float]:
        runs = world.workloads("GSM8K", 128, Techniques(**settings))
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
    decoded = world.workloads("GSM8K", 128, Techniques())[:METERED]
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
