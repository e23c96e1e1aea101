"""The suite `experts_budget`: a mixture decodes with a part of its experts in memory, or with all.

Weights are random. Each case runs in a new process, whose peak memory is measured; reads bypass the
system's page cache. The allocator keeps its default settings, because returning memory at once
would cost more than an expert.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

import llada_jax as lj
from experiments.bench.random_weights import RandomWeights, random_params
from experiments.harness.results import ResultRow
from experiments.harness.timers import in_new_process
from llada_jax.backend.resources import peak_memory
from llada_jax.config import ModelConfig, Quant, require
from llada_jax.experts.decoding.expert_file import ExpertFile, ExpertShape, write_experts
from llada_jax.experts.decoding.generation import generate_within_budget
from llada_jax.experts.decoding.machine_profile import MachineProfile, measure_machine
from llada_jax.experts.policy_run import POLICIES
from llada_jax.experts.schedule import ExpertCosts
from llada_jax.sampler.config import SamplerConfig
from llada_jax.types import Params

_QUANT: dict[str, Quant] = {"int8": "int8", "int4": "int4_block32"}


@dataclass(frozen=True, kw_only=True)
class ExpertsBudgetConfig:
    """Settings of the verb; conf/bench.yaml explains each."""

    dtypes: tuple[str, ...] = ("int8", "int4")
    shares: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0)
    policies: tuple[str, ...] = ("lru",)
    in_memory: bool = True
    prompt_length: int = 16
    steps: int = 16
    scratch: str = "outputs/experts"

    def __post_init__(self) -> None:
        require(bool(self.dtypes), "dtypes is empty; allowed: int8, int4")
        named = {"dtype": (self.dtypes, _QUANT), "policy": (self.policies, POLICIES)}
        for name, (values, allowed) in named.items():
            for value in values:
                require(value in allowed, f"{name} is {value!r}; allowed: {', '.join(allowed)}")
        for share in self.shares:
            require(0 < share <= 1, f"share is {share}; allowed: above 0, up to 1")
        _ = self.sampler

    @property
    def sampler(self) -> SamplerConfig:
        return SamplerConfig.from_flat(
            gen_length=32, block_length=32, steps=self.steps, cache="blockwise"
        )

    @property
    def prompt(self) -> Sequence[Sequence[int]]:
        return [list(range(40, 40 + self.prompt_length))]


class _ProcessReport(NamedTuple):
    """The measurements of one process."""

    tokens: np.ndarray
    seconds: float
    peak: int
    weights: int
    """Bytes of the weights in memory."""
    waited: float = 0.0
    hit_rate: float = 1.0
    read: int = 0

    def rows(self, name: str) -> Iterator[ResultRow]:
        """Yields the rows that exist with and without a budget."""
        yield ResultRow(f"{name}/tokens_per_second", 32 / self.seconds, "tokens/s")
        yield ResultRow(f"{name}/seconds", self.seconds, "s")
        yield ResultRow(f"{name}/peak_memory", self.peak / 1e9, "GB")
        yield ResultRow(f"{name}/weights", self.weights / 1e9, "GB")
        yield ResultRow(f"{name}/beside_weights", (self.peak - self.weights) / 1e9, "GB")


class _Case(NamedTuple):
    """The model and settings of a process, small enough to be sent to it."""

    shape: ModelConfig
    dtype: str
    seed: int
    config: ExpertsBudgetConfig
    file: Path

    def model(self, *, experts: bool) -> lj.Model:
        params = random_params(self.shape, _QUANT[self.dtype], self.seed, experts=experts)
        return lj.Model(self.shape, params, None)

    def write(self) -> None:
        weights = RandomWeights(self.shape, _QUANT[self.dtype], self.seed)
        write_experts(self.file, self.shape, weights, self.dtype)

    def measured(self) -> MachineProfile:
        params = self.model(experts=False).params
        return measure_machine(params, self.shape, ExpertFile(self.file), 32)

    def decoded_in_memory(self) -> _ProcessReport:
        model = self.model(experts=True)
        for _ in range(2):  # the first one compiles
            result = lj.generate(model, self.config.prompt, self.config.sampler, loop="host")
        return _ProcessReport(result.tokens, result.seconds, _peak(), _bytes(model.params))

    def decoded_within(self, costs: ExpertCosts, policy: str, slots: int) -> _ProcessReport:
        model, config, file = self.model(experts=False), self.config, ExpertFile(self.file)
        profile = None
        for _ in range(2):  # the first run compiles, and counts the use of experts
            run = generate_within_budget(
                model, file, config.prompt, POLICIES[policy], costs, slots, profile,
                config.sampler,
            )  # fmt: skip
            profile = run.loads
        weights, hit_rate = _bytes(model.params), run.policy_run.hits / run.policy_run.uses
        return _ProcessReport(
            run.result.tokens, run.result.seconds, _peak(), weights + run.slots.memory_bytes,
            run.slots.waited, hit_rate, run.slots.read,
        )  # fmt: skip


def time_experts_budget(
    shape: ModelConfig, config: ExpertsBudgetConfig, seed: int
) -> Iterator[ResultRow]:
    """Returns an iterator over the rows of each dtype. Raises ValueError at once for a shape
    without experts."""
    for dtype in config.dtypes:
        _ = ExpertShape.of(shape, dtype)
    files = {dtype: Path(config.scratch, f"experts_{dtype}") for dtype in config.dtypes}
    cases = (_Case(shape, dtype, seed, config, file) for dtype, file in files.items())
    return chain.from_iterable(map(_rows, cases))


def _rows(case: _Case) -> Iterator[ResultRow]:
    case.file.parent.mkdir(parents=True, exist_ok=True)
    in_new_process(case.write)
    try:
        yield from _rows_of(case)
    finally:
        case.file.unlink()


def _rows_of(case: _Case) -> Iterator[ResultRow]:
    name, config, moe = f"experts_budget/{case.dtype}", case.config, case.shape.moe
    assert moe is not None
    measured = in_new_process(case.measured)
    yield ResultRow(f"{name}/file", case.file.stat().st_size / 1e9, "GB")
    yield ResultRow(f"{name}/read_expert", measured.read * 1e3, "ms")
    for rows, seconds in measured.run.items():
        yield ResultRow(f"{name}/run_expert/{rows}_rows", seconds * 1e3, "ms")
    costs = measured.costs(moe.experts_per_token)
    plain = in_new_process(case.decoded_in_memory) if config.in_memory else None
    if plain is not None:
        yield from plain.rows(f"{name}/memory")
    for share in config.shares:
        slots = max(1, math.floor(share * moe.n_experts))
        for policy in config.policies if share < 1 else config.policies[-1:]:
            report = in_new_process(case.decoded_within, costs, policy, slots)
            case_name = f"{name}/{share * 100:g}/{policy}"
            yield from report.rows(case_name)
            yield ResultRow(f"{case_name}/hit_rate", report.hit_rate, "of activated experts")
            yield ResultRow(f"{case_name}/read", report.read, "experts")
            yield ResultRow(f"{case_name}/waited", report.waited / report.seconds, "of the time")
            if plain is not None:
                equal = float(np.mean(report.tokens == plain.tokens))
                yield ResultRow(f"{case_name}/equal_tokens", equal, "of the tokens")
                yield ResultRow(f"{case_name}/speed", plain.seconds / report.seconds, "x in memory")


def _peak() -> int:
    peak = peak_memory()
    if peak is None:
        raise ValueError("the system does not tell a process's peak; allowed: Linux")
    return peak


def _bytes(params: Params) -> int:
    return sum(leaf.on_device_size_in_bytes() for leaf in jax.tree.leaves(params))
