"""The suite `planning`: how long the planners take, and how good their plans then are."""

import time
from collections.abc import Iterator
from typing import cast

from omegaconf import DictConfig, OmegaConf

from experiments.results import ResultRow
from experiments.run import REPOSITORY
from experiments.schema import read_config
from llada_jax.config import ModelConfig
from llada_jax.swap.bound import least_step_ns
from llada_jax.swap.budget import PATHS, Budget, kv_bytes_per_token
from llada_jax.swap.graph import model_graph
from llada_jax.swap.layout import room_for_weights
from llada_jax.swap.planners import planner
from llada_jax.swap.timing import stall_of

STEP_NS = {"llada_8b": 478_100_000, "llada2_flash": 6_850_000_000}
"""LLaDA-8B: llada.cpp (arXiv 2606.13740), Table 2. LLaDA2.0-flash: as long for each weight, as if
a step ran all experts."""
PLANNED = ("paging", "greedy", "steady")


def time_planning(repeats: int) -> Iterator[ResultRow]:
    """For each model and planner: the best time of several, and the step over the lower bound."""
    for name, step_ns in STEP_NS.items():
        file = REPOSITORY / "conf" / "architecture" / f"{name}.yaml"
        model = read_config(ModelConfig, cast(DictConfig, OmegaConf.load(file)))
        graph = model_graph(model, rows=32, weight_bits=4.5, step_ns=step_ns)
        graph = PATHS["copy"].price(graph)
        budget = Budget(kv_bytes_per_token=kv_bytes_per_token(model), tokens=208)
        least = least_step_ns(graph, budget)
        yield ResultRow(name=f"plan/{name}/operators", value=len(graph), unit="operators")
        for planner_name in PLANNED:
            times = []
            for _ in range(repeats):
                room_for_weights.cache_clear()
                began = time.perf_counter()
                planner(planner_name)(graph, budget)
                times.append(time.perf_counter() - began)
            plan = planner(planner_name)(graph, budget)
            step = graph.compute_ns + stall_of(graph, plan)
            yield ResultRow(name=f"plan/{name}/{planner_name}", value=min(times), unit="s")
            yield ResultRow(
                name=f"plan/{name}/{planner_name}/step_over_bound",
                value=float(step) / least,
                unit="x",
                kind="modelled",
            )
