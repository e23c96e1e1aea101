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
"""Steps before the one that is drawn, which then repeats."""
LANES = {"computes": "C0", "stalls": "C3", "stages": "C1"}
PARTS = {"keys, values, temporaries": "C4", "always mapped": "C0", "shared": "C6", "slots": "C1"}


def draw_plans(plans: Mapping[str, tuple[Graph, Plan]], path: Path) -> None:
    """Draws a line for each plan as a PNG: its steady step over time, and its addresses."""
    drawn = figure(11, 1.4 + 1.5 * len(plans))
    axes: Any = drawn.subplots(len(plans), 2, squeeze=False, width_ratios=(2, 1))
    for (lanes, addresses), (name, (graph, plan)) in zip(axes, plans.items(), strict=True):
        _draw_step(lanes, graph, plan)
        _draw_addresses(addresses, plan)
        lanes.set_title(name, loc="left")
    axes[-1][0].set_xlabel("ms of a steady step (modelled)")
    axes[-1][1].set_xlabel("address, MiB")
    for each in axes[0]:
        each.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, fontsize="small")
    save(drawn, path)


def _draw_step(axes: Any, graph: Graph, plan: Plan) -> None:
    steps = unfold(graph, plan, WARM_UP + 1)
    begin = max(span.end for span in steps.operators if span.step == WARM_UP - 1)
    computes = [(span.start, span.end) for span in steps.operators if span.step == WARM_UP]
    ends = [begin, *(end for _, end in computes)]
    stalls = [(before, start) for before, (start, _) in zip(ends, computes, strict=False)]
    stages = [(span.start, span.end) for span in steps.transfers]
    for lane, (name, spans) in zip(
        (1, 1, 0), zip(LANES, (computes, stalls, stages), strict=True), strict=True
    ):
        seen = [(max(a, begin), min(b, ends[-1])) for a, b in spans if b > begin and a < ends[-1]]
        axes.broken_barh(
            [((a - begin) / 1e6, (b - a) / 1e6) for a, b in seen], (lane, 0.8),
            facecolors=LANES[name], edgecolor="white", linewidth=0.2 * lane, label=name,
        )  # fmt: skip
    axes.set_yticks([0.4, 1.4], ["staging", "NPU"])
    axes.set_xlim(0, (ends[-1] - begin) / 1e6)


def _draw_addresses(axes: Any, plan: Plan) -> None:
    shared = [plan.weights[i] for t in plan.transfers if t.slot is None for i in t.operators]
    parts = ([plan.fixed], plan.buffers, shared, plan.slots)
    for (name, color), regions in zip(PARTS.items(), parts, strict=True):
        axes.broken_barh(
            [(region.start / MIB, region.size / MIB) for region in regions], (0, 1),
            facecolors=color, edgecolor="white", linewidth=0.5, label=name,
        )  # fmt: skip
    axes.set_yticks([])
    axes.set_xlim(left=0)
