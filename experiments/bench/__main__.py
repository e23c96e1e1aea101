"""Runs a suite of benchmarks, each operation against its baseline in the same run.

    python -m experiments.bench
    python -m experiments.bench suite=rivals
    python -m experiments.bench suite=released_mixture

The default suite is `continuous`. Others are `hot_paths`, `start`, `loading`, `experts_budget`,
`constraint`, `schemas`, `packed`, `products`, `serve`, `training`, `growth` and `gpu`; the files of
`conf/suite` have their settings.

Candidates run in alternation and are timed several times, so that other work on the machine slows
all of them alike.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import llada_jax as lj
from experiments.bench.constraint_bench import time_constraints
from experiments.bench.continuous_bench import ContinuousBenchConfig, time_continuous
from experiments.bench.experts_budget_bench import ExpertsBudgetConfig, time_experts_budget
from experiments.bench.gpu_bench import GpuBenchConfig, time_gpu
from experiments.bench.growth_bench import GrowthBenchConfig, time_growth
from experiments.bench.hot_paths import random_model, time_hot_paths
from experiments.bench.packed_bench import PackedBenchConfig, time_packed
from experiments.bench.products_bench import ProductsBenchConfig, time_products
from experiments.bench.rivals.rivals_bench import RivalsBenchConfig, time_rivals
from experiments.bench.schemas import time_schemas
from experiments.bench.serve_bench import ServeBenchConfig, time_serving
from experiments.bench.start_bench import StartBenchConfig, time_loading, time_start
from experiments.bench.training_bench import TrainingBenchConfig, time_training
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from llada_jax.config import ModelConfig, require_counts

_WITH_QUARTILES = (
    "hot_paths", "rivals", "packed", "products", "loading", "gpu", "training", "growth",
)  # fmt: skip
_USUAL_SHAPES = {
    "hot_paths": "medium",
    "loading": "medium",
    "experts_budget": "mixture_1b",
    "training": "small",
}


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """Settings of the verb; conf/bench.yaml explains each."""

    suite: Literal[
        "continuous", "hot_paths", "rivals", "packed", "experts_budget", "start", "constraint",
        "loading", "products", "schemas", "serve", "gpu", "training", "growth",
    ] = "continuous"  # fmt: skip
    model: str = "small"
    architecture: ModelConfig | None = None
    repeats: int = 5
    seed: int = 0
    rivals: RivalsBenchConfig = field(default_factory=RivalsBenchConfig)
    continuous: ContinuousBenchConfig = field(default_factory=ContinuousBenchConfig)
    packed: PackedBenchConfig = field(default_factory=PackedBenchConfig)
    products: ProductsBenchConfig = field(default_factory=ProductsBenchConfig)
    experts_budget: ExpertsBudgetConfig = field(default_factory=ExpertsBudgetConfig)
    serve: ServeBenchConfig = field(default_factory=ServeBenchConfig)
    start: StartBenchConfig = field(default_factory=StartBenchConfig)
    gpu: GpuBenchConfig = field(default_factory=GpuBenchConfig)
    training: TrainingBenchConfig = field(default_factory=TrainingBenchConfig)
    growth: GrowthBenchConfig = field(default_factory=GrowthBenchConfig)

    def __post_init__(self) -> None:
        require_counts(self, "repeats", least=2 if self.suite in _WITH_QUARTILES else 1)


def bench(config: BenchConfig, run: Run) -> None:
    """Runs one suite, and records each row as soon as it is measured."""
    timed = timed_rows(config, run)
    run.begin()
    run.finish(run.recorded(timed))


def timed_rows(config: BenchConfig, run: Run) -> Iterator[ResultRow]:
    """Returns an iterator that measures the rows of the suite. Raises ValueError at once if the
    suite needs another model."""
    shape, repeats, seed = config.architecture, config.repeats, config.seed
    of_a_shape: Mapping[str, Callable[[ModelConfig], Iterator[ResultRow]]] = {
        "hot_paths": lambda shape: time_hot_paths(shape, repeats, seed),
        "rivals": lambda shape: time_rivals(shape, config.rivals, repeats),
        "loading": lambda shape: time_loading(random_model(shape, seed), repeats),
        "packed": lambda shape: time_packed(shape, config.packed, repeats),
        "experts_budget": lambda shape: time_experts_budget(shape, config.experts_budget, seed),
        "start": lambda shape: time_start(config.model, shape, config.start, repeats),
        "gpu": lambda shape: time_gpu(shape, config.gpu, repeats),
        "training": lambda shape: time_training(shape, config.training, repeats),
        "constraint": lambda shape: time_constraints(shape, repeats, seed),
    }
    if config.suite == "continuous":
        return time_continuous(run.of(lj.load(config.model)), config.continuous)
    if config.suite == "products":
        return time_products(config.products, repeats)
    if config.suite == "serve":
        return time_serving(config.model, config.serve)
    if config.suite == "growth":
        random = None if shape is None else random_model(shape, seed)
        model = random or run.of(lj.load(config.model, "float32"))
        return time_growth(model, config.growth, repeats)
    if config.suite == "schemas":
        return time_schemas(config.model, repeats)
    if shape is None:
        usual = _USUAL_SHAPES.get(config.suite, "llada_8b")
        raise ValueError(f"suite={config.suite} needs architecture={usual}")
    return of_a_shape[config.suite](shape)


main = entry_point("bench", bench, BenchConfig)
