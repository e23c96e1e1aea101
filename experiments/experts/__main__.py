"""Compares policies that cache, move and run experts if memory cannot hold all of them.

    python -m experiments.experts
    python -m experiments.experts parts=[paper]
    python -m experiments.experts parts=[phones] phones.npu=vendor phones.cpu=tuned

First, HybriMoE's tables are predicted and compared with the paper's. Then every policy is simulated
on phones, with mixture-of-experts diffusion models. The run folder also gets recorded routing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Literal, get_args

import llada_jax as lj
from experiments.experts.hybrimoe_tables import PaperConfig, predict_paper
from experiments.experts.policies_on_phones import (
    PhonesConfig,
    RoutingConfig,
    judge_routing,
    simulate_phones,
)
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from llada_jax.config import require, require_choice

Part = Literal["paper", "phones", "routing"]


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """Settings of the verb; conf/experts.yaml explains each."""

    seed: int = 0
    parts: tuple[str, ...] = get_args(Part)
    paper: PaperConfig = field(default_factory=PaperConfig)
    phones: PhonesConfig = field(default_factory=PhonesConfig)
    routing: RoutingConfig = field(default_factory=RoutingConfig)

    def __post_init__(self) -> None:
        require(self.seed >= 0, f"seed is {self.seed}; allowed: 0 or more")
        require(bool(self.parts), "parts is empty; allowed: at least one")
        for part in self.parts:
            require_choice("part", part, Part)


def experts(config: ExpertsConfig, run: Run) -> None:
    """Runs the chosen parts."""
    parts: dict[str, Callable[[], Iterator[ResultRow]]] = {
        "paper": partial(predict_paper, config.paper, config.seed),
        "phones": partial(simulate_phones, config.phones, config.seed),
        "routing": partial(judge_routing, config.routing, config.seed, run),
    }
    if "routing" in config.parts and config.routing.model is not None:
        _ = lj.load(config.routing.model)  # checks the model
    run.begin()
    run.finish(run.recorded(chain.from_iterable(parts[part]() for part in config.parts)))


main = entry_point("experts", experts, ExpertsConfig)
