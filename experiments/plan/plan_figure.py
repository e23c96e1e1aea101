"""Plans as a picture: one steady step on its two lanes, and what lies where."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.harness.pictures import figure, save
from llada_jax.swap.address_budget import MIB
from llada_jax.swap.address_plan import Plan
from llada_jax.swap.graph import Graph
from llada_jax.swap.stall_times import unfold

WARM_UP = 8
COMPUTES, STAGES, STALLS = "#4c78a8", "#f58518", "#e45756"
PARTS = {"keys, values": "#b279a2", "temporaries": "#72b7b2", "always mapped": COMPUTES,
         "shared": "#ff9da6", "slots": STAGES}  # fmt: skip


def draw(path: Path, plans: Mapping[str, tuple[Graph, Plan]]) -> None:
    """Writes a PNG. Raises ImportError where the extra `plots` is not installed."""
    drawn = figure(11, 1.2 + 1.5 * len(plans))
    axes: Any = drawn.subplots(len(plans), 2, squeeze=False, width_ratios=(2, 1))
    for (lanes, addresses), (name, (graph, plan)) in zip(axes, plans.items(), strict=True):
        _draw_step(lanes, graph, plan)
        _draw_addresses(addresses, plan)
        lanes.set_title(name, loc="left")
    axes[-1][0].set_xlabel("ms of a steady step (modelled)")
    axes[-1][1].set_xlabel("address, MiB")
    axes[0][1].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, fontsize="small")
    save(drawn, path)


def _draw_step(axes: Any, graph: Graph, plan: Plan) -> None:
    schedule = unfold(graph, plan, WARM_UP + 1)
    events = [event for event in schedule.operators if event.step == WARM_UP]
    begin = next(event.end for event in reversed(schedule.operators) if event.step == WARM_UP - 1)
    end = events[-1].end

    def bars(spans: list[tuple[int, int]], lane: int, color: str) -> None:
        seen = [(max(a, begin), min(b, end)) for a, b in spans if b > begin and a < end]
        axes.broken_barh(
            [((a - begin) / 1e6, (b - a) / 1e6) for a, b in seen],
            (lane, 0.8), facecolors=color, edgecolor="white", linewidth=0.0 if lane else 0.2,
        )  # fmt: skip

    previous, stalls = begin, []
    for event in events:
        stalls.append((previous, event.start))
        previous = event.end
    bars([(event.start, event.end) for event in events], 1, COMPUTES)
    bars(stalls, 1, STALLS)
    bars([(event.start, event.end) for event in schedule.transfers], 0, STAGES)
    axes.set_yticks([0.4, 1.4], ["staging", "NPU"])
    axes.set_xlim(0, (end - begin) / 1e6)


def _draw_addresses(axes: Any, plan: Plan) -> None:
    shared = [plan.weights[i] for t in plan.transfers if t.slot is None for i in t.operators]
    parts = {
        "keys, values": [plan.fixed],
        "temporaries": [plan.arena],
        "always mapped": list(plan.buffers),
        "shared": shared,
        "slots": list(plan.slots),
    }
    for name, regions in parts.items():
        axes.broken_barh(
            [(region.start / MIB, region.size / MIB) for region in regions],
            (0, 1), facecolors=PARTS[name], edgecolor="white", linewidth=0.5, label=name,
        )  # fmt: skip
    axes.set_yticks([])
    axes.set_xlim(left=0)
