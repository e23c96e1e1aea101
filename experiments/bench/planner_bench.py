"""The suite `planning`: how long planners and prices take, and how good the plans then are."""

from collections.abc import Callable, Iterator
from functools import partial

from experiments.harness.results import ResultRow
from experiments.harness.timers import best_of
from llada_jax.model.architecture import architecture
from llada_jax.phone.cost import StepCost, price_on_cpu, price_on_npu
from llada_jax.phone.graphs import Graphs
from llada_jax.phone.profile import load_profile
from llada_jax.phone.swap_plan import mapping_path
from llada_jax.swap.address_budget import Budget, kv_bytes_per_token
from llada_jax.swap.address_layout import room_for_weights
from llada_jax.swap.address_plan import Plan
from llada_jax.swap.bound import least_step_ns
from llada_jax.swap.graph import Graph, model_graph
from llada_jax.swap.planner_registry import planner
from llada_jax.swap.stall_times import stall_of

STEP_NS = {"llada_8b": 478_100_000, "llada2_flash": 6_850_000_000}
"""LLaDA-8B: llada.cpp (arXiv 2606.13740), Table 2. LLaDA2.0-flash: as long for each weight, as if
a step ran all experts."""
PLANNED = ("paging", "greedy", "steady")
PRICED, SOC = "llada_8b", "SM8750"
ROWS, CACHED = 32, 256
"""Of the step that is priced."""


def time_planning(repeats: int) -> Iterator[ResultRow]:
    """Times the planners, then the device model."""
    yield from time_planners(repeats)
    yield from time_pricing(repeats)


def _plan_anew(name: str, graph: Graph, budget: Budget) -> Plan:
    room_for_weights.cache_clear()
    return planner(name)(graph, budget)


def time_pricing(repeats: int) -> Iterator[ResultRow]:
    """Prices all layers of a step, lowered once, operation by operation."""
    lowered, seconds = best_of(lambda: Graphs(architecture(PRICED)).body(ROWS, CACHED), 1)
    name = f"price/{PRICED}"
    operations = len(lowered.operations)
    yield ResultRow(f"{name}/operations", operations, "operations")
    yield ResultRow(f"{name}/lowering", seconds, "s")
    profile = load_profile(SOC)
    npu, cpu = profile.kernels("llada_cpp"), profile.cpu_kernels("plain")
    prices: dict[str, Callable[[], StepCost]] = {
        "npu": lambda: price_on_npu(lowered, npu, profile.memory),
        "cpu": lambda: price_on_cpu(lowered, cpu, profile.memory),
    }
    for lane, price in prices.items():
        cost, seconds = best_of(price, repeats)
        milliseconds = 1e3 * cost.seconds
        yield ResultRow(f"{name}/{lane}", seconds, "s")
        yield ResultRow(f"{name}/{lane}/step", milliseconds, "ms", kind="modelled")


def time_planners(repeats: int) -> Iterator[ResultRow]:
    """Yields, for each model and planner, the best time, and the step over the lower bound."""
    for name, step_ns in STEP_NS.items():
        model = architecture(name)
        graph = model_graph(model, rows=32, weight_bits=4.5, step_ns=step_ns)
        graph = mapping_path(load_profile(SOC), "copy").price(graph)
        budget = Budget(kv_bytes_per_token=kv_bytes_per_token(model), tokens=208)
        least = least_step_ns(graph, budget)
        yield ResultRow(f"plan/{name}/operators", len(graph), "operators")
        for planner_name in PLANNED:
            plan, seconds = best_of(partial(_plan_anew, planner_name, graph, budget), repeats)
            step = graph.compute_ns + stall_of(graph, plan)
            yield ResultRow(f"plan/{name}/{planner_name}", seconds, "s")
            yield ResultRow(
                f"plan/{name}/{planner_name}/step_over_bound",
                float(step) / least,
                "x",
                kind="modelled",
            )
