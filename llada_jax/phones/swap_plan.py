"""Swap plans for a model on a phone.

The planners of `llada_jax.swap` know operators, sizes and times. This module computes these from a
phone's profile and a model's lowered steps, and converts a plan back into the transfers of a
simulated forward.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from llada_jax.config import require
from llada_jax.phones.cost import stored_bits
from llada_jax.phones.memory import WeightTransfer, WeightTransfers, temporaries_mib
from llada_jax.phones.profile import Profile
from llada_jax.phones.simulate import ForwardTimer, GraphsLike
from llada_jax.phones.system import System
from llada_jax.phones.workload import Workload
from llada_jax.swap.address_space import MIB, Budget, MappingPath, Plan, PlanError
from llada_jax.swap.graph import Graph, kv_bytes_per_token, model_graph
from llada_jax.swap.plan_checker import problems
from llada_jax.swap.planners import planner as planner_of
from llada_jax.swap.stall_times import staged_bytes, stall_of

PATHS: Mapping[str, str] = {"remap": "immediate", "swap": "copy", "delayed": "delayed"}
"""The mapping path of each runtime that can run a plan: mapping while the NPU waits, copies, or
mapping of registered buffers."""


def mapping_path(profile: Profile, name: str) -> MappingPath:
    """Returns the costs of a way to make weights visible: `immediate`, `copy` or `delayed`.

    Their published costs differ by a factor of a thousand, so results always name the path. Raises
    ValueError for an unknown one.
    """
    costs = profile.mapping
    paths = {
        "immediate": ("event_ms", costs.event_ms, 0, math.inf),
        "copy": ("copy_gbps", 0, costs.copy_ms, costs.copy_gbps * 1e9),
        "delayed": ("delayed_ms_per_gib", 0, 0, 1024 * MIB / (costs.delayed_ms_per_gib * 1e-3)),
    }
    require(name in paths, f"path is {name!r}; allowed: {', '.join(map(repr, paths))}")
    number, map_ms, step_ms, speed = paths[name]
    sourced = profile.numbers[f"mapping.{number}"]
    map_ns, step_ns = round(map_ms * 1e6), round(step_ms * 1e6)
    return MappingPath(map_ns, step_ns, speed, sourced.tag, sourced.source)


@dataclass(frozen=True, repr=False)
class SwapPlan:
    """A plan of the NPU's address space for one kind of step: resident and staged weights.

    All times are modelled.
    """

    soc: str
    planner: str
    runtime: str
    graph: Graph
    """The step's operators, with their staging times on the phone."""
    plan: Plan
    """The addresses, and the transfers of a step."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of the weights that are always mapped."""
        return self.plan.resident_bytes(self.graph)

    @property
    def transfers(self) -> int:
        """Number of transfers per step."""
        return len(self.plan.transfers)

    @property
    def stall_seconds(self) -> float:
        """Seconds per step in which the NPU waits for weights."""
        return float(stall_of(self.graph, self.plan)) / 1e9

    def mapped_over(self, steps: int) -> list[tuple[float, float]]:
        """Returns the mapped MiB in use over time, as (seconds, MiB from then on).

        These are keys, values, temporaries, resident weights, and staged weights until their last
        use, during the first `steps` steps of a loop.
        """
        constant = self.plan.fixed.size + self.resident_bytes
        staged = staged_bytes(self.graph, self.plan, steps)
        return [(ns / 1e9, (constant + size) / MIB) for ns, size in staged]

    def transfers_on(self, profile: Profile) -> WeightTransfers:
        """Returns the transfers of a step for a simulation with this profile of the phone.

        The plan has its own exact timing, so the simulation needs only two of them: one as long as
        the plan's stall, for which the first layer waits, and the rest, for which nothing waits.
        """
        graph = mapping_path(profile, PATHS[self.runtime]).price(self.graph, self.transfers)
        stall = float(stall_of(graph, self.plan)) / 1e9
        total = sum(graph.transfer_ns(transfer.operators) for transfer in self.plan.transfers) / 1e9
        copied = graph.weight_bytes - self.resident_bytes if self.runtime == "swap" else 0
        copied_in_stall = copied * stall / total if total else 0.0
        exposed = WeightTransfer("stall", stall, copied_in_stall, 0, None)
        hidden = WeightTransfer("stage", total - stall, copied - copied_in_stall, None, None)
        return WeightTransfers((exposed, hidden))

    def __repr__(self) -> str:
        """Describes the plan in one line."""
        staged = self.graph.weight_bytes - self.resident_bytes
        return (
            f"SwapPlan(by {self.planner!r} on {self.soc}, modelled: "
            f"{self.resident_bytes / MIB:,.0f} MiB resident, {staged / MIB:,.0f} MiB in "
            f"{self.transfers} transfers a step, stall {1e3 * self.stall_seconds:,.1f} ms beside "
            f"{self.graph.compute_ns / 1e6:,.1f} ms of compute)"
        )


def plan_swaps(
    planner: str, workload: Workload, graphs: GraphsLike, profile: Profile, system: System
) -> SwapPlan:
    """Plans the most frequent forward of a run, on its canvas, and checks the plan.

    Raises ValueError if the body is not on the NPU or the head not on the CPU, if the runtime
    stages nothing, or if the planner finds no plan, with the reason.
    """
    plan_with = planner_of(planner)
    require(system.body == "npu", f"body is {system.body!r}; allowed with a planner: 'npu'")
    require(
        system.scores_on == "cpu",
        f"scores_on is {system.scores_on!r}; allowed with a planner: 'cpu', since a plan has only "
        "the body's weights",
    )
    require(
        system.runtime in PATHS,
        f"runtime is {system.runtime!r}; allowed with a planner: {', '.join(map(repr, PATHS))}",
    )
    path = mapping_path(profile, PATHS[system.runtime])
    (forward, _), *_ = Counter(workload.forwards).most_common(1)
    weights = graphs.layer(forward.rows, forward.cache).weights.values()
    timer = ForwardTimer(graphs, profile, system, transfers=WeightTransfers())
    bits = max(stored_bits(weight) for weight in weights if len(weight.shape) > 1)
    step_ns = round(timer.body_seconds(forward) * 1e9)
    graph = path.price(model_graph(graphs.model, weight_bits=bits, step_ns=step_ns))
    budget = Budget(
        session_bytes=int(profile.memory.mapping_cap_mib * MIB),
        max_buffer_bytes=int(profile.memory.buffer_mib * MIB),
        kv_bytes_per_token=kv_bytes_per_token(graphs.model),
        tokens=workload.canvas,
        temporary_bytes=int(temporaries_mib(graphs.model, forward.rows, shared=True) * MIB),
    )
    try:
        plan = plan_with(graph, budget)
    except PlanError as error:
        raise ValueError(f"planner {planner!r} on {profile.soc}: {error}") from error
    if mistakes := problems(graph, budget, plan):
        raise RuntimeError(f"the plan of {planner!r} is invalid: {mistakes[0]}")
    # Planned without the fixed time per step, which depends on the number of transfers.
    priced = path.price(graph, len(plan.transfers))
    return SwapPlan(profile.soc, planner, system.runtime, priced, plan)
