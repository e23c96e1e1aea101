"""Figure 13: when a window looks ahead (a), and what staging takes by resident budget (c)."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from experiments.harness.estimates import difference, mean_of, ratio
from experiments.reproduce.chapter import PAPER, Chapter, chapter, modelled
from llada_jax.phone.dynamics import SOURCE, Decoding
from llada_jax.phone.profile import load_profile
from llada_jax.phone.published_tasks import PublishedTasks
from llada_jax.phone.system import System
from llada_jax.phone.transfers import transfers_by_rule
from llada_jax.phone.workload import Forward


def fig13a(world: PublishedTasks) -> Chapter:
    """Predicts latency by the number of masks left at which the window grows."""
    figure = world.published["fig13a_trigger_s"]
    decoded = {t: world.workloads("GSM8K", 128, Decoding(trigger=t)) for t in figure["masks_left"]}
    found = {t: world.seconds("SM8750", System(), runs) for t, runs in decoded.items()}
    best, alike = best_of_curve(found)
    source = f"{PAPER}, Figure 13a (its task is not named)"
    published = dict(zip(figure["masks_left"], figure["seconds"], strict=True))
    optimum = min(published, key=lambda trigger: published[trigger])
    rows = [
        modelled("fig13a/optimum", best, "masks left", reference=optimum, source=source,
                  fitted=False, trace_source=SOURCE, n=world.runs)
    ]  # fmt: skip
    rows += [
        modelled(f"fig13a/relative/{trigger}", ratio(seconds, found[optimum]),
                  f"of the time at {optimum}", reference=published[trigger] / published[optimum],
                  source=source, fitted=False, trace_source=SOURCE)
        for trigger, seconds in found.items()
        if trigger != optimum
    ]  # fmt: skip
    ladder = dict(world.published["table6_s"]["rows"])
    fixed = world.seconds(
        "SM8750", System(), world.workloads("GSM8K", 128, Decoding(trigger=0, slides=False))
    )
    return chapter(
        "fig13a",
        rows,
        fixed=ratio(fixed, found[optimum]),
        sliding=ratio(found[0], found[optimum]),
        met=_met(best, alike, optimum),
        told=told_apart(found),
        optimum=optimum,
        span=_span(mean_of(seconds).value for seconds in found.values()),
        published_span=_span(published.values()),
        published_zero=published[0] / published[optimum],
        table_six=ladder["+SOMR"] / ladder["+MBSD"],
        more=difference(found[optimum], found[0]),
        **_traded(world, optimum),
    )


Curve = Mapping[int, list[float]]
"""Latencies of the same runs, by the trigger."""


def best_of_curve(curve: Curve) -> tuple[int, list[int]]:
    """Finds the quickest trigger on average, and those that paired runs do not tell from it."""
    best = min(curve, key=lambda trigger: mean_of(curve[trigger]).value)
    others = {t: difference(seconds, curve[best]) for t, seconds in curve.items() if t != best}
    return best, [trigger for trigger, more in others.items() if not more.is_told_from_zero]


def told_apart(curve: Curve) -> str:
    """Says the best trigger, and which others are as good as far as the runs can tell."""
    best, alike = best_of_curve(curve)
    runs = len(curve[best])
    which = f"{', '.join(map(str, alike))} {'is' if len(alike) == 1 else 'are'}" if alike else ""
    apart = f"{which} not told apart from it" if alike else "all others are slower"
    return f"The best trigger is {best}; {apart} (paired, {runs} runs, 95 %)."


def _met(best: int, alike: list[int], published: int) -> str:
    if best == published:
        return "Met" if not alike else "Met, though not told apart from others"
    return "Not met" + (", but not told apart either" if published in alike else "")


def _span(values: Iterable[float]) -> float:
    """Returns how much larger the largest is than the smallest."""
    known = list(values)
    return max(known) / min(known) - 1


def _traded(world: PublishedTasks, trigger: int) -> dict[str, Any]:
    """Returns what looking ahead costs in second tiles and saves in forwards, and their seconds."""
    without, with_it = (
        world.workloads("GSM8K", 128, Decoding(trigger=each)) for each in (0, trigger)
    )
    saved = difference(*([len(w.forwards) for w in each] for each in (without, with_it)))
    grown = mean_of([sum(f.rows == 64 and f.cache > 0 for f in w.forwards) for w in with_it])
    phone = world.phone("SM8750", System())
    small, large = (phone.step(Forward(n, 128, n // 2)).seconds for n in (32, 64))
    return {"saved": saved, "grown": grown, "small": small, "tile": large - small}


def fig13c(world: PublishedTasks) -> Chapter:
    """Predicts synchronous staging by resident budget."""
    ends, inside = world.figures["fig13c_ends_ms"], world.published["fig13c_ms"]
    points = [(b, ms, True) for b, ms in zip(ends["resident_mib"], ends["ms"], strict=True)]
    points += [(b, ms, False) for b, ms in zip(inside["resident_mib"], inside["ms"], strict=True)]
    staged = partial(transfers_by_rule, model=world.graphs.model, profile=load_profile("SM8750"))
    rows = [
        modelled(
            f"fig13c/{budget}",
            1e3 * staged(System(resident_mib=budget)).seconds,
            "ms", reference=ms, source=f"{PAPER}, Figure 13c", fitted=fitted,
        )
        for budget, ms, fitted in sorted(points, reverse=True)
    ]  # fmt: skip
    return chapter("fig13c", rows)
