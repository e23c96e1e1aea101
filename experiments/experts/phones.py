"""Mixture-of-experts dLLMs on phones: every policy at every cache size, and how far it could go."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from tqdm import tqdm

from experiments.experts.costs import phone_costs, slots_in_address_space
from experiments.harness.results import ResultRow
from llada_jax.config import require
from llada_jax.experts.budget import slots_at_ratio
from llada_jax.experts.costs import ExpertCosts
from llada_jax.experts.routing import RoutingTrace, experts_per_step, step_similarity
from llada_jax.experts.runtime import ORACLE, POLICIES, TOLD_OF_NEW_BLOCKS, Policy
from llada_jax.experts.schedule import SCHEDULERS
from llada_jax.experts.shapes import LLADA2_MINI, LLADA_MOE, MoEShape
from llada_jax.experts.simulate import Outcome, bound, simulate
from llada_jax.experts.synthetic import STATISTICS, denoising_trace
from llada_jax.phone.profile import load_profile

MODELS = (LLADA2_MINI, LLADA_MOE)
TOKENS_PER_STEP = 2.55
"""LLaDA2.0-mini on twelve benchmarks (card of LLaDA2.0-mini-CAP); LLaDA-MoE is taken alike."""
OURS = "denoising"
WITHOUT_CPU = ("adapmoe", "tide", "lru", "lfu", "mrs", "hybrimoe", OURS)
"""Policies that are also run with all experts on the NPU, as when the CPU has other work."""
BEYOND_REACH = {"oracle": ORACLE, "told_of_new_blocks": TOLD_OF_NEW_BLOCKS}
"""Policies that know what no policy can."""
PUBLISHED_STATISTICS = {
    "experts_per_step": (69.5, "dMoE, arXiv 2605.30876 (fitted)"),
    "similarity_1": (0.985, "TIDE, arXiv 2605.20179 (fitted)"),
    "similarity_5": (0.95, "TIDE, arXiv 2605.20179: above"),
}


@dataclass(frozen=True, kw_only=True)
class PhonesConfig:
    """What is simulated. The comments are in conf/experts.yaml."""

    socs: tuple[str, ...] = ("SM8750", "SM8850")
    npu: str = "llada_cpp"
    cpu: str = "plain"
    ratios: tuple[float, ...] = (0.25, 0.5, 0.75)
    tokens: int = 1024
    profile_blocks: int = 2
    blocks: int = 4

    def __post_init__(self) -> None:
        for soc in self.socs:
            phone = load_profile(soc)
            _ = phone.kernels(self.npu), phone.cpu_kernels(self.cpu)  # which checks the names
        for shape in MODELS:
            for ratio in self.ratios:
                _ = slots_at_ratio(ratio, shape)  # which checks the ratio
        for name in ("tokens", "profile_blocks", "blocks"):
            value = getattr(self, name)
            require(value > 0, f"{name} is {value}; allowed: 1 or more")


def simulate_phones(config: PhonesConfig, seed: int) -> Iterator[ResultRow]:
    """Statistics of the traces, then tokens per second."""
    for shape in MODELS:
        blocks = config.profile_blocks + config.blocks
        trace = denoising_trace(
            shape,
            STATISTICS[shape.name],
            seed=seed,
            blocks=blocks,
            tokens_per_step=TOKENS_PER_STEP,
        )
        yield from _statistics(trace, shape)
        profile = int(np.flatnonzero(trace.begins_block)[config.profile_blocks])
        cells = [(soc, ratio) for soc in config.socs for ratio in config.ratios]
        for soc, ratio in tqdm(cells, desc=shape.name, unit="cell"):
            costs = phone_costs(soc, shape, config.npu, config.cpu)
            yield from compare(trace, shape, soc, costs, ratio, profile)
        for soc in config.socs:
            yield ResultRow(
                name=f"address_space/{shape.name}/{soc}/slots",
                value=slots_in_address_space(soc, shape, config.tokens),
                unit=f"of {shape.n_experts} experts a layer",
                kind="modelled",
            )


def _statistics(trace: RoutingTrace, shape: MoEShape) -> Iterator[ResultRow]:
    values = {
        "experts_per_step": (experts_per_step(trace), "experts"),
        "similarity_1": (step_similarity(trace), "cosine"),
        "similarity_5": (step_similarity(trace, lag=5), "cosine"),
    }
    for name, (value, unit) in values.items():
        known = PUBLISHED_STATISTICS[name] if shape is LLADA2_MINI else (None, None)
        yield ResultRow(
            name=f"trace/{shape.name}/{name}",
            value=value,
            unit=unit,
            kind="modelled",
            reference=known[0],
            source=known[1],
        )


def compare(
    trace: RoutingTrace,
    shape: MoEShape,
    soc: str,
    costs: ExpertCosts,
    ratio: float,
    profile: int,
) -> Iterator[ResultRow]:
    """One cell of the table: every policy, with the CPU and without it."""
    slots = slots_at_ratio(ratio, shape)
    prefix = f"{shape.name}/{soc}/{round(100 * ratio)}"

    def run(policy: Policy) -> Outcome:
        return simulate(trace, policy, costs, slots, profile_steps=profile)

    hybrid = {name: run(policy) for name, policy in {**POLICIES, **BEYOND_REACH}.items()}
    hybrid["bound"] = bound(trace, costs, slots, profile_steps=profile)
    yield from _rows(prefix, hybrid)
    on_npu = {
        name: run(replace(policy, scheduler="all_on_accelerator"))
        for name, policy in {**{n: POLICIES[n] for n in WITHOUT_CPU}, **BEYOND_REACH}.items()
    }
    on_npu["bound"] = bound(
        trace,
        costs,
        slots,
        profile_steps=profile,
        scheduler=SCHEDULERS["all_on_accelerator"],
    )
    yield from _rows(f"{prefix}/npu_only", on_npu)


def _rows(prefix: str, outcomes: dict[str, Outcome]) -> Iterator[ResultRow]:
    for name, outcome in outcomes.items():
        yield ResultRow(
            name=f"{prefix}/{name}/tokens_per_second",
            value=outcome.tokens_per_second,
            unit="tokens/s",
            kind="modelled",
        )
        yield ResultRow(
            name=f"{prefix}/{name}/hit_rate",
            value=outcome.hit_rate,
            unit="of activated experts",
            kind="modelled",
        )
    speed = {name: outcome.tokens_per_second for name, outcome in outcomes.items()}
    others = {n: s for n, s in speed.items() if n not in (OURS, *BEYOND_REACH, "bound")}
    for name, reference in [("best_other", max(others.values())), ("bound", speed["bound"])]:
        yield ResultRow(
            name=f"{prefix}/{OURS}_to_{name}",
            value=speed[OURS] / reference,
            unit="x the speed",
            kind="modelled",
        )
