"""The settings of `python -m experiments.plan`: a graph, a budget and planners."""

from collections.abc import Mapping
from dataclasses import dataclass

from experiments.harness.pictures import require_plots
from llada_jax.config import ModelConfig, require
from llada_jax.phone.memory import temporaries_mib
from llada_jax.phone.profile import load_profile
from llada_jax.phone.swap_plan import mapping_path
from llada_jax.swap.address_budget import MIB, Budget, MappingPath, kv_bytes_per_token
from llada_jax.swap.address_plan import Planner
from llada_jax.swap.graph import Graph, model_graph
from llada_jax.swap.greedy_planner import Greedy
from llada_jax.swap.planner_registry import planner


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """What to plan, and within what. The comments are in conf/plan.yaml."""

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
    steps: int = 32
    gap_sessions_mib: tuple[int, ...] = ()
    gap_step_shares: tuple[float, ...] = (1.0, 0.3, 0.1)
    pictures: bool = True

    def __post_init__(self) -> None:
        for name in ("rows", "step_ms", "steps"):
            value = getattr(self, name)
            require(value > 0, f"{name} is {value}; allowed: above 0")
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
        """Returns the step, with the transfer times of the path."""
        graph = model_graph(
            self.architecture,
            weight_bits=self.weight_bits,
            step_ns=round(self.step_ms * 1e6),
        )
        return self.way.price(graph)
