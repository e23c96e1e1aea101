"""Predicts every cell of HybriMoE's tables (arXiv 2504.05897): its desktop and its three models.

docs/experts_results.md documents the inputs and their sources. The desktop has an RTX A6000 and ten
cores of a Xeon Gold 5220R, connected by PCIe 3.0. Times below are for one 4-bit expert of
DeepSeek-V2-Lite, and agree with the axes of the paper's figures 3e and 3f.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from experiments.harness.results import ResultRow
from llada_jax.config import require_counts
from llada_jax.config_files import read_yaml
from llada_jax.experts.cache import MRS_ALPHA, CacheName
from llada_jax.experts.policy_run import POLICIES, ExpertPolicy, Outcome, replay
from llada_jax.experts.routing import RoutingTrace
from llada_jax.experts.schedule import ExpertCosts
from llada_jax.experts.shapes import DEEPSEEK, MIXTRAL, QWEN2, MoEShape
from llada_jax.experts.synthetic import STATISTICS, decoding_trace, prefill_trace

SOURCE = "arXiv 2504.05897"
MODELS = (MIXTRAL, QWEN2, DEEPSEEK)
RATIOS = (0.25, 0.5, 0.75)
PREFILL_LENGTHS = (32, 128, 512, 1024)

Phase = Literal["decode", "prefill"]

GPU_MS = 0.452  # independent of the rows; authors' code
TRANSFER_MS = 0.4179  # authors' code; 10.4 GB/s
CPU_UNPACK_MS = 1.780  # a kernel for many rows unpacks the expert first; authors' code
CPU_ROW_MS = 0.02918  # authors' code; 296 G multiply-adds/s

CPU_GBPS = 13.6  # the kernel for one row; fitted: kTransformers decodes Qwen2 in 0.21 s a token
GPU_GWEIGHTS = 1200  # inferred: 600 of the A6000's 768 GB/s, at 4 bits a weight
CPU_FIRST_US = 300  # inferred: cold caches, a quarter of an expert
LAYER_US = 300  # a layer without its weights; inferred: attention over a short cache, and launches
BYTES_A_WEIGHT = 0.5  # measured: 4-bit Marlin

ALPHA = 0.15
"""Decay of the minus-recent-score policy, fitted; the released code has 0.5."""
BASELINE: Mapping[Phase, ExpertPolicy] = {
    "decode": ExpertPolicy(scheduler="resident_or_cpu", profiled=False),
    "prefill": ExpertPolicy(scheduler="all_on_accelerator", profiled=False),
}
PARTS: Mapping[str, Mapping[str, Any]] = {
    "scheduling": {"scheduler": "earliest_finish"},
    "prefetch": {"prefetch": True},
    "caching": {"cache": "mrs", "refill": True, "alpha": ALPHA},
}
"""The parts of HybriMoE, as changes of the baseline."""
HYBRIMOE = replace(POLICIES["hybrimoe"], alpha=ALPHA, profiled=False)
CPUS = (1, 8, 16, 32)
"""CPU speeds, as multiples of the authors', for prefills that run misses on the CPU."""
COSTS_OF_CPU = ("cpu_expert", "cpu_row", "cpu_first")
PUBLISHED = read_yaml(Path(__file__).with_name("hybrimoe.yaml"))

_modelled = partial(ResultRow, kind="modelled")


def _reference(published: float | None, source: str) -> dict[str, Any]:
    """Returns the fields of a row for a published value, or none without one."""
    return {"reference": published, "source": f"{SOURCE}, {source}"} if published else {}


@dataclass(frozen=True, kw_only=True)
class PaperConfig:
    """Settings of the verb; conf/experts.yaml explains each."""

    profile_tokens: int = 60
    tokens: int = 100
    prompts: int = 3

    def __post_init__(self) -> None:
        require_counts(self, "profile_tokens", "tokens", "prompts")


def desktop_costs(shape: MoEShape, phase: Phase) -> ExpertCosts:
    """Returns the costs of a model's experts in one phase. While decoding, the CPU's kernel is
    limited by memory bandwidth; for a prompt, it unpacks the expert first. kTransformers chooses
    the kernel by the size of the batch, not by an expert's load."""
    weights = shape.expert_weights
    of_deepseek = 1e-3 * weights / DEEPSEEK.expert_weights
    read = weights * BYTES_A_WEIGHT * 1e-9 / CPU_GBPS
    launched = GPU_MS * 1e-3 - DEEPSEEK.expert_weights * 1e-9 / GPU_GWEIGHTS
    return ExpertCosts(
        cpu_expert=read if phase == "decode" else CPU_UNPACK_MS * of_deepseek,
        cpu_row=CPU_ROW_MS * of_deepseek,
        cpu_first=CPU_FIRST_US * 1e-6,
        accelerator=weights * 1e-9 / GPU_GWEIGHTS + launched,
        transfer=TRANSFER_MS * of_deepseek,
        dense=shape.dense_weights * 1e-9 / GPU_GWEIGHTS + LAYER_US * 1e-6,
    )


class Scenario(NamedTuple):
    """A model, a size of its cache, and texts to decode or prefill."""

    name: str
    phase: Phase
    shape: MoEShape
    ratio: float
    trace: RoutingTrace
    profile: int
    """Number of steps before the timed ones."""

    def run(
        self, policy: ExpertPolicy, costs: ExpertCosts | None = None, *, empty: bool = False
    ) -> Outcome:
        """Simulates a policy, on the desktop or at other costs."""
        costs = costs or desktop_costs(self.shape, self.phase)
        slots = self.shape.slots_at(self.ratio)
        return replay(self.trace, policy, costs, slots, profile_steps=self.profile, empty=empty)


def predict_paper(config: PaperConfig, seed: int) -> Iterator[ResultRow]:
    """Yields every cell, the ablation, the averages, and the gains under other assumptions."""
    texts = []
    for shape in MODELS:
        tokens = config.profile_tokens + config.tokens
        trace = decoding_trace(shape, STATISTICS[shape.name], seed=seed, tokens=tokens)
        texts.append(("decode", "", shape, trace, config.profile_tokens))
    for shape, length in product(MODELS, PREFILL_LENGTHS):
        trace = prefill_trace(  # the same number of prompts before the timed ones
            shape, STATISTICS[shape.name], seed=seed, prompts=2 * config.prompts, tokens=length
        )
        texts.append(("prefill", f"/{length}", shape, trace, config.prompts))
    scenarios = [
        Scenario(f"{shape.name}/{100 * ratio:.0f}{length}", phase, shape, ratio, trace, profile)
        for (phase, length, shape, trace, profile), ratio in product(texts, RATIOS)
    ]
    for phase in BASELINE:
        of_phase = [scenario for scenario in scenarios if scenario.phase == phase]
        yield from gains_of(phase, of_phase)
        yield from _ablation(phase, [c for c in of_phase if (c.shape, c.ratio) == (QWEN2, 0.25)])
    yield from _if_misses_ran_on_the_cpu(
        [scenario for scenario in scenarios if scenario.phase == "prefill"]
    )
    yield from _hit_rates([scenario for scenario in scenarios if scenario.phase == "decode"])


def gains_of(phase: Phase, scenarios: list[Scenario]) -> Iterator[ResultRow]:
    """Yields both systems' seconds of every scenario, and the average of the gains."""
    gains = []
    for scenario in scenarios:
        before, after = scenario.run(BASELINE[phase]), scenario.run(HYBRIMOE)
        gains.append(before.seconds.mean() / after.seconds.mean())
        name = f"{phase}/{scenario.name}"
        for system, outcome in (("ktransformers", before), ("hybrimoe", after)):
            shown = PUBLISHED["digitised_tokens_per_second"].get(f"{name}/{system}")
            known = _reference(shown and 1 / shown, "figure 8, digitised by a third party")
            seconds = outcome.seconds
            yield _modelled(f"{name}/{system}", seconds.mean(), "s", n=len(seconds), **known)
            yield _modelled(f"{name}/{system}/hits", outcome.hit_rate, "of activated experts")
        yield _modelled(f"{name}/gain", gains[-1], "x faster")
    known = _reference(PUBLISHED["average"][phase], "abstract")
    yield _modelled(f"average/{phase}", np.mean(gains), "x faster", n=len(gains), **known)


def _ablation(phase: Phase, scenarios: list[Scenario]) -> Iterator[ResultRow]:
    """Compares the baseline's seconds and each part's gain with Table III. The paper does not state
    the lengths of its prompts, so there are rows for each length, and the published values are the
    references of the mean over the lengths."""
    policies = {name: replace(BASELINE[phase], **part) for name, part in PARTS.items()}
    policies = {"baseline": BASELINE[phase], **policies, "all": HYBRIMOE}
    seconds = {
        name: np.array([scenario.run(policy).seconds.mean() for scenario in scenarios])
        for name, policy in policies.items()
    }
    kind, before = "fitted" if phase == "decode" else "modelled", seconds.pop("baseline")
    known = _reference(PUBLISHED["seconds"][phase], "table III")
    yield ResultRow(f"qwen2_25/{phase}/baseline", before.mean(), "s", kind=kind, **known)
    for name, after in seconds.items():
        known = _reference(PUBLISHED["speedup"][phase].get(name), "table III")
        gain = before.mean() / after.mean()
        yield _modelled(f"qwen2_25/{phase}/{name}", gain, "x faster", **known)
    if len(scenarios) > 1:
        for i, length in enumerate(PREFILL_LENGTHS):
            yield _modelled(f"qwen2_25/{phase}_{length}/baseline", before[i], "s")
            for name, after in seconds.items():
                gain = before[i] / after[i]
                yield _modelled(f"qwen2_25/{phase}_{length}/{name}", gain, "x faster")


def _if_misses_ran_on_the_cpu(scenarios: list[Scenario]) -> Iterator[ResultRow]:
    """Yields the average gain of prefills over a baseline that runs misses on the CPU, as decoding
    does, for the authors' CPU and for faster ones."""
    for faster in CPUS:
        gains = []
        for scenario in scenarios:
            costs = desktop_costs(scenario.shape, "prefill")
            costs = replace(costs, **{name: getattr(costs, name) / faster for name in COSTS_OF_CPU})
            policies = BASELINE["decode"], HYBRIMOE
            before, after = (scenario.run(policy, costs).seconds.mean() for policy in policies)
            gains.append(before / after)
        name = f"misses_on_the_cpu/cpu_x{faster}/average/prefill"
        yield _modelled(name, np.mean(gains), "x faster", n=len(gains))


def _hit_rates(scenarios: list[Scenario]) -> Iterator[ResultRow]:
    """Yields the hit rates of caches that load every missed expert, without prefetching."""
    caches: dict[str, tuple[CacheName, float]] = {
        **{name: (name, ALPHA) for name in ("lru", "mrs", "static")},
        "mrs_released": ("mrs", MRS_ALPHA),
    }
    for scenario, (name, (cache, alpha)) in product(scenarios, caches.items()):
        policy = ExpertPolicy(scheduler="all_on_accelerator", cache=cache, alpha=alpha)
        hits = scenario.run(policy, empty=True).hit_rate
        cell = f"{scenario.name}/{name}"
        known = _reference(PUBLISHED["hit_rate"].get(cell), "figure 9")
        kind = "fitted" if cell in PUBLISHED["fitted"] else "modelled"
        yield ResultRow(f"hit_rate/{cell}", hits, "of activated experts", kind=kind, **known)
