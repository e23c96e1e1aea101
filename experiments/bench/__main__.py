"""Times the hot paths, each against its baseline in the same run.

    python -m experiments.bench
    python -m experiments.bench architecture=medium steps=32
    python -m experiments.bench suite=rivals
    python -m experiments.bench suite=released_mixture

Other suites are `start`, `loading`, `sampling`, `experts`, `experts_budget`, `constraint`,
`continuous` and `packed`; each file of `conf/suite` says what its one takes.

What is compared takes turns on the machine, and the best of several times counts: a busy moment
then hits both sides, and neither is charged for it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import jax

import llada_jax as lj
from experiments.bench.constraint_bench import time_constraints
from experiments.bench.continuous_bench import ContinuousBenchConfig, time_continuous
from experiments.bench.experts_bench import time_experts
from experiments.bench.experts_budget_bench import ExpertsBudgetConfig, time_experts_budget
from experiments.bench.hot_paths import HotPathsConfig, time_hot_paths
from experiments.bench.loading_bench import time_loading
from experiments.bench.packed_bench import PackedBenchConfig, time_packed
from experiments.bench.rivals.suite import RivalsBenchConfig, time_rivals
from experiments.bench.sampling_bench import time_sampling
from experiments.bench.start_bench import time_start
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from llada_jax.config import ModelConfig, require
from llada_jax.model.params import init_params

OfAnyModel = Literal["hot_paths", "continuous", "experts"]
OfAShape = Literal[
    "rivals",
    "sampling",
    "packed",
    "experts_budget",
    "start",
    "constraint",
    "loading",
]
_USUAL_SHAPES = {"loading": "medium", "sampling": "medium", "experts_budget": "mixture_1b"}


@dataclass(frozen=True, kw_only=True)
class BenchConfig(HotPathsConfig):
    """What to time. The comments are in conf/bench.yaml."""

    suite: Literal[OfAnyModel, OfAShape] = "hot_paths"
    model: str = "tiny"
    architecture: ModelConfig | None = None
    rivals: RivalsBenchConfig = field(default_factory=RivalsBenchConfig)
    continuous: ContinuousBenchConfig = field(default_factory=ContinuousBenchConfig)
    packed: PackedBenchConfig = field(default_factory=PackedBenchConfig)
    experts_budget: ExpertsBudgetConfig = field(default_factory=ExpertsBudgetConfig)


def bench(config: BenchConfig, run: Run) -> None:
    """Runs one suite, and records each row as soon as it is there."""
    timed = timed_rows(config, run)
    run.begin()
    run.finish(run.recorded(timed))


def timed_rows(config: BenchConfig, run: Run) -> Iterator[ResultRow]:
    """Returns the rows of the suite, which times each when it is asked for. Raises ValueError,
    before any work, where the suite needs another model."""
    shape, repeats, seed = config.architecture, config.repeats, config.seed
    of_any_model: Mapping[str, Callable[[], Iterator[ResultRow]]] = {
        "hot_paths": lambda: time_hot_paths(_model_of_hot_paths(config, run), config),
        "continuous": lambda: time_continuous(run.of(lj.load(config.model)), config.continuous),
        "experts": lambda: time_experts(repeats, seed),
    }
    of_a_shape: Mapping[str, Callable[[ModelConfig], Iterator[ResultRow]]] = {
        "rivals": lambda shape: time_rivals(shape, config.rivals, repeats),
        "sampling": lambda shape: time_sampling(random_model(shape, seed), repeats, seed),
        "loading": lambda shape: time_loading(random_model(shape, seed), repeats),
        "packed": lambda shape: time_packed(shape, config.packed, repeats),
        "experts_budget": lambda shape: time_experts_budget(shape, config.experts_budget, seed),
        "start": lambda shape: time_start(config.model, shape, config),
        "constraint": lambda shape: time_constraints(shape, repeats, seed),
    }
    if config.suite in of_any_model:
        return of_any_model[config.suite]()
    if shape is None:
        usual = _USUAL_SHAPES.get(config.suite, "llada_8b")
        raise ValueError(f"suite={config.suite} needs architecture={usual}")
    return of_a_shape[config.suite](shape)


def _model_of_hot_paths(config: BenchConfig, run: Run) -> lj.Model:
    shape = config.architecture
    model = run.of(lj.load(config.model)) if shape is None else random_model(shape, config.seed)
    longest = model.config.max_length
    require(
        config.length <= longest,
        f"prompt_length + gen_length is {config.length}; allowed: up to {longest}",
    )
    return model


def random_model(shape: ModelConfig, seed: int) -> lj.Model:
    """Returns a model with random weights."""
    return lj.Model(shape, init_params(shape, jax.random.key(seed)), None)


main = entry_point("bench", bench, BenchConfig)
