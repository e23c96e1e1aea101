"""Step observations of one block, for testing rules without a model."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp

from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.rules.rule import Observation
from llada_jax.types import Scores


def observed(scores: Scores, masked, quota, config: SamplerConfig, random=None) -> Observation:
    """Returns the observation that a rule gets at the first step of a block."""
    zeros = jnp.zeros(masked.shape, jnp.int32)
    priority = {
        "low_confidence": scores.confidence,
        "random": random,
        "entropy": -scores.entropy,
        "margin": scores.margin,
    }
    return Observation(
        position=zeros + jnp.arange(masked.shape[1]),
        token=zeros,
        predicted=scores.token,
        confidence=scores.confidence,
        masked=masked,
        committed=jnp.zeros(masked.shape, bool),
        rescored=jnp.zeros(masked.shape, bool),
        priority=priority[config.remasking],
        step=zeros[:, 0],
        block_masks=masked.sum(axis=1),
        quota=quota,
        entropy=scores.entropy,
        margin=scores.margin,
        parity=config.parity,
    )


def commits(seen: Observation, config: SamplerConfig) -> jax.Array:
    """Returns the masks that a configuration's rule commits, as booleans [B, C]."""
    sizes = SimpleNamespace(batch=len(seen.masked))
    decision, _ = config.rule.decide(seen, config.rule.init(sizes))
    return seen.masked & decision.commit
