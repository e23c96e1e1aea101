"""Plans a step whose weights exceed the NPU's address space, with several planners.

    python -m experiments.plan
    python -m experiments.plan path=immediate tokens=640
    python -m experiments.plan -m session_mib=3200,2048,1024
    python -m experiments.plan gap_sessions_mib=[800,1600,2400,3200]
    python -m experiments.plan architecture=llada2_flash step_ms=1000

A plan keeps some weights mapped and maps the others just before their operators run. All times are
modelled: the step's compute time is divided among the operators by their weights, and the cost of
mapping comes from the phone's profile. A planner without a plan reports the reason. With
`gap_sessions_mib`, rows `gap/*` have the excess of each planner's step over a lower bound for any
plan, by size of the session and speed of the compute.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from experiments.harness.pictures import new_figure, require_plots, save
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from experiments.harness.timers import best_of
from llada_jax.config import ModelConfig, require, require_numbers
from llada_jax.phones.memory import temporaries_mib
from llada_jax.phones.profile import load_profile
from llada_jax.phones.swap_plan import mapping_path
from llada_jax.swap.address_space import MIB, Budget, MappingPath, Plan, PlanError
from llada_jax.swap.graph import Graph, kv_bytes_per_token, model_graph
from llada_jax.swap.greedy_planner import Greedy
from llada_jax.swap.plan_checker import problems
from llada_jax.swap.planners import Planner, planner
from llada_jax.swap.stall_times import least_step_ns, stall_of, unfold

WARM_UP = 8
"""Steps before the drawn one; later steps repeat."""
LANES = {"computes": "C0", "stalls": "C3", "stages": "C1"}
PARTS = {"keys, values, temporaries": "C4", "always mapped": "C0", "shared": "C6", "slots": "C1"}


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """Settings of the verb; conf/plan.yaml explains each."""

    architecture: ModelConfig
    rows: int = 32
    weight_bits: float = 4.5
    step_ms: float = 478.1
    phone: str = "SM8750"
    path: str = "copy"
    planners: tuple[str, ...] = ("greedy", "steady")
    greedy_slot_mib: int | None = 128
    session_mib: int = 3200
    max_buffer_mib: int = 1024
    tokens: int = 208
    gap_sessions_mib: tuple[int, ...] = ()
    gap_step_shares: tuple[float, ...] = (1.0, 0.3, 0.1)
    pictures: bool = True

    def __post_init__(self) -> None:
        require_numbers(self, "rows", "step_ms", above=0)
        for share in self.gap_step_shares:
            require(share > 0, f"gap_step_shares has {share}; allowed: above 0")
        require(bool(self.planners), "planners is empty; allowed: at least one")
        if self.pictures:
            require_plots("pictures=true")
        _ = self.way, self.planners_by_name

    @property
    def way(self) -> MappingPath:
        return mapping_path(load_profile(self.phone), self.path)

    @property
    def planners_by_name(self) -> Mapping[str, Planner]:
        greedy = Greedy(None if self.greedy_slot_mib is None else self.greedy_slot_mib * MIB)
        return {name: greedy if name == "greedy" else planner(name) for name in self.planners}

    @property
    def budget(self) -> Budget:
        return Budget(
            session_bytes=self.session_mib * MIB,
            max_buffer_bytes=self.max_buffer_mib * MIB,
            kv_bytes_per_token=kv_bytes_per_token(self.architecture),
            tokens=self.tokens,
            temporary_bytes=int(temporaries_mib(self.architecture, self.rows, shared=True) * MIB),
        )

    def graph(self) -> Graph:
        """Returns the operators of a step, with the transfer times of the path."""
        step_ns = round(self.step_ms * 1e6)
        graph = model_graph(self.architecture, weight_bits=self.weight_bits, step_ns=step_ns)
        return self.way.price(graph)


class _CheckedPlan(NamedTuple):
    """A valid plan, and the time that it took to find."""

    name: str
    plan: Plan
    graph: Graph
    """The step, with the cost of the plan's transfers."""
    seconds: float

    def rows(self, config: PlanConfig) -> Iterator[ResultRow]:
        graph, row = self.graph, partial(_row, config)
        stall = float(stall_of(graph, self.plan))
        yield row(f"{self.name}/step", (graph.compute_ns + stall) / 1e6, "ms")
        yield row(f"{self.name}/stall", stall / 1e6, "ms a step")
        yield row(f"{self.name}/resident", self.plan.resident_bytes(graph) / MIB, "MiB")
        yield row(f"{self.name}/transfers", len(self.plan.transfers), "a step")
        yield ResultRow(f"plan/{config.path}/{self.name}/planning", self.seconds, "s")


def plan(config: PlanConfig, run: Run) -> None:
    """Prints, records and draws the plan of every planner."""
    graph = config.graph()
    bound_ns = least_step_ns(graph, config.budget)
    plans, failed = _plans_of(config, graph)
    require(bool(plans), f"no planner finds a plan: {failed}")
    run.begin()
    rows = [_row(config, "compute", graph.compute_ns / 1e6, "ms")]
    rows.append(_row(config, "bound/step", bound_ns / 1e6, "ms"))
    rows += [row for checked in plans for row in checked.rows(config)]
    rows += _gaps_of(config)
    print(f"path {config.path!r} on {config.phone} ({config.way.tag}): {config.way.source}")
    for name, reason in failed.items():
        print(f"{name}: no plan, {reason}")
    if config.pictures:
        _draw_plans(plans, run.folder / "plan.png")
    run.finish(run.recorded(rows))


def _plans_of(config: PlanConfig, graph: Graph) -> tuple[list[_CheckedPlan], dict[str, str]]:
    """Returns the checked plans, and the reasons of planners that have none."""
    plans, failed = [], {}
    for name, plan_with in config.planners_by_name.items():
        try:
            result, seconds = best_of(partial(plan_with, graph, config.budget))
        except PlanError as error:
            failed[name] = str(error)
            continue
        if errors := problems(graph, config.budget, result):
            raise RuntimeError(f"the plan of {name} is invalid: {errors[0]}")
        priced = config.way.price(graph, len(result.transfers))
        plans.append(_CheckedPlan(name, result, priced, seconds))
    return plans, failed


def _gaps_of(config: PlanConfig) -> Iterator[ResultRow]:
    """Yields the excess of each planner's step over the bound, by session and share of the step's
    compute. Costs that a path has once per step are left out, since planners do not know them."""
    for session_mib, share in product(config.gap_sessions_mib, config.gap_step_shares):
        case = replace(config, session_mib=session_mib, step_ms=config.step_ms * share)
        graph = case.graph()
        bound_ns = least_step_ns(graph, case.budget)
        for checked in _plans_of(case, graph)[0]:
            over = float(graph.compute_ns + stall_of(graph, checked.plan)) / bound_ns - 1
            name = f"gap/{session_mib}MiB/compute{share:g}/{checked.name}"
            yield _row(case, name, 100 * over, "%")


def _row(config: PlanConfig, name: str, value: float, unit: str) -> ResultRow:
    return ResultRow(f"plan/{config.path}/{name}", value, unit, kind="modelled")


def _draw_plans(plans: Sequence[_CheckedPlan], path: Path) -> None:
    """Draws a row of axes for each plan: its steady step over time, and its addresses."""
    figure = new_figure(11, 1.4 + 1.5 * len(plans))
    axes: Any = figure.subplots(len(plans), 2, squeeze=False, width_ratios=(2, 1))
    for (lanes, addresses), checked in zip(axes, plans, strict=True):
        _draw_step(lanes, checked.graph, checked.plan)
        _draw_addresses(addresses, checked.plan)
        lanes.set_title(checked.name, loc="left")
    axes[-1][0].set_xlabel("ms of a steady step (modelled)")
    axes[-1][1].set_xlabel("address, MiB")
    for axis in axes[0]:
        axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, fontsize="small")
    save(figure, path)


def _draw_step(axes: Any, graph: Graph, plan: Plan) -> None:
    steps = unfold(graph, plan, WARM_UP + 1)
    begin = max(span.end for span in steps.operators if span.step == WARM_UP - 1)
    computes = [(span.start, span.end) for span in steps.operators if span.step == WARM_UP]
    ends = [begin, *(end for _, end in computes)]
    stalls = list(zip(ends, (start for start, _ in computes), strict=False))
    stages = [(span.start, span.end) for span in steps.transfers]
    for lane, name, spans in zip((1, 1, 0), LANES, (computes, stalls, stages), strict=True):
        visible = [
            (max(a, begin), min(b, ends[-1])) for a, b in spans if b > begin and a < ends[-1]
        ]
        axes.broken_barh(
            [((a - begin) / 1e6, (b - a) / 1e6) for a, b in visible], (lane, 0.8),
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


main = entry_point("plan", plan, PlanConfig)
