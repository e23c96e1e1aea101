"""The rule of Nemotron-Labs-Diffusion: a model drafts a block, and verifies it by itself."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from llada_jax.sampler.rules.rule import Decision, Observation, Revision, Rule, RuleState, rule


@rule(name="speculate")
class Speculate(Rule):
    """Drafts a block in one forward, and verifies it in the next one, which sees it causally.

    A verified token is kept as long as it and all before it are what the model would generate one
    after another. The first one that is not gives way to what the model prefers there, and the next
    block starts behind it. So the tokens are those of autoregressive decoding.
    """

    needs = frozenset({"probability"})
    revises = True
    verifies = True
    waits = True
    max_remasks = None
    rescore = "token"

    def accept(self, seen: Observation) -> Bool[Array, "B C"]:
        return seen.masked

    def is_stable(self, confidence: Float[Array, "*shape"]) -> Bool[Array, "*shape"]:
        return jnp.ones(confidence.shape, bool)  # `decide` tells drafts from verified tokens

    def decide(self, seen: Observation, state: RuleState) -> tuple[Decision, RuleState]:
        canvas = seen.canvas
        position, length = canvas.state.positions, canvas.state.tokens.shape[1]
        last = canvas.rescored & (canvas.differs | canvas.ends)
        end = jnp.where(last, position, length).min(axis=1, keepdims=True)
        replace = canvas.rescored & (position == end)
        # A model whose finished tokens predict the next one has verified a block's first token.
        first = seen.position == canvas.state.block_start(seen.block_length)[:, None]
        decision = Decision(
            commit=seen.masked,
            stable=first,
            canvas=Revision(
                replace=replace,
                stable=canvas.rescored & (position <= end),
                remask=(canvas.rescored | canvas.state.masked) & (position > end),
                confidence=canvas.confidence_after(replace),
                restart=end[:, 0],
            ),
        )
        return decision, state

    def max_block_steps(self, block_length: int) -> int:
        return 2 * block_length
