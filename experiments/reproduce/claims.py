"""The figures that `experiments.reproduce` prints: one function for each table or picture.

A chapter is rows with references and errors, the reasons in words, and what a picture needs. All
values are modelled; `fitted` says of each row whether its reference went into the calibration.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from experiments.harness.means import Estimate, difference, mean_of, ratio
from experiments.harness.results import ResultRow
from llada_jax.lowered import LoweredWeight
from llada_jax.phone.cost import price_on_npu
from llada_jax.phone.dynamics import SOURCE, Decoding, statistics
from llada_jax.phone.fit import product_step, residuals_of, vendor_pass
from llada_jax.phone.graphs import graphs_of
from llada_jax.phone.memory import Footprint, Runtime, footprint, staging_for
from llada_jax.phone.profile import CpuClass, load_profile
from llada_jax.phone.published_tasks import PublishedTasks
from llada_jax.phone.simulate import ForwardTimer, System, simulate
from llada_jax.phone.timeline import Task, run
from llada_jax.phone.workload import Forward, Workload, autoregressive, blockwise, vanilla

PAPER = "arXiv 2606.13740"
TASKS = ("GSM8K", "BoolQ", "ARC-C", "HellaSwag")
LENGTHS = (32, 64, 128)
ADDRESS_SPACE_MIB = (3840, 4096)
"""What is known of the limit on SM8750, whose middle the profile has: so much was mapped at one
time (Seunghui98/nntrainer 52_flash_experts_on_htp_task.md), and more than 32 bits cannot be."""
FITTED_LENGTH = 128
"""Both of its cells of each task, on the CPU and with llada.cpp, went into the calibration."""
SOCS = ("SM8750", "SM8850", "SM8650")
ONE_A_STEP = "one token a forward"

CHOICES = (
    "Table 2's step holds no mapping event. Otherwise `table6/npu_prefix_kv` would be a quarter "
    "too fast: chosen with Table 6 in view.",
    "How drafts become confident where one token is committed at a time (their chance shrinks "
    "with what a forward brings of news). An earlier version of the process gave 69 s for "
    "`table6/mbsd`: chosen with Table 6 in view.",
    "A visible token of the current block stays in the window until it is stable, instead of "
    "becoming the CPU's to revise at once: chosen with Table 6 and Figure 11 in view.",
    "The NPU baseline of Llama-3-8B maps its buffers again in every step, as LLaDA's does: chosen "
    "with Figure 11's Llama cells in view.",
    "Paging gives every temporary an offset of its own: the paper does not say why paging fails, "
    "and this was chosen with Table 7 in view.",
    "What a session can map at one time is only known to lie between 3,840 and 4,096 MiB; the "
    "middle was chosen with Table 7 in view.",
    "Temporaries are 16 bits wide, as the paper's kernels keep them. They were 32 bits wide in an "
    "earlier version, with which the first row of Table 7 failed as published.",
)
"""Of structure, not numbers, that were made while figures were known which the report then calls
predictions."""


@dataclass(frozen=True)
class Chapter:
    """One table or figure of the report."""

    name: str
    title: str
    rows: list[ResultRow]
    words: list[str] = field(default_factory=list)
    parts: dict[str, dict[str, float]] = field(default_factory=dict)
    """Seconds by cause of some runs, for stacked bars."""


class Rung(NamedTuple):
    """One row of Table 6: which forwards, on which software."""

    name: str
    published: str
    workloads: tuple[Workload, ...]
    system: System
    source: str
    fitted: bool
    why: str


def _modelled(name: str, value: float | Estimate, unit: str, **more: Any) -> ResultRow:
    """A mean has the interval and the number of its runs."""
    if isinstance(value, Estimate):
        more |= {"n": value.n, "interval": value.interval}
        value = value.value
    return ResultRow(name=name, value=value, unit=unit, kind="modelled", **more)


def table2(world: PublishedTasks) -> Chapter:
    """One denoising step."""
    rows = [
        _modelled(each.name, each.modelled, "ms", reference=each.published, fitted=True,
                  source=f"{PAPER}, Table 2")
        for each in residuals_of(world.figures, world.graphs, load_profile("SM8750"))
    ]  # fmt: skip
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


def ladder(world: PublishedTasks, kernels: str = "llada_cpp", cpu: str = "plain") -> list[Rung]:
    """The nine rows of Table 6."""
    prompt = world.task("GSM8K").prompt
    whole, cached = (vanilla(prompt, 128),), (blockwise(prompt, 128),)

    def npu(runtime: Runtime) -> System:
        return System(kernels=kernels, cpu=cpu, runtime=runtime)  # pyright: ignore

    def decoded(**settings: Any) -> tuple[Workload, ...]:
        return world.workloads("GSM8K", 128, Decoding(**settings))

    on_cpu = System(body="cpu", cpu=cpu)  # pyright: ignore[reportArgumentType]
    swap = npu("swap")
    return [
        Rung("cpu", "CPU", whole, on_cpu, ONE_A_STEP, True,
             "runs prompt and canvas, all rows, for each token"),
        Rung("cpu_prefix_kv", "CPU+prefixKV", cached, on_cpu, ONE_A_STEP, False,
             "runs the block's 32 rows"),
        Rung("npu", "NPU", whole, npu("remap"), ONE_A_STEP, False,
             "as many tiles as the canvas has, each unpacking all weights"),
        Rung("npu_prefix_kv", "NPU+prefixKV", cached, npu("remap"), ONE_A_STEP, False,
             "one tile a step, and four buffers mapped again"),
        Rung("somr", "+SOMR", cached, swap, ONE_A_STEP, False,
             "copies of what is not resident hide behind the NPU"),
        Rung("mbsd", "+MBSD", decoded(commit="one", skip_logits=False, refresh=0), swap, SOURCE,
             False, "drafts that pass at once when their block becomes current"),
        Rung("sts", "+STS", decoded(skip_logits=False, refresh=0), swap, SOURCE, False,
             "every confident token is committed: far fewer forwards"),
        Rung("sls", "+SLS", decoded(refresh=0), swap, SOURCE, False,
             "the head skips rows whose decision is not open"),
        Rung("scr", "+SCR", decoded(), swap, SOURCE, True,
             "the CPU revises two rows beside each forward"),
    ]  # fmt: skip


def table6(world: PublishedTasks) -> Chapter:
    """The cumulative ablation, and why each row costs what it costs."""
    cells = world.figures["fig11_cells_SM8750_128"]["GSM8K"]
    fitted = {"CPU": cells["cpu"], "+SCR": cells["llada_cpp"]}
    published = dict(world.published["table6_s"]["rows"]) | fitted
    rows, words, parts = [], [], {}
    for rung in ladder(world):
        phone = world.phone("SM8750", rung.system)
        seconds = mean_of(world.seconds(phone, rung.workloads))
        rows.append(
            _modelled(f"table6/{rung.name}", seconds, "s", reference=published[rung.published],
                      source=f"{PAPER}, Table 6", fitted=rung.fitted, trace_source=rung.source)
        )  # fmt: skip
        found = simulate(rung.workloads[0], world.graphs, load_profile("SM8750"), rung.system)
        parts[rung.name] = found.parts
        words.append(f"`{rung.name}`: {rung.why}; {_largest(found.parts)}.")
    words.append(f"{_order(rows)} {_revision(parts['scr'])}")
    words.append(
        "`cpu` and `scr` share their figures with the fit (prompt length, forwards per block). "
        "The rows with a cache come out low by about as much: Table 2's step is one step alone, "
        "and runs of minutes may throttle."
    )
    return Chapter("table6", "Table 6: GSM8K, 128 tokens, SM8750", rows, words, parts)


def _largest(parts: dict[str, float], count: int = 3) -> str:
    total = sum(parts.values())
    largest = sorted(parts.items(), key=lambda item: -item[1])[:count]
    return ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in largest)


def _order(rows: list[ResultRow]) -> str:
    """Which steps of the ladder go the same way as in the paper, and which do not."""
    steps = [
        (after.name.split("/")[1], after.value - before.value,
         (after.reference or 0.0) - (before.reference or 0.0))
        for before, after in pairwise(rows)
    ]  # fmt: skip
    other = [step for step in steps if _sign(step[1]) != _sign(step[2])]
    text = (
        f"Of {len(steps)} steps from row to row, {len(steps) - len(other)} go the way they go in "
        "the paper."
    )
    differing = [
        f"`{name}`: {here:+.2f} s here, {there:+.2f} s there" for name, here, there in other
    ]
    return f"{text} Not so {'; '.join(differing)}." if differing else text


def _sign(change: float) -> int:
    """0 for what is no more than rounding."""
    return 0 if abs(change) < 1e-9 else int(math.copysign(1, change))


def _revision(parts: Mapping[str, float]) -> str:
    """How much of the CPU's revision a run waits for."""
    waited = parts.get("revision (not hidden)", 0.0)
    if not waited:
        return "In the model the CPU's revision is fully hidden behind the NPU's work."
    return f"In the model {waited:.2f} s of the CPU's revision are not hidden."


def fig11(world: PublishedTasks) -> Chapter:
    """Latency of every cell, on every phone; only SM8750 is fitted to, in two columns."""
    rows = [row for soc in SOCS for row in _cells(world, soc)]
    by_column = {
        "llada.cpp, 32 and 64 tokens": (("llada_cpp",), (32, 64), 0.20),
        "CPU with cache and NPU": (("cpu_cache", "npu"), LENGTHS, 0.15),
    }
    words = []
    for title, (columns, lengths, bound) in by_column.items():
        names = {f"fig11/SM8750/{t}/{n}/{c}" for t in TASKS for n in lengths for c in columns}
        errors = [abs(row.error or 0) for row in rows if row.name in names]
        words.append(
            f"SM8750, {title}: {sum(error <= bound for error in errors)} of {len(errors)} within "
            f"{bound:.0%}."
        )
    words += [
        "32 tokens are one block, without drafts from an earlier one, so the model has them "
        "slower a token than 128; GSM8K's published cells are proportional to the tokens instead, "
        "and HellaSwag's and ARC-C's fall behind by more than a first block costs. Five cases a "
        "dataset are too few to tell dynamics from the choice of cases.",
        "SM8850 and SM8650 are predicted from SM8750's tasks; nothing is fitted there. SM8650's "
        "published cells are irregular (NPU, 32 tokens: 271 s for GSM8K, 86 s for BoolQ), and "
        "SM8850 ran FlashAttention on the CPU.",
        "Llama on the NPU takes the kernel for single rows, bound by memory; on the CPU the "
        "published runs are slower than Figure 3b's rate for single rows would have them.",
    ]
    gains = _gains(rows)
    words.append(_largest_gain(gains))
    return Chapter("fig11", "Figure 11: latency on three phones", [*rows, *_speedups(gains)], words)


def _cells(world: PublishedTasks, soc: str) -> Iterator[ResultRow]:
    published = world.published["fig11_s"]["values"][soc]
    fitted = world.figures["fig11_cells_SM8750_128"]
    on_cpu, swap = System(body="cpu"), System(runtime="swap")
    remap = System(runtime="remap")
    for name in TASKS:
        prompt = world.task(name).prompt
        for tokens in LENGTHS:
            whole, cached = (vanilla(prompt, tokens),), (blockwise(prompt, tokens),)
            decoded = world.workloads(name, tokens, Decoding())
            columns = {
                "cpu": (whole, on_cpu, ONE_A_STEP),
                "cpu_cache": (cached, on_cpu, ONE_A_STEP),
                "npu": (whole, remap, ONE_A_STEP),
                "llada_cpp": (decoded, swap, SOURCE),
            }
            for column, (workloads, system, source) in columns.items():
                known = published[name][str(tokens)]
                is_fitted = column not in known
                yield _modelled(
                    f"fig11/{soc}/{name}/{tokens}/{column}",
                    mean_of(world.seconds(world.phone(soc, system), workloads)),
                    "s",
                    reference=fitted[name][column] if is_fitted else known[column],
                    source=f"{PAPER}, Figure 11",
                    fitted=is_fitted,
                    trace_source=source,
                )
        yield from _llama(world, soc, name, published[name]["llama_128"])


def _llama(
    world: PublishedTasks, soc: str, name: str, published: dict[str, float]
) -> Iterator[ResultRow]:
    """The autoregressive reference: 128 tokens of Llama-3-8B."""
    workload = autoregressive(world.task(name).prompt, 128)
    for column, system in (("cpu", System(body="cpu")), ("npu", System(runtime="remap"))):
        yield _modelled(
            f"fig11/{soc}/{name}/128/llama_{column}",
            _llama_phone(soc, system).latency(workload),
            "s",
            reference=published[column],
            source=f"{PAPER}, Figure 11",
            fitted=False,
            trace_source=workload.source,
        )


@cache
def _llama_phone(soc: str, system: System) -> ForwardTimer:
    return ForwardTimer(graphs_of("llama3_8b"), load_profile(soc), system, canvas=256)


class _Gain(NamedTuple):
    """llada.cpp over the CPU with a cache, in one cell."""

    task: str
    tokens: int
    cached: ResultRow
    whole: ResultRow

    @property
    def modelled(self) -> float:
        return self.cached.value / self.whole.value

    @property
    def published(self) -> float:
        return (self.cached.reference or 0.0) / (self.whole.reference or 1.0)

    @property
    def fitted(self) -> bool:
        return bool(self.whole.fitted)


def _gains(rows: list[ResultRow]) -> list[_Gain]:
    named = {row.name: row for row in rows}
    return [
        _Gain(task, n, named[f"{cell}/cpu_cache"], named[f"{cell}/llada_cpp"])
        for task in TASKS
        for n in LENGTHS
        if (cell := f"fig11/SM8750/{task}/{n}")
    ]


def _speedups(gains: list[_Gain]) -> Iterator[ResultRow]:
    """On SM8750: the abstract's range."""
    for name, choose, reference in (("min", min, 17.0), ("max", max, 42.0)):
        gain = choose(gains, key=lambda each: each.modelled)
        yield _modelled(
            f"fig11/SM8750/speedup_{name}", gain.modelled, "times", reference=reference,
            fitted=gain.fitted, source=f"{PAPER}, abstract", trace_source=SOURCE,
        )  # fmt: skip


def _largest_gain(gains: list[_Gain]) -> str:
    """Which cells the two largest speed-ups are of, and what makes them differ."""
    theirs = max(gains, key=lambda each: each.published)
    ours = max(gains, key=lambda each: each.modelled)
    low = sum((gain.cached.error or 0.0) < 0 for gain in gains)
    return (
        f"`speedup_max` is {ours.modelled:.1f}, of {ours.task}/{ours.tokens}. The published cells "
        f"have their largest, {theirs.published:.1f}, at {theirs.task}/{theirs.tokens}, where the "
        f"model has {theirs.modelled:.1f}: the CPU with a cache is {theirs.cached.error:+.0%} off "
        f"there, llada.cpp {theirs.whole.error:+.0%}. Of the {len(gains)} cells of the CPU with a "
        f"cache {low} are low."
    )


def table7(world: PublishedTasks) -> Chapter:
    """Which settings fit into the address space."""
    runtimes: dict[str, Runtime] = {"No SOMR": "remap", "Paging only": "paging", "SOMR": "swap"}
    memory, prompt = load_profile("SM8750").memory, world.task("GSM8K").prompt
    rows, words = [], []
    for setting, batch, target, published in world.published["table7"]["rows"]:
        found = footprint(
            runtimes[setting], world.graphs.model, memory, canvas=prompt + target, rows=batch
        )
        name = f"table7/{setting.lower().replace(' ', '_')}/{batch}"
        rows.append(
            _modelled(name, 1 if found.fits else -1, "runs (1) or fails (-1)", fitted=False,
                      reference=-1 if published == "failed" else 1, source=f"{PAPER}, Table 7")
        )  # fmt: skip
        words.append(f"`{name}`: {_outcome(found, published == 'failed')}.")
    low, high = ADDRESS_SPACE_MIB
    words.append(
        f"The limit is only known to lie between {low:,} MiB, which were mapped at one time, and "
        f"{high:,}, which 32 bits cannot hold; the profile has {memory.address_space_mib:,.0f}. A "
        "row that changes within that range is not predicted, whatever the table says. Gaps "
        "between buffers and what the NPU's own software maps are not published and not counted: "
        "tens of MiB of them would make the first row fail, as it did on the paper's phone."
    )
    words.append(
        "Paging, which knows no lifetimes, gives each temporary an offset of its own (an "
        "inference: the paper does not say why paging fails)."
    )
    return Chapter("table7", "Table 7: what the address space holds", rows, words)


def _outcome(found: Footprint, failed: bool) -> str:
    """Whether a setting runs, by how much, and whether that hangs on the limit's place."""
    low, high = (found._replace(limit=limit).fits for limit in ADDRESS_SPACE_MIB)
    met = "as published" if found.fits != failed else "not as published"
    margin = found.limit - found.total
    text = (
        f"{_runs(found.fits)}, {met}: {found.reason}, {abs(margin):,.0f} MiB "
        f"({abs(margin) / found.limit:.1%}) {'under' if margin >= 0 else 'over'} the limit"
    )
    if low == high:
        return f"{text}; {_runs(low)} at both ends of the limit's range"
    ends = " and ".join(
        f"{_runs(fits)} at {limit:,}" for fits, limit in zip((low, high), ADDRESS_SPACE_MIB,
                                                             strict=True)
    )  # fmt: skip
    return f"{text}; it {ends}, the ends of the limit's range, so the model does not tell"


def _runs(fits: bool) -> str:
    return "runs" if fits else "fails"


def fig13a(world: PublishedTasks) -> Chapter:
    """Latency by the number of masks left at which the window grows."""
    figure = world.published["fig13a_trigger_s"]
    phone = world.phone("SM8750", System())
    found = {
        trigger: world.seconds(phone, world.workloads("GSM8K", 128, Decoding(trigger=trigger)))
        for trigger in figure["masks_left"]
    }
    best, alike = _best(found)
    source = f"{PAPER}, Figure 13a (its task is not named)"
    published = dict(zip(figure["masks_left"], figure["seconds"], strict=True))
    optimum = min(published, key=lambda trigger: published[trigger])
    rows = [
        _modelled("fig13a/optimum", best, "masks left", reference=optimum, source=source,
                  fitted=False, trace_source=SOURCE, n=world.runs)
    ]  # fmt: skip
    rows += [
        _modelled(f"fig13a/relative/{trigger}", ratio(seconds, found[optimum]),
                  f"of the time at {optimum}", reference=published[trigger] / published[optimum],
                  source=source, fitted=False, trace_source=SOURCE)
        for trigger, seconds in found.items()
    ]  # fmt: skip
    words = [
        f"{_met(best, alike, optimum)}. The modelled curve spans "
        f"{_span(mean_of(seconds).value for seconds in found.values()):.0%}, the published one "
        f"{_span(published.values()):.0%}. {_told_apart(found)}",
        f"{_traded(world, optimum)}. In the published curve looking ahead at {optimum} saves "
        f"{1 - published[optimum] / published[0]:.0%}, in the modelled one it takes "
        f"{difference(found[optimum], found[0])} s more than not to look ahead: either drafts "
        "settle blocks better than a process fitted to single blocks knows, or the sliding window "
        "drafts less. The published task is not named, and its points scatter by more than their "
        "reading error.",
    ]
    return Chapter("fig13a", "Figure 13a: when to look ahead", rows, words)


Curve = Mapping[int, list[float]]
"""Latencies of the same runs, by the trigger."""


def _best(curve: Curve) -> tuple[int, list[int]]:
    """The quickest trigger on average, and the others that paired runs do not tell from it."""
    best = min(curve, key=lambda trigger: mean_of(curve[trigger]).value)
    others = {t: difference(seconds, curve[best]) for t, seconds in curve.items() if t != best}
    return best, [trigger for trigger, more in others.items() if not more.is_told_from_zero]


def _met(best: int, alike: list[int], published: int) -> str:
    if best == published:
        return "Met" if not alike else "Met, though not told apart from others"
    return "Not met" + (", but not told apart either" if published in alike else "")


def _told_apart(curve: Curve) -> str:
    """The best trigger, and which others are as good as far as the runs can tell."""
    best, alike = _best(curve)
    runs = len(curve[best])
    which = f"{', '.join(map(str, alike))} {'is' if len(alike) == 1 else 'are'}" if alike else ""
    apart = f"{which} not told apart from it" if alike else "all others are slower"
    return f"The best trigger is {best}; {apart} (paired, {runs} runs, 95 %)."


def _span(values: Iterable[float]) -> float:
    """How much larger the largest is than the smallest."""
    known = list(values)
    return max(known) / min(known) - 1


def _traded(world: PublishedTasks, trigger: int) -> str:
    """What looking ahead costs in second tiles and saves in forwards."""
    without, with_it = (
        world.workloads("GSM8K", 128, Decoding(trigger=each)) for each in (0, trigger)
    )
    saved = difference(*([len(w.forwards) for w in each] for each in (without, with_it)))
    grown = mean_of([sum(f.rows == 64 and f.cache > 0 for f in w.forwards) for w in with_it])
    phone = world.phone("SM8750", System())
    small, large = (phone.step(Forward(n, 128, n // 2)).seconds for n in (32, 64))
    return (
        f"Looking ahead at {trigger} masks saves {saved} forwards of {small:.2f} s for {grown} "
        f"second tiles of {large - small:.2f} s"
    )


def fig13c(world: PublishedTasks) -> Chapter:
    """Synchronous staging by resident budget."""
    ends, inside = world.figures["fig13c_ends_ms"], world.published["fig13c_ms"]
    points = [(b, ms, True) for b, ms in zip(ends["resident_mib"], ends["ms"], strict=True)]
    points += [(b, ms, False) for b, ms in zip(inside["resident_mib"], inside["ms"], strict=True)]
    profile = load_profile("SM8750")
    rows = [
        _modelled(
            f"fig13c/{budget}",
            1e3 * staging_for("swap", world.graphs.model, profile.memory, profile.mapping,
                              resident_budget_mib=budget).seconds,
            "ms", reference=ms, source=f"{PAPER}, Figure 13c", fitted=fitted,
        )
        for budget, ms, fitted in sorted(points, reverse=True)
    ]  # fmt: skip
    words = [
        "LLaDA-8B's layers are 3,744 MiB in Q4_0: three buffers of 1,024 MiB and one of 672. What "
        "stays resident is the best set of whole buffers under the budget, which gives the "
        "plateaus; only the two ends were fitted (bandwidth and a constant)."
    ]
    return Chapter("fig13c", "Figure 13c: staging by resident budget", rows, words)


def fig14(world: PublishedTasks) -> Chapter:
    """Energy of LLaDA on the CPU over llada.cpp."""
    figure = world.published["fig14"]
    joules, watts = ((part["LLaDA CPU"], part["LLaDA llada.cpp"])
                     for part in (figure["energy_J"], figure["power_W"]))  # fmt: skip
    published = joules[0] / joules[1]
    implied = published * watts[1] / watts[0]
    profile, prompt = load_profile("SM8750"), world.task("GSM8K").prompt
    cpu = simulate(blockwise(prompt, 128), world.graphs, profile, System(body="cpu")).energy
    runs = [
        simulate(each, world.graphs, profile, System()).energy
        for each in world.workloads("GSM8K", 128, Decoding())
    ]
    above_idle, seconds = [run.above_idle for run in runs], [run.seconds for run in runs]
    cpu_alone = cpu.above_idle / cpu.seconds
    more: Any = {"fitted": False, "trace_source": SOURCE, "source": f"{PAPER}, Figure 14"}
    rows = [
        _modelled("fig14/energy_ratio", ratio([cpu.above_idle] * len(runs), above_idle), "times",
                  reference=published, **more),
        _modelled("fig14/energy_ratio_on_the_papers_time_base",
                  ratio([implied * cpu_alone * each for each in seconds], above_idle), "times",
                  **more),
        _modelled("fig14/power_ratio",
                  ratio([cpu.watts * each for each in seconds], [run.joules for run in runs]),
                  "times", reference=watts[0] / watts[1], **more),
    ]  # fmt: skip
    words = [
        "The paper's joules do not match its watts and seconds: 581 J at 3.8 W is 153 s, while "
        "128 tokens on the CPU take 607 s with a cache and 2,996 s without; 25 J at 2.9 W is "
        "8.6 s, not 16.1 s. Its ratio of 23 therefore implies a ratio of times of "
        f"{implied:.0f}, where its own Figure 11 has 38. The first row is the model's: times of "
        "Figure 11 and the power of a OnePlus 12. The second, no prediction, puts the model's "
        f"powers on the time base that the paper's numbers imply; the paper has {published:.0f}.",
    ]
    return Chapter("fig14", "Figure 14: energy", rows, words)


def genie(world: PublishedTasks) -> Chapter:
    """Llama-3-8B in Genie; the vendor class was fitted on Llama-3.2-3B."""
    rows = []
    for label, shape, figures, fitted in (
        ("3b", "llama32_3b", world.figures["genie_llama_3b"], True),
        ("8b", "llama3_8b", world.published["genie_llama_8b"], False),
    ):
        graphs = graphs_of(shape, "int4")
        for soc in ("SM8750", "SM8850"):
            cell = figures[soc]
            wanted = {128: _mean(cell["rows128_ms"]), 1: 1e3 / _mean(cell["tokens_per_second"])}
            for count, milliseconds in wanted.items():
                seconds = vendor_pass(graphs, load_profile(soc), count)
                rows.append(
                    _modelled(f"genie/{soc}/{label}/rows{count}", seconds * 1e3, "ms",
                              reference=milliseconds, source=figures["source"], fitted=fitted)
                )  # fmt: skip
    words = [
        "A pass streams all weights once and works on the whole static context of 4,096 positions, "
        "so that a step of 128 rows is bound by softmax as much as by memory. The softmax rate "
        "that the 3B asks for on SM8750 agrees with the 0.24 cycles an element of an optrace."
    ]
    return Chapter("genie", "Genie: Llama-3-8B from Llama-3.2-3B", rows, words)


def _mean(value: Any) -> float:
    return sum(value) / len(value) if isinstance(value, list) else float(value)


LEDGER_CLASSES = {
    "w16a16": ("float32", "native_fp16"),
    "w4a16": ("int4_block32", "native_fp16"),
    "w4a8": ("int4", "native_int8"),
}


def ledger3b(world: PublishedTasks) -> Chapter:
    """Passes of native kernels that llada.cpp's figures know nothing of."""
    ledger, profile = world.published["ledger"], load_profile("SM8750")
    # Attention and norms of the 3B's first column are platform constants.
    known = {("llama32_3b", "w16a16"): world.figures["platform_ledger_3b_w16a16"]}
    rows = []
    for shape, prefix in (("llama32_3b", "ledger3b"), ("llama32_1b", "ledger1b"),
                          ("qwen3_1_7b", "ledger_qwen")):  # fmt: skip
        for precision, (quant, kernels) in LEDGER_CLASSES.items():
            fitted = (shape, precision) in known
            cells = known.get((shape, precision), ledger[shape].get(precision))
            if cells is None:
                continue
            graphs = graphs_of(shape, quant)  # pyright: ignore[reportArgumentType]
            for count in (64, 1):
                seconds = _native_pass(graphs, profile, kernels, count)
                rows.append(
                    _modelled(f"{prefix}/{precision}/rows{count}", seconds * 1e3, "ms",
                              reference=cells[f"rows{count}_ms"], source=ledger["source"],
                              fitted=fitted)
                )  # fmt: skip
    words = [
        "The dequantization rates are llada.cpp's, fitted to Table 2 and Figure 3a; memory is "
        "PowerServe's 50 GB/s. Of this ledger the model knows only what attention and norms cost "
        "in W16A16. A pass unpacks weights once for 64 rows, not twice as llada.cpp's kernels do.",
        "W4A8 at 64 rows is high: how these kernels quantize activations is not published. The "
        "two other models are extra; Qwen3's per-layer cost is taken from the 3B, whose layers "
        "are larger.",
    ]
    return Chapter("ledger3b", "Native kernels on SM8750: Llama-3.2-3B and others", rows, words)


def _native_pass(graphs: Any, profile: Any, kernels: str, count: int, context: int = 128) -> float:
    chosen = profile.npu[kernels]
    layer = price_on_npu(graphs.layer(count, context - count), chosen, profile.memory)
    head = price_on_npu(graphs.head(count), chosen, profile.memory)
    call = chosen.step_overhead_us * 1e-6
    return layer.seconds * graphs.n_layers + head.seconds * graphs.head_chunks + call


def platform(world: PublishedTasks) -> Chapter:
    """One fully connected layer, shared bandwidth, and a sweep of mappings."""
    sweep, profile = world.published["fc_sweep"], load_profile("SM8750")
    weight = LoweredWeight((sweep["outputs"], sweep["inputs"]), 4)
    rows = []
    fitted = {64: world.figures["platform_fc_64_rows"]["us"]}
    measured = dict(zip(sweep["rows"], sweep["us"], strict=True)) | fitted
    for count, wanted in sorted(measured.items()):
        step = product_step(count, sweep["inputs"], sweep["outputs"], weight, "fc")
        seconds = price_on_npu(step, profile.npu["hexkl"], profile.memory).seconds
        rows.append(
            _modelled(f"fc/rows{count}", seconds * 1e6, "us", reference=wanted,
                      source=sweep["source"], fitted=count in fitted)
        )  # fmt: skip
    rows += _bandwidths(world)
    remap = world.figures["platform_remap_sweep"]
    moved = remap["buffers"] * remap["buffer_mib"] / 1024
    rows.append(
        _modelled("remap/delayed", moved * profile.mapping.delayed_ms_per_gib, "ms",
                  reference=remap["ms"], source=remap["source"], fitted=True)
    )  # fmt: skip
    words = [
        "The layer's rates are the micro-benchmarks of its own library (64 rows give the rates of "
        "the vector stages and of memory, so that row is fitted). Together, CPU and NPU get what "
        "the memory gives: a measured platform constant, so those rows only check the sharing."
    ]
    return Chapter("platform", "Parts of a phone", rows, words)


def _bandwidths(world: PublishedTasks) -> Iterator[ResultRow]:
    fitted, published = world.figures["platform_bandwidth_gbps"], world.published["bandwidth_gbps"]
    profile = load_profile("SM8650")
    cpu = profile.cpu["tuned"].gemv_gweights * 4.5 / 8
    npu = profile.npu["llada_cpp"].dma_gbps
    tasks = [Task("npu", "npu", 1.0, npu * 1e9), Task("cpu", "cpu", 1.0, cpu * 1e9)]
    both = run(tasks, profile.memory.dram_gbps)
    overlap = min(event.end for event in both.events)
    drawn = sum(
        min(event.end, overlap) / event.end * event.task.dram_bytes for event in both.events
    )
    values = {"npu": npu, "cpu": cpu, "together": drawn / overlap / 1e9}
    for name, value in values.items():
        yield _modelled(
            f"bandwidth/SM8650/{name}", value, "GB/s", reference=(fitted | published)[name],
            source=published["source"], fitted=name in fitted,
        )  # fmt: skip


def whatif(world: PublishedTasks) -> Chapter:
    """What no paper has: other kernels, another CPU, wider mappings, larger windows."""
    rows, parts = [], {}
    seconds: dict[str, list[float]] = {}
    for rung in ladder(world, kernels="vendor", cpu="tuned"):
        phone = world.phone("SM8750", rung.system)
        seconds[rung.name] = world.seconds(phone, rung.workloads)
        name = f"vendor_kernels_tuned_cpu/{rung.name}"
        rows.append(_what(name, seconds[rung.name], rung.source))
        found = simulate(rung.workloads[0], world.graphs, load_profile("SM8750"), rung.system)
        parts[rung.name] = found.parts
    workloads = world.workloads("GSM8K", 128, Decoding())
    vendor = System(kernels="vendor", cpu="tuned")
    for runtime in ("remap", "delayed"):
        name = f"scr_{runtime}"
        seconds[name] = world.seconds(
            world.phone("SM8750", replace(vendor, runtime=runtime)), workloads
        )
        rows.append(_what(f"vendor_kernels_tuned_cpu/{name}", seconds[name], SOURCE))
    for runtime in ("swap", "wide"):
        for kernels in ("llada_cpp", "vendor"):
            system = System(runtime=runtime, kernels=kernels, cpu=_beside(kernels))
            name = f"SM8850/{runtime}/{kernels}"
            seconds[name] = world.seconds(world.phone("SM8850", system), workloads)
            rows.append(_what(name, seconds[name], SOURCE))
    curves = dict(_windows(world))
    rows += [
        _what(f"window/{name}/trigger{trigger}", found, SOURCE)
        for name, curve in curves.items()
        for trigger, found in curve.items()
    ]
    words = [f"Windows, `{name}`: {_told_apart(curve)}" for name, curve in curves.items()]
    words += [_whole_gain(world, seconds), _staged_beside(world, vendor, seconds)]
    words += [
        f"64-bit mappings on SM8850 (`wide`) save {saved} s of what swapping takes behind "
        f"{kernels} kernels."
        for kernels in ("llada_cpp", "vendor")
        if (saved := difference(*(seconds[f"SM8850/{r}/{kernels}"] for r in ("swap", "wide"))))
    ]
    return Chapter("whatif", "What if", rows, words, parts)


def _windows(world: PublishedTasks) -> Iterator[tuple[str, Curve]]:
    """Latency by the trigger, for two classes of kernels and two lengths of windows."""
    for kernels in ("llada_cpp", "vendor"):
        system = System(kernels=kernels, runtime="delayed", cpu=_beside(kernels))
        phone = world.phone("SM8750", system)
        for ahead in (32, 96):
            yield (
                f"{kernels}/{32 + ahead}_rows",
                {
                    trigger: world.seconds(
                        phone, world.workloads("GSM8K", 128, Decoding(trigger=trigger, ahead=ahead))
                    )
                    for trigger in (0, 2, 4, 8, 16, 32)
                },
            )


def _whole_gain(world: PublishedTasks, seconds: Mapping[str, list[float]]) -> str:
    """All of the vendor's against its own baseline, beside the paper's."""
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
    """Whether copies hide behind the vendor's steps, and what the three ways to map cost."""
    alone = world.phone("SM8750", replace(vendor, runtime="wide"))
    step = alone.step(Forward(32, 128, 16)).seconds
    staged = world.phone("SM8750", vendor).staging().seconds
    swap, remap, delayed = (mean_of(seconds[n]) for n in ("scr", "scr_remap", "scr_delayed"))
    return (
        f"A step of 32 rows takes {step:.2f} s with these kernels and its copies {staged:.2f} s, "
        f"which {'do not hide' if staged > step else 'hide'} behind it: the swap runtime costs "
        f"{swap} s, mapping again {remap} s, and mapping from the NPU's side {delayed} s."
    )


def _beside(kernels: str) -> CpuClass:
    """A CPU that keeps up: plain kernels take longer for a revision than a fast NPU for a step."""
    return "tuned" if kernels == "vendor" else "plain"


def _what(name: str, seconds: list[float], source: str) -> ResultRow:
    return _modelled(f"whatif/{name}", mean_of(seconds), "s", fitted=False, trace_source=source)


def dynamics(world: PublishedTasks) -> Chapter:
    """The process behind the forwards, against the statistics that it is fitted to."""
    found, published = statistics(world.dynamics), world.figures
    first = published["fig8_first_commit_step"]["values"]
    tail = published["fig5a_tail_steps_pct"]["pct"]
    rows = [
        _modelled(f"fig8/position{i + 1}", found.first_commit[i], "forwards", reference=first[i],
                  source=f"{PAPER}, Figure 8", fitted=True, trace_source=SOURCE)
        for i in (0, 7, 15, 23, 31)
    ]  # fmt: skip
    rows += [
        _modelled(f"fig5a/{k}", 100 * found.tail_share[k - 1], "%", reference=tail[k - 1],
                  source=f"{PAPER}, Figure 5a", fitted=True, trace_source=SOURCE)
        for k in (1, 4, 8)
    ]  # fmt: skip
    words = [
        f"`{name}`: prompt of {task.prompt} tokens, {statistics(task.dynamics).forwards:.1f} "
        f"forwards for a block alone (reach {task.dynamics.reach:.2f})."
        for name in TASKS
        if (task := world.task(name))
    ]
    words.append(
        f"Figures 5a and 8 alone ask for {found.forwards:.1f} forwards a block: the latency cell "
        "of GSM8K, which knows nothing of them, asks for about the same."
    )
    return Chapter("dynamics", "Decoding dynamics", rows, words)


CHAPTERS: dict[str, Callable[[PublishedTasks], Chapter]] = {
    chapter.__name__: chapter
    for chapter in (
        *(table2, dynamics, table6, fig11, table7, fig13a, fig13c, fig14),
        *(genie, ledger3b, platform, whatif),
    )
}
