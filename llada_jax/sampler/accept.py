"""Accept policies: which of a step's predictions are committed.

Candidates are ranked by counting who is ahead of whom (C**2 comparisons). Unlike a sort and a
scatter it fixes the order of ties, and NPU compilers take it.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from llada_jax.config import SamplerConfig, TieBreak
from llada_jax.types import Scores


class Candidates(NamedTuple):
    """The positions of the current block and what the model says of them."""

    scores: Scores
    open: Bool[Array, "B C"]  # masked positions of the block
    random: Float[Array, "B C"]  # uniform numbers, where a policy wants them
    quota: Int[Array, " B"]  # what LLaDA's schedule commits in this step


Bound = Float[Array, ""]
"""The number of the rule: threshold, factor or entropy bound. An array, so that a sweep over it
compiles once."""


class Bounds(NamedTuple):
    """The numbers of the accept rule and of the revise rule."""

    accept: Bound
    revise: Bound


Accept = Callable[[Candidates, Bound], Bool[Array, "B C"]]
"""The transfer mask: which candidates are committed."""


def quota(masks: Int[Array, " B"], step: Int[Array, " B"], steps: int) -> Int[Array, " B"]:
    """`num_transfer_tokens`: `masks` spread evenly over `steps`, the remainder on the first ones.

    LLaDA's linear noise schedule (arXiv 2502.09992, Algorithm 5).
    """
    return masks // steps + (step < masks % steps).astype(masks.dtype)


def ranks(
    priority: Float[Array, "B C"], is_open: Bool[Array, "B C"], tie_break: TieBreak
) -> Int[Array, "B C"]:
    """How many open candidates come before each one: 0 for the highest priority."""
    index = jnp.arange(priority.shape[1], dtype=jnp.int32)
    mine, other = priority[:, :, None], priority[:, None, :]
    earlier = index[None, :] < index[:, None]
    wins_tie = earlier if tie_break == "lowest_index" else earlier.T
    ahead = (other > mine) | ((other == mine) & wins_tie)
    return (ahead & is_open[:, None, :]).sum(axis=-1, dtype=jnp.int32)


def priority(candidates: Candidates, config: SamplerConfig) -> Float[Array, "B C"]:
    """What `remasking` ranks candidates by, high to low."""
    scores = candidates.scores
    return {
        "low_confidence": scores.confidence,
        "random": candidates.random,
        "entropy": -scores.entropy,
        "margin": scores.margin,
    }[config.remasking]


def accept_quota(candidates: Candidates, bound: Bound, config: SamplerConfig) -> Bool[Array, "B C"]:
    """The schedule's number of tokens, best first."""
    rank = ranks(priority(candidates, config), candidates.open, config.tie_break)
    return candidates.open & (rank < candidates.quota[:, None])


def accept_threshold(
    candidates: Candidates, bound: Bound, config: SamplerConfig
) -> Bool[Array, "B C"]:
    """Every token whose confidence reaches the threshold (Fast-dLLM, arXiv 2505.22618)."""
    confidence = candidates.scores.confidence
    reached = confidence > bound if config.strict_threshold else confidence >= bound
    return reached & candidates.open


def accept_factor(
    candidates: Candidates, bound: Bound, config: SamplerConfig
) -> Bool[Array, "B C"]:
    """The longest run of best tokens with confidence_n >= 1 - factor / (n + 1), n from 1.

    Fast-dLLM's bound. Its code also takes the last rank below its bound; this does not.
    """
    confidence = candidates.scores.confidence
    rank = ranks(confidence, candidates.open, config.tie_break)
    below = candidates.open & (confidence < 1 - bound / (rank + 2).astype(confidence.dtype))
    return candidates.open & (rank < _first_rank(rank, below))


def accept_entropy_bound(
    candidates: Candidates, bound: Bound, config: SamplerConfig
) -> Bool[Array, "B C"]:
    """In order of entropy, while the sum over all but the largest stays within the bound.

    EB-Sampler (arXiv 2505.24857): that sum bounds the mutual information that is ignored when the
    tokens are committed together.
    """
    entropy = candidates.scores.entropy
    rank = ranks(-entropy, candidates.open, config.tie_break)
    before = rank[:, None, :] < rank[:, :, None]  # [B, C, C]: the other is ranked before me
    sum_before = jnp.where(before & candidates.open[:, None, :], entropy[:, None, :], 0).sum(-1)
    return candidates.open & (sum_before <= bound)


def accept_wino(candidates: Candidates, bound: Bound, config: SamplerConfig) -> Bool[Array, "B C"]:
    """Tokens whose confidence reaches the threshold; of many, the best: 70 % of the masks, but at
    least 5 and at most 20 (WINO, arXiv 2507.18578)."""
    masks = candidates.open.sum(axis=1, keepdims=True, dtype=jnp.int32)
    most = jnp.clip(masks * 7 // 10, 5, 20)
    rank = ranks(candidates.scores.confidence, candidates.open, config.tie_break)
    return accept_threshold(candidates, bound, config) & (rank < most)


def _first_rank(rank: Int[Array, "B C"], chosen: Bool[Array, "B C"]) -> Int[Array, "B 1"]:
    return jnp.where(chosen, rank, rank.shape[1]).min(axis=1, keepdims=True)


_ACCEPT = {
    "quota": accept_quota,
    "threshold": accept_threshold,
    "factor": accept_factor,
    "entropy_bound": accept_entropy_bound,
    "staged": accept_threshold,
    "wino": accept_wino,
    "token_edit": accept_threshold,
}
_NUMBERS = {
    "threshold": "threshold",
    "factor": "factor",
    "entropy_bound": "entropy_bound",
    "staged": "theta_visible",
    "wino": "wino_accept",
    "token_edit": "edit_unmask",
}
"""The setting that each accept rule compares with."""
_REVISE_NUMBERS = {"staged": "theta_stable", "wino": "wino_verify", "token_edit": "edit_replace"}
"""The setting that each revise rule compares with."""


def rule_for(config: SamplerConfig) -> Accept:
    """The accept rule alone, without any progress that is forced."""
    return partial(_ACCEPT[config.accept], config=config)


def draft_rule_for(config: SamplerConfig) -> Accept:
    """Which drafts are taken over when their block becomes current."""
    if config.draft_threshold is None:
        return rule_for(config)
    least = config.draft_threshold

    def accept(candidates: Candidates, bound: Bound) -> Bool[Array, "B C"]:
        return accept_threshold(candidates, jnp.asarray(least, bound.dtype), config)

    return accept


def accept_for(config: SamplerConfig) -> Accept:
    """The accept policy of `config`, with the progress that it forces.

    Every step commits the best candidate of each row at the least, or the schedule's quota, so
    that decoding ends. The quota rule is left alone: it may give a step nothing to do.
    """
    rule = rule_for(config)
    if config.accept == "quota":
        return rule

    def accept(candidates: Candidates, bound: Bound) -> Bool[Array, "B C"]:
        rank = ranks(priority(candidates, config), candidates.open, config.tie_break)
        least = jnp.ones_like(candidates.quota)
        if config.forced_progress == "quota":
            least = jnp.maximum(candidates.quota, least)
        return rule(candidates, bound) | (candidates.open & (rank < least[:, None]))

    return accept


def bound_of(config: SamplerConfig) -> Bound:
    """The accept rule's number, in the confidence dtype; 0 for the quota rule, which has none."""
    return bounds_of(config)[0]


def bounds_of(config: SamplerConfig) -> Bounds:
    """The numbers of both rules, in the confidence dtype; 0 for a rule that has none."""
    accept, revise, *_ = (*numbers_of(config), 0.0, 0.0)
    return Bounds(*(jnp.asarray(number, config.confidence_dtype) for number in (accept, revise)))


def numbers_of(config: SamplerConfig) -> tuple[float, ...]:
    """What confidence is compared with: by the accept rule, then by the revise rule."""
    return tuple(getattr(config, name) for name in _compared(config))


def _compared(config: SamplerConfig) -> list[str]:
    tables = (_NUMBERS, _REVISE_NUMBERS)
    return [table[config.accept] for table in tables if config.accept in table]


def without_bound(config: SamplerConfig) -> SamplerConfig:
    """The same rules with stand-ins for their numbers: what compiles to one program."""
    return config.replace(**dict.fromkeys(_compared(config), 1.0))
