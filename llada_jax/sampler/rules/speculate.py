"""The rule of Nemotron-Labs-Diffusion: a model drafts a block, and verifies it by itself."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from llada_jax.config import SamplerConfig
from llada_jax.sampler.candidates import Candidates
from llada_jax.sampler.canvas import STABLE, VISIBLE, Canvas
from llada_jax.sampler.rules.rule import Rescored, RevisingRule


class Speculate(RevisingRule, accept="speculate"):
    """Drafts a block in one forward. The next one, in which each token sees those before it alone,
    says what should follow each: drafts stand up to the first that it says otherwise, which gives
    way, and the next block begins there. So the tokens are those of one after another.
    """

    verifies = True
    rescore = "token"

    def accept(self, candidates: Candidates) -> Bool[Array, "B C"]:
        return candidates.open

    def stable(self, confidence: Float[Array, "B C"]) -> Bool[Array, "B C"]:
        """Returns true for all: only `revise` knows which of them are drafts."""
        return jnp.ones(confidence.shape, bool)

    def revise(self, canvas: Canvas, rescored: Rescored) -> Canvas:
        position, length = canvas.positions, canvas.tokens.shape[1]
        block_length = rescored.config.block_length
        start = canvas.block_start(block_length)[:, None]
        drafted = rescored.fresh & (position > start)
        last = rescored.at & (rescored.other(canvas) | rescored.ends)
        end = jnp.where(last, position, length).min(axis=1, keepdims=True)
        canvas = rescored.changed(canvas, rescored.at & (position == end))
        state = jnp.where(drafted, jnp.int8(VISIBLE), canvas.state)
        state = jnp.where(rescored.at & (position <= end), jnp.int8(STABLE), state)
        again = (rescored.at | rescored.fresh) & (position > end)
        canvas = canvas._replace(state=state).masked_again(again, rescored.config.mask_id)
        cut = (end < length)[:, 0]
        whole = drafted.any(axis=1) & ~canvas.masked.any(axis=1)
        block = canvas.block + whole.astype(jnp.int32) - cut.astype(jnp.int32)
        return canvas._replace(
            block=block,
            origin=jnp.where(cut, end[:, 0] - block * block_length, canvas.origin),
            settled=jnp.where(cut, jnp.minimum(canvas.settled, end[:, 0]), canvas.settled),
            block_step=jnp.where(cut, 0, canvas.block_step),
        )

    def block_steps(self, config: SamplerConfig) -> int:
        return 2 * config.block_length

    def may_end(self, canvas: Canvas, steady: Int[Array, " B"]) -> Bool[Array, " B"]:
        return ~(canvas.state == VISIBLE).any(axis=1)

    def frozen(
        self, finished: Bool[Array, "B L"], done: Bool[Array, " B"]
    ) -> Bool[Array, "B L"] | None:
        return None
