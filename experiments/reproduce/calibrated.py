"""Figures that the device model is fitted to, including their points that the fit did not use."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from experiments.harness.results import ResultRow
from experiments.reproduce.chapter import PAPER, TASKS, Chapter, chapter, modelled
from llada_jax.phones.cost import price_on_cpu, price_on_npu
from llada_jax.phones.dynamics import (
    SOURCE,
    STABLE,
    VISIBLE,
    Techniques,
    statistics,
    unstable_per_block,
)
from llada_jax.phones.memory import WeightTransfers
from llada_jax.phones.profile import load_profile
from llada_jax.phones.published_tasks import PublishedTasks, ffn_down, table2_seconds
from llada_jax.phones.simulate import ForwardTimer
from llada_jax.phones.system import System


def table2(world: PublishedTasks) -> Chapter:
    """Compares one denoising step, row by row, and FFN down alone (Figure 3)."""
    phone = load_profile("SM8750")
    table, timer = world.figures["table2_step_ms"], partial(ForwardTimer, world.graphs, phone)
    # Assumes a step without mapping events, although no session can map all weights.
    timers = {"cpu": timer(System(body="cpu")),
              "npu": timer(System(), transfers=WeightTransfers())}  # fmt: skip
    predicted = {name: table2_seconds(world.figures, timer) for name, timer in timers.items()}
    rows = [
        modelled(f"table2/{name}/{n}", predicted[name][place] * 1e3, "ms",
        reference=table[name][place],
                 fitted=True, source=f"{PAPER}, Table 2")
        for place, n in enumerate(table["rows"]) for name in predicted
    ]  # fmt: skip
    npu, cpu = phone.npu["llada_cpp"], phone.cpu["plain"]
    price = {"npu": partial(price_on_npu, kernels=npu), "cpu": partial(price_on_cpu, kernels=cpu)}

    def down(name: str, rows: int) -> float:
        return 1e3 * price[name](ffn_down(world.graphs.model, rows), memory=phone.memory).seconds

    for fitted, figures in ((True, world.figures), (False, world.published)):
        single, groups = figures["fig3a_ffn_down_ms"], figures["fig3b_ffn_down_32_rows_ms"]
        # A group of one row ran as a tile on the NPU, not in the single-row kernel.
        for name, least in (("npu", 2), ("cpu", 1)):
            predicted = {count: down(name, count) for count in single["rows"]}
            rows += _points(f"fig3a/{name}/", predicted, single[name], "ms", fitted)
            predicted = {n: 32 / n * down(name, max(least, n)) for n in groups["group"]}
            rows += _points(f"fig3b/{name}/", predicted, groups[name], "ms", fitted)
    return chapter("table2", rows, npu=npu, cpu=cpu, layer_ms=npu.layer_overhead_us / 1e3)


def dynamics(world: PublishedTasks) -> Chapter:
    """Compares the model of decoding with the statistics that it is fitted to."""
    predicted = statistics(world.dynamics)
    rows = []
    for fitted, figures in ((True, world.figures), (False, world.published)):
        first, tail = figures["fig8_first_commit_step"], figures["fig5a_tail_steps_pct"]
        commits_at = {k: float(predicted.first_commit[k - 1]) for k in first["position"]}
        rows += _points("fig8/position", commits_at, first["values"], "forwards", fitted)
        shares = {k: float(100 * predicted.tail_share[k - 1]) for k in tail["masks_left"]}
        rows += _points("fig5a/", shares, tail["pct"], "%", fitted)
    words = []
    for name in TASKS:
        prompt, own = world.task(name)
        words.append(
            f"`{name}`: prompt of {prompt} tokens, {statistics(own).forwards:.1f} forwards for a "
            f"block alone (reach {own.reach:.2f}), "
            f"{'no end' if own.answer is None else f'an end after {own.answer}'} in 128 tokens."
        )
    return chapter("dynamics", rows, words, forwards=predicted.forwards)


def commits(world: PublishedTasks) -> Chapter:
    """Compares the tokens that a block commits, by threshold: Figures 5b and 13b."""
    process, rows = world.dynamics, []
    usual = statistics(process).forwards
    for fitted, figures in ((True, world.figures), (False, world.published)):
        figure = figures["fig5b"]
        thresholds = figure["commit_threshold"]
        scale = world.figures["fig5b"]["tokens_per_step"]
        middle = (scale[0] + scale[1]) / 2  # at 0.7, between its neighbours
        tokens = {t: middle * usual / statistics(process.at(t)).forwards for t in thresholds}
        known = figure["tokens_per_step"]
        rows += _points("fig5b/tokens_per_step/", tokens, known, "tokens", fitted)
        share = {t: 100 * process.unstable(t, STABLE) for t in thresholds}
        rows += _points("fig5b/below_0.9/", share, figure["pct_conf_below_0.9"], "%", fitted)
    figure = world.published["fig13b_below_stable"]
    for visible, counts in zip(figure["visible"], figure["count"], strict=True):
        predicted = {
            stable: unstable_per_block(process, Techniques(visible=visible, stable=stable))
            for stable, count in zip(figure["stable"], counts, strict=True)
            if count is not None
        }
        known = [count for count in counts if count is not None]
        rows += _points(f"fig13b/{visible}/", predicted, known, "tokens of a block", False)
    return chapter("commits", rows, usual=VISIBLE)


def _points(
    prefix: str, predicted: Mapping[Any, float], known: Sequence[float], unit: str, fitted: bool
) -> Iterator[ResultRow]:
    figure = prefix.partition("/")[0].removeprefix("fig")
    for (place, value), reference in zip(predicted.items(), known, strict=True):
        yield modelled(
            f"{prefix}{place}", value, unit, reference=reference, fitted=fitted,
            source=f"{PAPER}, Figure {figure}", trace_source=None if unit == "ms" else SOURCE,
        )  # fmt: skip
