"""A planner's plan for a run on a phone, with the phone's own costs of making weights visible."""

from collections import Counter
from dataclasses import dataclass

from llada_jax.config import require
from llada_jax.phone.cost import price_on_npu, stored_bits
from llada_jax.phone.graphs import Graphs
from llada_jax.phone.mapping import mapping_path
from llada_jax.phone.profile import Profile
from llada_jax.phone.simulate import System
from llada_jax.phone.planned import PlannedStaging, planned_staging
from llada_jax.phone.workload import Workload
from llada_jax.swap.budget import MIB, Budget, PlanError, kv_bytes_per_token
from llada_jax.swap.check import problems
from llada_jax.swap.graph import Graph, model_graph
from llada_jax.swap.plan import Plan
from llada_jax.swap.planners import planner

PATHS = {"remap": "immediate", "swap": "copy", "delayed": "delayed"}
"""Runtimes whose way to make weights visible a plan can use, with its name: mapping while the NPU
waits for the call, copies, and mappings of registered buffers."""


@dataclass(frozen=True)
class PlannedRun:
    """A plan, and the graph it was made for, with all that staging costs."""

    graph: Graph
    plan: Plan
    runtime: str

    def staging(self, profile: Profile) -> PlannedStaging:
        """The plan's transfers, as long as they take on this phone."""
        path = mapping_path(profile, PATHS[self.runtime])
        graph = path.price(self.graph, len(self.plan.transfers))
        return planned_staging(graph, self.plan, copies=self.runtime == "swap")


def plan_run(
    name: str, workload: Workload, graphs: Graphs, profile: Profile, system: System
) -> PlannedRun:
    """The plan of a planner for the forward that a run consists of the most, checked.

    Raises ValueError where the body is not on the NPU or the runtime stages nothing, and where the
    planner finds no plan (then with the reason).
    """
    plan_with = planner(name)
    require(system.body == "npu", f"body is {system.body!r}; allowed with a planner: 'npu'")
    allowed = ", ".join(map(repr, PATHS))
    require(
        system.runtime in PATHS,
        f"runtime is {system.runtime!r}; allowed with a planner: {allowed}",
    )
    path = mapping_path(profile, PATHS[system.runtime])
    graph = path.price(_graph(workload, graphs, profile, system))
    budget = Budget(
        session_bytes=int(profile.memory.mapping_cap_mib * MIB),
        max_buffer_bytes=int(profile.memory.buffer_mib * MIB),
        kv_bytes_per_token=kv_bytes_per_token(graphs.model),
        tokens=workload.canvas,
    )
    try:
        plan = plan_with(graph, budget)
    except PlanError as error:
        raise ValueError(f"planner {name!r} on {profile.soc}: {error}") from error
    found = problems(graph, budget, plan)
    if found:
        raise RuntimeError(f"the plan of {name!r} is invalid: {found[0]}")
    return PlannedRun(path.price(graph, len(plan.transfers)), plan, system.runtime)


def _graph(workload: Workload, graphs: Graphs, profile: Profile, system: System) -> Graph:
    """The matrices of the model, with the time that the cost model gives the body."""
    forward, _ = Counter(workload.forwards).most_common(1)[0]
    layer = graphs.layer(forward.rows, forward.cache)
    cost = price_on_npu(layer, profile.kernels(system.kernels), profile.memory)
    matrices = [weight for weight in layer.weights.values() if len(weight.shape) > 1]
    return model_graph(
        graphs.model,
        rows=forward.rows,
        weight_bits=max(stored_bits(weight) for weight in matrices),
        step_ns=round(graphs.n_layers * cost.seconds * 1e9),
    )
