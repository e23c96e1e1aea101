"""The rule of Nemotron-Labs-Diffusion: a model drafts a block, and verifies it by itself."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from llada_jax.sampler.rules.rule import Decision, Observation, Revision, Rule, RuleState, rule


@rule(name="speculate")
class Speculate(Rule):
    """Drafts a block in one forward, and verifies it in the next one, which sees it causally.

    Verified tokens are kept up to the first one that the model would not have generated after the
    tokens before it. The model's preference replaces that one, and the next block starts after it.
    So the run generates the same tokens as autoregressive decoding.
    """

    revises = True
    verifies = True
    waits = True
    max_remasks = None
    rescore = "token"

    def accept(self, seen: Observation) -> Bool[Array, "B C"]:
        return seen.masked

    def is_stable(self, confidence: Float[Array, "*shape"]) -> Bool[Array, "*shape"]:
        return jnp.ones(confidence.shape, bool)  # `decide` knows the drafts

    def decide(self, seen: Observation, state: RuleState) -> tuple[Decision, RuleState]:
        canvas = seen.canvas
        position, length = canvas.state.positions, canvas.state.tokens.shape[1]
        last = canvas.rescored & (canvas.differs | canvas.ends)
        end = jnp.where(last, position, length).min(axis=1, keepdims=True)
        replace = canvas.rescored & (position == end)
        # Finished tokens predict the next one, so a block's first token is verified already.
        first = seen.position == canvas.state.block_start(seen.block_length)[:, None]
        decision = Decision(
            commit=seen.masked,
            stable=first,
            canvas=Revision(
                replace=replace,
                stable=canvas.rescored & (position <= end),
                remask=(canvas.rescored | canvas.state.masked) & (position > end),
                confidence=canvas.confidence,
                restart=end[:, 0],
            ),
        )
        return decision, state

    def max_block_steps(self, block_length: int) -> int:
        return 2 * block_length
