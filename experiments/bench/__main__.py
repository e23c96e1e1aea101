"""Times the hot paths, each against its baseline in the same run.

    python -m experiments.bench
    python -m experiments.bench architecture=medium steps=32
    python -m experiments.bench suite=rivals
    python -m experiments.bench suite=sampling
    python -m experiments.bench suite=revision
    python -m experiments.bench suite=experts
    python -m experiments.bench suite=constraint
    python -m experiments.bench suite=experts_budget
    python -m experiments.bench suite=released_mixture
    python -m experiments.bench suite=beside
    python -m experiments.bench suite=start start.export=path/to/an/export
    python -m experiments.bench suite=continuous
    python -m experiments.bench suite=packed
    python -m experiments.bench suite=checkouts checkouts.against=../another_checkout

What is compared takes turns on the machine, and the best of several times counts: a busy moment
then hits both sides, and neither is charged for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import jax

import llada_jax as lj
from experiments.bench.beside_bench import BesideBenchConfig, time_beside
from experiments.bench.checkouts_bench import CheckoutsBenchConfig, time_checkouts
from experiments.bench.constraint_bench import ConstraintBenchConfig, time_constraints
from experiments.bench.continuous_bench import ContinuousBenchConfig, time_continuous
from experiments.bench.experts_bench import ExpertsBenchConfig, time_experts
from experiments.bench.experts_budget_bench import ExpertsBudgetConfig, time_experts_budget
from experiments.bench.hot_paths import HotPathsConfig, time_hot_paths
from experiments.bench.packed_bench import PackedBenchConfig, time_packed
from experiments.bench.revision_bench import RevisionBenchConfig, time_revision
from experiments.bench.rivals.suite import RivalsBenchConfig, time_rivals
from experiments.bench.sampling_bench import SamplingBenchConfig, time_sampling
from experiments.bench.start_bench import StartBenchConfig, time_start
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from llada_jax.config import ModelConfig, require
from llada_jax.model.params import init_params

Suite = Literal[
    "hot_paths",
    "rivals",
    "sampling",
    "revision",
    "checkouts",
    "beside",
    "continuous",
    "packed",
    "experts",
    "experts_budget",
    "start",
    "constraint",
]


@dataclass(frozen=True, kw_only=True)
class BenchConfig(HotPathsConfig):
    """What to time. The comments are in conf/bench.yaml."""

    suite: Suite = "hot_paths"
    model: str = "tiny"
    architecture: ModelConfig | None = None
    rivals: RivalsBenchConfig = field(default_factory=RivalsBenchConfig)
    sampling: SamplingBenchConfig = field(default_factory=SamplingBenchConfig)
    revision: RevisionBenchConfig = field(default_factory=RevisionBenchConfig)
    checkouts: CheckoutsBenchConfig = field(default_factory=CheckoutsBenchConfig)
    beside: BesideBenchConfig = field(default_factory=BesideBenchConfig)
    continuous: ContinuousBenchConfig = field(default_factory=ContinuousBenchConfig)
    experts: ExpertsBenchConfig = field(default_factory=ExpertsBenchConfig)
    start: StartBenchConfig = field(default_factory=StartBenchConfig)
    constraint: ConstraintBenchConfig = field(default_factory=ConstraintBenchConfig)
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
    shape = config.architecture
    if config.suite == "checkouts":
        return time_checkouts(config.model, config.checkouts)
    if config.suite == "beside":
        return time_beside(config.model, config.beside)
    if config.suite == "continuous":
        return time_continuous(run.of(lj.load(config.model)), config.continuous)
    if config.suite == "experts":
        return time_experts(config.experts, config.repeats, config.seed)
    if config.suite == "hot_paths":
        model = run.of(lj.load(config.model)) if shape is None else random_model(shape, config.seed)
        longest = model.config.max_length
        require(
            config.length <= longest,
            f"prompt_length + gen_length is {config.length}; allowed: up to {longest}",
        )
        return time_hot_paths(model, config)
    if shape is None:
        needed = {"sampling": "medium", "experts_budget": "mixture_1b"}.get(
            config.suite, "llada_8b"
        )
        raise ValueError(f"suite={config.suite} needs architecture={needed}")
    if config.suite == "start":
        return time_start(config.model, shape, config.start, config)
    if config.suite == "sampling":
        model = random_model(shape, config.seed)
        return time_sampling(model, config.sampling, config.repeats, config.seed)
    if config.suite == "constraint":
        return time_constraints(shape, config.constraint, config.repeats, config.seed)
    if config.suite == "packed":
        return time_packed(shape, config.packed, config.repeats)
    if config.suite == "experts_budget":
        return time_experts_budget(shape, config.experts_budget, config.seed)
    if config.suite == "revision":
        return time_revision(shape, config.revision, config.repeats, config.seed)
    return time_rivals(shape, config.rivals, config.repeats)


def random_model(shape: ModelConfig, seed: int) -> lj.Model:
    """Returns a model with random weights."""
    return lj.Model(shape, init_params(shape, jax.random.key(seed)), None)


main = entry_point("bench", bench, BenchConfig)
