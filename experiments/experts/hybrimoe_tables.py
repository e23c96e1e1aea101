"""Predicts HybriMoE's own tables (arXiv 2504.05897): its desktop, its three models.

One number of the machine is fitted, to the baseline of the ablation (a decoded token of Qwen2 under
kTransformers takes 0.21 s); one of each model's routing, to LRU's hit rate at a quarter of the
experts; and minus-recent-score's alpha, which the paper does not give, to its hit rate there for
Qwen2. All other cells are predictions; `docs/experts.md` says which of them miss, and why.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness.results import ResultRow
from llada_jax.config import require_counts
from llada_jax.config_files import read_yaml
from llada_jax.experts.cache import MRS_ALPHA, CacheName, hit_rate, make_cache
from llada_jax.experts.costs import LINK_GBPS, LINK_SOURCE, desktop_costs
from llada_jax.experts.expert_policies import POLICIES, ExpertPolicy
from llada_jax.experts.replay import replay
from llada_jax.experts.routing import RoutingTrace
from llada_jax.experts.shapes import DEEPSEEK, MIXTRAL, QWEN2, MoEShape
from llada_jax.experts.synthetic import STATISTICS, decoding_trace, prefill_trace

SOURCE = "arXiv 2504.05897"
MODELS = (MIXTRAL, QWEN2, DEEPSEEK)
RATIOS = (0.25, 0.5, 0.75)
PREFILL_LENGTHS = (32, 128, 512, 1024)
ABLATION_PROMPT = 32

ALPHA = 0.15
"""Minus-recent-score's, fitted; the released code has 0.5."""
ABLATION: Mapping[str, ExpertPolicy] = {
    "scheduling": ExpertPolicy(scheduler="earliest_finish"),
    "prefetch": ExpertPolicy(scheduler="resident_or_cpu", prefetch="gates"),
    "caching": ExpertPolicy(scheduler="resident_or_cpu", cache="mrs", refill=True, alpha=ALPHA),
    "all": replace(POLICIES["hybrimoe"], alpha=ALPHA),
}
BASELINE = POLICIES["ktransformers"]
PUBLISHED = read_yaml(Path(__file__).with_name("hybrimoe.yaml"))

_modelled = partial(ResultRow, kind="modelled")


@dataclass(frozen=True, kw_only=True)
class PaperConfig:
    """Says how much is simulated. The comments are in conf/experts.yaml."""

    profile_tokens: int = 60
    tokens: int = 100
    prompts: int = 3

    def __post_init__(self) -> None:
        require_counts(self, "profile_tokens", "tokens", "prompts")


def predict_paper(config: PaperConfig, seed: int) -> Iterator[ResultRow]:
    """Predicts the ablation, the averages, and the hit rates."""
    decoding = {shape.name: _decoding(shape, config, seed) for shape in MODELS}
    phases = {
        "decode": (decoding["qwen2"], config.profile_tokens),
        "prefill": (_prefill(QWEN2, ABLATION_PROMPT, config, seed), config.prompts),
    }
    for phase, (trace, profile) in phases.items():
        yield from _ablation(phase, trace, profile)
    for phase, (trace, profile) in phases.items():
        yield _implied_link(phase, trace, profile)
    gains = {
        "decode": [
            _gain(decoding[shape.name], shape, ratio, config.profile_tokens)
            for shape, ratio in product(MODELS, RATIOS)
        ],
        "prefill": [
            _gain(_prefill(shape, length, config, seed), shape, ratio, config.prompts)
            for shape, length, ratio in product(MODELS, PREFILL_LENGTHS, RATIOS)
        ],
    }
    for phase, gained in gains.items():
        yield _modelled(
            name=f"average/{phase}", value=np.mean(gained), unit="x faster", n=len(gained),
            reference=PUBLISHED["average"][phase], source=f"{SOURCE}, abstract",
        )  # fmt: skip
    for shape in MODELS:
        yield from hit_rates(decoding[shape.name], shape, config.profile_tokens)


def _decoding(shape: MoEShape, config: PaperConfig, seed: int) -> RoutingTrace:
    tokens = config.profile_tokens + config.tokens
    return decoding_trace(shape, STATISTICS[shape.name], seed=seed, tokens=tokens)


def _prefill(shape: MoEShape, length: int, config: PaperConfig, seed: int) -> RoutingTrace:
    """Draws as many prompts for the profile as are timed."""
    statistics, prompts = STATISTICS[shape.name], 2 * config.prompts
    return prefill_trace(shape, statistics, seed=seed, prompts=prompts, tokens=length)


def _ablation(phase: str, trace: RoutingTrace, profile: int) -> Iterator[ResultRow]:
    """Compares the baseline's seconds and the gain of each policy with Table III."""
    before = _seconds(trace, QWEN2, BASELINE, 0.25, profile)
    source = f"{SOURCE}, table III"
    yield _modelled(
        name=f"qwen2_25/{phase}/baseline", value=before, unit="s",
        reference=PUBLISHED["seconds"][phase],
        source=source + (" (fitted)" if phase == "decode" else ""),
    )  # fmt: skip
    for name, policy in ABLATION.items():
        gain = before / _seconds(trace, QWEN2, policy, 0.25, profile)
        reference = PUBLISHED["speedup"][phase].get(name)
        yield _modelled(
            name=f"qwen2_25/{phase}/{name}", value=gain, unit="x faster", reference=reference,
            source=source if reference else None,
        )  # fmt: skip


def _implied_link(phase: str, trace: RoutingTrace, profile: int) -> ResultRow:
    """Says how fast the link would have to be for the paper's gain of scheduling.

    Bisects the bandwidth: the faster the link, the more scheduling gains. Nothing else uses it.
    """
    before = _seconds(trace, QWEN2, BASELINE, 0.25, profile)
    low, high = 0.1, 2 * LINK_GBPS
    for _ in range(8):
        middle = (low + high) / 2
        after = _seconds(trace, QWEN2, ABLATION["scheduling"], 0.25, profile, middle)
        gains_more = before / after > PUBLISHED["speedup"][phase]["scheduling"]
        low, high = (low, middle) if gains_more else (middle, high)
    return _modelled(
        name=f"implied_link/qwen2_25/{phase}", value=(low + high) / 2, unit="GB/s",
        reference=LINK_GBPS, source=LINK_SOURCE,
    )  # fmt: skip


def _seconds(
    trace: RoutingTrace,
    shape: MoEShape,
    policy: ExpertPolicy,
    ratio: float,
    profile: int,
    link_gbps: float = LINK_GBPS,
) -> float:
    """Returns the mean seconds of a step."""
    costs, slots = desktop_costs(shape, link_gbps), shape.slots_at(ratio)
    return float(replay(trace, policy, costs, slots, profile_steps=profile).seconds.mean())


def _gain(trace: RoutingTrace, shape: MoEShape, ratio: float, profile: int) -> float:
    """Returns how many times faster than kTransformers HybriMoE is."""
    before = _seconds(trace, shape, BASELINE, ratio, profile)
    return before / _seconds(trace, shape, ABLATION["all"], ratio, profile)


def hit_rates(trace: RoutingTrace, shape: MoEShape, profile: int) -> Iterator[ResultRow]:
    """Simulates caches that take in what they missed, without prefetching."""
    caches: dict[str, tuple[CacheName, float]] = {
        **{name: (name, ALPHA) for name in ("lru", "mrs", "static", "belady")},
        "mrs_released": ("mrs", MRS_ALPHA),
    }
    for ratio in RATIOS:
        for name, (cache, alpha) in caches.items():
            policy = make_cache(cache, trace.loads[:profile], future=trace.loads, alpha=alpha)
            cell = f"{shape.name}/{round(100 * ratio)}/{name}"
            reference = PUBLISHED["hit_rate"].get(cell)
            fitted = " (fitted)" if cell in PUBLISHED["fitted"] else ""
            hits = hit_rate(trace, policy, shape.slots_at(ratio), warmup=profile)
            source = f"{SOURCE}, figure 9{fitted}" if reference else None
            beside: Any = {"reference": reference, "source": source}
            yield _modelled(f"hit_rate/{cell}", hits, "of activated experts", **beside)
