"""What a forward says of the tokens that stand on the canvas, whichever it prefers there."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from llada_jax.types import Asked, HeadOut


def asked_of_standing(tokens: Int[Array, "B Q"]) -> Asked:
    """Returns what has the head measure these tokens, one of each row."""
    return Asked(listed=tokens[..., None])


def standing_probability(head: HeadOut) -> Float[Array, "B Q"]:
    """Returns the probability of the token that stands at each row's position.

    It is exact where the head has measured it. Else it is the most that can be known of a token
    that is not the preferred one: that has at most what the preferred one has, and what it leaves.
    """
    measured, best = head.measured, head.scores.confidence
    if measured is None or measured.listed is None:
        return jnp.minimum(best, 1 - best)
    return jnp.exp(measured.listed[..., -1] - measured.log_sum_exp)
