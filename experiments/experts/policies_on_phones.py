"""Runs every policy at every cache size on phones: mixtures as dLLMs, and how they route."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np
from tqdm import tqdm

from experiments.experts.expert_prices import phone_costs
from experiments.harness.results import ResultRow
from llada_jax.config import require_counts
from llada_jax.experts.costs import ExpertCosts
from llada_jax.experts.policy_run import POLICIES, bound, replay
from llada_jax.experts.routing import (
    RoutingTrace,
    experts_per_step,
    gate_accuracy,
    imbalance,
    row_reuse,
    step_similarity,
)
from llada_jax.experts.schedule import all_on_accelerator, fastest
from llada_jax.experts.shapes import LLADA2_MINI, LLADA_MOE
from llada_jax.experts.synthetic import STATISTICS, denoising_trace
from llada_jax.phone.profile import load_profile

MODELS = (LLADA2_MINI, LLADA_MOE)
TOKENS_PER_STEP = 2.55
"""LLaDA2.0-mini on twelve benchmarks (card of LLaDA2.0-mini-CAP); LLaDA-MoE is taken alike."""
WITHOUT_CPU = ("adapmoe", "tide", "lru", "mrs", "hybrimoe")
"""Policies that are also run with all experts on the NPU, as when the CPU has other work."""
PUBLISHED = {
    "similarity_1": (0.985, "TIDE, arXiv 2605.20179: LLaDA2"),
    "similarity_5": (0.95, "TIDE, arXiv 2605.20179: LLaDA2, above"),
    "gate/1": (0.78, "FATE on DeepSeek-V2-Lite, as arXiv 2511.10676 has it"),
}

_modelled = partial(ResultRow, kind="modelled")


@dataclass(frozen=True, kw_only=True)
class PhonesConfig:
    """Says what is simulated. The comments are in conf/experts.yaml."""

    socs: tuple[str, ...] = ("SM8750", "SM8850")
    npu: str = "llada_cpp"
    cpu: str = "plain"
    ratios: tuple[float, ...] = (0.25, 0.5, 0.75)
    profile_blocks: int = 2
    blocks: int = 4

    def __post_init__(self) -> None:
        for soc in self.socs:
            phone = load_profile(soc)
            _ = phone.kernels(self.npu), phone.cpu_kernels(self.cpu)  # which checks the names
        for shape, ratio in product(MODELS, self.ratios):
            _ = shape.slots_at(ratio)  # which checks the ratio
        require_counts(self, "profile_blocks", "blocks")


def simulate_phones(config: PhonesConfig, seed: int) -> Iterator[ResultRow]:
    """Yields statistics of the drawn traces, then tokens per second."""
    for shape in MODELS:
        trace = denoising_trace(
            shape, STATISTICS[shape.name], seed=seed, tokens_per_step=TOKENS_PER_STEP,
            blocks=config.profile_blocks + config.blocks,
        )  # fmt: skip
        yield from statistics_of(trace, f"trace/{shape.name}")
        profile = int(np.flatnonzero(trace.begins_block)[config.profile_blocks])
        cells = list(product(config.socs, config.ratios))
        for soc, ratio in tqdm(cells, desc=shape.name, unit="cell"):
            costs = phone_costs(soc, shape, config.npu, config.cpu)
            cell = f"{shape.name}/{soc}/{round(100 * ratio)}"
            yield from compare(trace, cell, costs, shape.slots_at(ratio), profile)


def compare(
    trace: RoutingTrace, cell: str, costs: ExpertCosts, slots: int, profile: int
) -> Iterator[ResultRow]:
    """Yields one cell of the table: every policy, with the CPU and without it."""
    npu_only = {n: replace(POLICIES[n], scheduler="all_on_accelerator") for n in WITHOUT_CPU}
    for part, chosen, scheduler in (
        (cell, POLICIES, fastest), (f"{cell}/npu_only", npu_only, all_on_accelerator)
    ):  # fmt: skip
        outcomes = {
            name: replay(trace, policy, costs, slots, profile_steps=profile)
            for name, policy in chosen.items()
        }
        limit = bound(trace, costs, slots, profile_steps=profile, scheduler=scheduler)
        for name, outcome in {**outcomes, "bound": limit}.items():
            speed = outcome.tokens_per_second
            yield _modelled(f"{part}/{name}/tokens_per_second", speed, "tokens/s")
            yield _modelled(f"{part}/{name}/hit_rate", outcome.hit_rate, "of activated experts")


def statistics_of(trace: RoutingTrace, name: str) -> Iterator[ResultRow]:
    """Yields reuse, gates' accuracy by layers ahead, and skew, beside what is published."""
    reuse, keeps = row_reuse(trace), ~trace.changed[1:]
    mean = partial(np.nanmean, dtype=float)
    values = {
        "experts_per_step": (experts_per_step(trace), f"of {trace.n_experts} experts"),
        "similarity_1": (step_similarity(trace), "cosine"),
        "similarity_5": (step_similarity(trace, lag=5), "cosine"),
        "imbalance": (imbalance(trace).mean(), "x the mean load"),
        "reuse/token_stays": (mean(reuse[keeps]), "of a row's experts"),
        "reuse/token_changes": (mean(reuse[~keeps]), "of a row's experts"),
    }
    for ahead, share in enumerate(gate_accuracy(trace), 1):
        values[f"gate/{ahead}"] = (share, "of a row's experts")
    drawn = trace.settings.get("source", "").startswith("synthetic")
    kind = "modelled" if drawn else "measured"
    row = partial(ResultRow, kind=kind, fingerprint=trace.settings.get("fingerprint"))
    for what, (value, unit) in values.items():
        reference, source = PUBLISHED.get(what, (None, None))
        yield row(f"{name}/{what}", value, unit, reference=reference, source=source)
