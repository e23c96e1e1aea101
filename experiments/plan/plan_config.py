"""The settings of `python -m experiments.plan`: a graph, a budget and planners."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from llada_jax.config import ModelConfig, require
from llada_jax.lowered import Lowered
from llada_jax.phone.profile import load_profile
from llada_jax.phone.swap_plan import mapping_path
from llada_jax.swap.address_budget import MIB, Budget, MappingPath, kv_bytes_per_token
from llada_jax.swap.address_plan import Planner
from llada_jax.swap.graph import ACTIVATION_BYTES, Graph, Operator, model_graph
from llada_jax.swap.greedy_planner import Greedy
from llada_jax.swap.planner_registry import planner

SCALE_BYTES = 2
"""Size of a scale in float16, of which each group or row of a quantized weight has one."""


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
    gap_sessions_mib: tuple[int, ...] = ()
    gap_step_shares: tuple[float, ...] = (1.0, 0.3, 0.1)

    def __post_init__(self) -> None:
        for name in ("step_ms", "steps"):
            value = getattr(self, name)
            require(value > 0, f"{name} is {value}; allowed: above 0")
        for share in self.gap_step_shares:
            require(share > 0, f"gap_step_shares has {share}; allowed: above 0")
        require(bool(self.planners), "planners is empty; allowed: at least one")
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
            max_buffers=self.max_buffers,
            max_buffer_bytes=self.max_buffer_mib * MIB,
            alignment=self.alignment,
            kv_bytes_per_token=kv_bytes_per_token(self.architecture),
            tokens=self.tokens,
            reserved_bytes=self.reserved_mib * MIB,
        )

    def graph(self) -> Graph:
        """Returns the step, with the transfer times of the path."""
        step_ns = round(self.step_ms * 1e6)
        if self.lowered is not None:
            graph = graph_of(Lowered.load(self.lowered), step_ns)
        else:
            graph = model_graph(
                self.architecture, rows=self.rows, weight_bits=self.weight_bits, step_ns=step_ns
            )
        return self.way.price(graph)


def graph_of(lowered: Lowered, step_ns: int) -> Graph:
    """Returns the operations that have weights, in order, each reading what the one before gave.

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
