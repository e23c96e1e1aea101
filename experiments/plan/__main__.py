"""Plans a step that is larger than the NPU's address space, with several planners.

    python -m experiments.plan
    python -m experiments.plan path=immediate tokens=640
    python -m experiments.plan -m session_mib=3200,2048,1024
    python -m experiments.plan architecture=llada2_flash step_ms=1000 figure=false
    python -m experiments.plan lowered=step.json architecture=small

All times are modelled: from the step's compute time, which is spread over the operators by their
weights, and from the cost of a way to stage, which the profile of a phone has. A
planner that finds no plan says why.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from experiments.harness.timers import best_of
from experiments.plan.plan_figure import draw
from llada_jax.config import ModelConfig, require
from llada_jax.lowered import Lowered
from llada_jax.phone.mapping import mapping_path
from llada_jax.phone.profile import load_profile
from llada_jax.swap.address_budget import MIB, Budget, MappingPath, PlanError, kv_bytes_per_token
from llada_jax.swap.address_plan import Plan, Planner
from llada_jax.swap.bound import least_step_ns
from llada_jax.swap.graph import ACTIVATION_BYTES, Graph, Operator, model_graph
from llada_jax.swap.greedy_planner import Greedy
from llada_jax.swap.plan_checker import problems
from llada_jax.swap.planner_registry import planner
from llada_jax.swap.stall_times import stall_of
from llada_jax.swap.unfolding import startup_ns, unfold

SCALE_BYTES = 2
"""float16, one for each group or row of a quantized weight."""


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """What to plan, and within what. The comments are in conf/plan.yaml."""

    architecture: ModelConfig
    lowered: str | None = None
    rows: int = 32
    weight_bits: float = 4.5
    step_ms: float = 478.1
    phone: str = "SM8750"
    path: str = "copy"
    planners: tuple[str, ...] = ("none", "paging", "greedy", "steady")
    greedy_slot_mib: int | None = 128
    session_mib: int = 3200
    max_buffers: int = 16
    max_buffer_mib: int = 1024
    alignment: int = 4096
    tokens: int = 208
    reserved_mib: int = 0
    steps: int = 32
    figure: bool = True

    def __post_init__(self) -> None:
        for name in ("step_ms", "steps"):
            value = getattr(self, name)
            require(value > 0, f"{name} is {value}; allowed: above 0")
        require(bool(self.planners), "planners is empty; allowed: at least one")
        for name in self.planners:
            planner(name)
        _ = self.way, self.greedy

    @property
    def way(self) -> MappingPath:
        return mapping_path(load_profile(self.phone), self.path)

    @property
    def greedy(self) -> Greedy:
        return Greedy(None if self.greedy_slot_mib is None else self.greedy_slot_mib * MIB)

    @property
    def budget(self) -> Budget:
        return Budget(
            session_bytes=self.session_mib * MIB,
            max_buffers=self.max_buffers,
            max_buffer_bytes=self.max_buffer_mib * MIB,
            alignment=self.alignment,
            kv_bytes_per_token=kv_bytes_per_token(self.architecture),
            tokens=self.tokens,
            reserved_bytes=self.reserved_mib * MIB,
        )

    def graph(self) -> Graph:
        """The step, with the transfer times of the path."""
        step_ns = round(self.step_ms * 1e6)
        if self.lowered is not None:
            graph = graph_of(Lowered.load(self.lowered), step_ns)
        else:
            graph = model_graph(
                self.architecture, rows=self.rows, weight_bits=self.weight_bits, step_ns=step_ns
            )
        return self.way.price(graph)


class Planned(NamedTuple):
    """A plan and what it took to make it."""

    name: str
    plan: Plan
    graph: Graph
    """With all that the plan's transfers cost."""
    seconds: float


def graph_of(lowered: Lowered, step_ns: int) -> Graph:
    """The operations that have weights, in order, each reading what the one before gave.

    The step's time is spread by multiply-adds. Raises ValueError where a weight has two users.
    """
    operations = [operation for operation in lowered.operations if operation.weight]
    names = [operation.weight for operation in operations]
    twice = sorted({name for name in names if name and names.count(name) > 1})
    require(not twice, f"{lowered.name} uses {', '.join(twice)} twice; allowed: once")
    macs = max(1, sum(operation.macs for operation in operations))
    operators = []
    for number, operation in enumerate(operations):
        assert operation.weight is not None
        weight = lowered.weights[operation.weight]
        count = math.prod(weight.shape)
        scales = count // (weight.group or weight.shape[-1]) if weight.bits < 16 else 0
        operators.append(
            Operator(
                name=operation.weight,
                weight_bytes=count * weight.bits // 8 + scales * SCALE_BYTES,
                compute_ns=round(step_ns * operation.macs / macs),
                temporary_bytes=sum(output.size for output in operation.outputs) * ACTIVATION_BYTES,
                depends=(number - 1,) if number else (),
            )
        )
    return Graph(tuple(operators))


def plan(config: PlanConfig, run: Run) -> None:
    """Every planner's plan, checked, as a table, rows and a picture."""
    graph, budget = config.graph(), config.budget
    bound_ns = least_step_ns(graph, budget)
    planned, failed = [], {}
    for name in config.planners:
        planner_of_name = config.greedy if name == "greedy" else planner(name)
        try:
            planned.append(_planned(name, planner_of_name, graph, config))
        except PlanError as error:
            failed[name] = str(error)
    require(bool(planned), f"no planner finds a plan: {failed}")
    run.begin()
    rows = [_row(config, "compute", graph.compute_ns / 1e6, "ms")]
    rows.append(_row(config, "bound/step", bound_ns / 1e6, "ms"))
    for each in planned:
        rows += _rows(config, each)
    for row in rows:
        run.record(row.as_dict())
    print(_described(graph, config))
    print(table_of(planned, bound_ns, config.steps))
    for name, reason in failed.items():
        print(f"{name}: no plan, {reason}")
    if config.figure:
        draw(run.folder / "plan.png", {each.name: (each.graph, each.plan) for each in planned})
    run.finish(rows)


def _planned(name: str, planner_of_name: Planner, graph: Graph, config: PlanConfig) -> Planned:
    made, seconds = best_of(partial(planner_of_name, graph, config.budget))
    found = problems(graph, config.budget, made)
    if found:
        raise RuntimeError(f"the plan of {name} is invalid: {found[0]}")
    return Planned(name, made, config.way.price(graph, len(made.transfers)), seconds)


def makespan_ns(graph: Graph, made: Plan, steps: int) -> int:
    """Time of so many steps from an empty address space."""
    return startup_ns(graph, made) + unfold(graph, made, steps).makespan


def _row(config: PlanConfig, name: str, value: float, unit: str) -> ResultRow:
    return ResultRow(name=f"plan/{config.path}/{name}", value=value, unit=unit, kind="modelled")


def _rows(config: PlanConfig, planned: Planned) -> Iterator[ResultRow]:
    name, made, graph = planned.name, planned.plan, planned.graph
    stall_ns = float(stall_of(graph, made))
    makespan = makespan_ns(graph, made, config.steps)
    yield _row(config, f"{name}/step", (graph.compute_ns + stall_ns) / 1e6, "ms")
    yield _row(config, f"{name}/stall", stall_ns / 1e6, "ms a step")
    yield _row(config, f"{name}/makespan", makespan / 1e6, f"ms for {config.steps} steps")
    yield _row(config, f"{name}/resident", made.resident_bytes(graph) / MIB, "MiB")
    yield _row(config, f"{name}/transfers", len(made.transfers), "a step")
    yield ResultRow(name=f"plan/{config.path}/{name}/planning", value=planned.seconds, unit="s")


def _described(graph: Graph, config: PlanConfig) -> str:
    path = config.way
    return (
        f"{len(graph)} operators, {graph.weight_bytes / MIB:,.0f} MiB of weights, session of "
        f"{config.session_mib:,} MiB; all times are modelled\n"
        f"path {config.path!r} on {config.phone} ({path.tag}): {path.source}"
    )


def table_of(planned: Sequence[Planned], bound_ns: int, steps: int) -> str:
    """A line for each planner."""
    head = ("planner", "step ms", "stall ms", f"{steps} steps ms", "resident MiB", "transfers")
    lines: list[tuple[str, ...]] = [head]
    for name, made, graph, _ in planned:
        stall = float(stall_of(graph, made))
        lines.append(
            (
                name,
                f"{(graph.compute_ns + stall) / 1e6:,.1f}",
                f"{stall / 1e6:,.1f}",
                f"{makespan_ns(graph, made, steps) / 1e6:,.1f}",
                f"{made.resident_bytes(graph) / MIB:,.0f}",
                f"{len(made.transfers)}",
            )
        )
    lines.append(("(bound)", f"{bound_ns / 1e6:,.1f}", *[""] * 4))
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in lines
    )


main = entry_point("plan", plan, PlanConfig)


if __name__ == "__main__":
    main()
