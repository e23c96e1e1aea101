"""The part of a step that drafts, before the forward that verifies the drafts.

Drafts are visible tokens after the anchor, and the block after them becomes the current one. So the
forward feeds the anchor and the drafts as finished tokens, in causal order, and scores the drafts
again together with the first mask. The rule keeps those that the model confirms, replaces the first
other one, and lets a block start there (`rules/speculate.py`): its first token is the next anchor.
"""

import jax.numpy as jnp

from llada_jax.sampler.drafters.drafter import DraftView
from llada_jax.sampler.spec import StepSpec
from llada_jax.sampler.state import STABLE, VISIBLE, DecodeState, take
from llada_jax.types import Params


def with_drafts(spec: StepSpec, params: Params, state: DecodeState) -> DecodeState:
    """Returns the state with drafts after each anchor, the first token of the current block.

    The first forward, which runs the prompt, has no anchor and gets no drafts.
    """
    drafter, block_length = spec.config.drafter, spec.config.block_length
    if drafter is None:
        return state
    anchor = state.block_start(block_length)
    ready = ~state.done & (take(state.status, anchor[:, None])[:, 0] == STABLE)
    count = block_length - 1
    tokens = drafter.draft(params, DraftView(state.tokens, anchor, state.draft), count)
    after = anchor[:, None] + 1 + jnp.arange(count, dtype=jnp.int32)[None, :]
    exists = (tokens >= 0) & (after < state.end[:, None]) & ready[:, None]
    exists = jnp.cumprod(exists, axis=1, dtype=jnp.int32).astype(bool)
    status = jnp.full(after.shape, VISIBLE, jnp.int8)
    nothing = jnp.zeros(after.shape, jnp.float32)
    state = state.with_tokens(after, tokens, nothing, exists, status, spec.mask_id)
    block = state.block + ready.astype(jnp.int32)
    first_mask = anchor + 1 + exists.sum(axis=1, dtype=jnp.int32)
    return state._replace(
        block=block,
        origin=jnp.where(ready, first_mask - block * block_length, state.origin),
        block_step=jnp.where(ready, 0, state.block_step),
    )
