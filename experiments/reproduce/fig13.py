"""Figure 13: when a window looks ahead (a), and what staging takes by resident budget (c)."""

from functools import partial
from typing import Any

from experiments.harness.estimates import difference, mean_of, ratio
from experiments.reproduce.chapter import PAPER, Chapter, chapter, modelled
from llada_jax.phone.dynamics import SOURCE, Decoding
from llada_jax.phone.profile import load_profile
from llada_jax.phone.published_tasks import PublishedTasks
from llada_jax.phone.system import System
from llada_jax.phone.transfers import transfers_by_rule


def fig13a(world: PublishedTasks) -> Chapter:
    """Predicts latency by the number of masks left at which the window grows."""
    figure = world.published["fig13a_trigger_s"]
    published = dict(zip(figure["masks_left"], figure["seconds"], strict=True))

    def seconds(**settings: Any) -> list[float]:
        runs = world.workloads("GSM8K", 128, Decoding(**settings))
        return world.seconds("SM8750", System(), runs)

    found = {trigger: seconds(trigger=trigger) for trigger in published}
    best = min(found, key=lambda trigger: mean_of(found[trigger]).value)
    optimum = min(published, key=lambda trigger: published[trigger])
    row = partial(
        modelled, source=f"{PAPER}, Figure 13a (its task is not named)", fitted=False,
        trace_source=SOURCE,
    )  # fmt: skip
    rows = [row("fig13a/optimum", best, "masks left", reference=optimum, n=world.runs)]
    for trigger in [each for each in found if each != optimum]:
        rows.append(
            row(f"fig13a/relative/{trigger}", ratio(found[trigger], found[optimum]),
                f"of the time at {optimum}", reference=published[trigger] / published[optimum])
        )  # fmt: skip
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
        modelled(
            f"fig13c/{budget}",
            1e3 * staged(System(resident_mib=budget)).seconds,
            "ms", reference=ms, source=f"{PAPER}, Figure 13c", fitted=fitted,
        )
        for budget, ms, fitted in sorted(points, reverse=True)
    ]  # fmt: skip
    return chapter("fig13c", rows)
