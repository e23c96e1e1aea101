"""What is kept in the canvas for a user's own rule."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from llada_jax.config import require
from llada_jax.sampler.canvas import Canvas
from llada_jax.sampler.record import StepScores
from llada_jax.sampler.rules.own import Sizes, State
from llada_jax.sampler.setup import Setup


class Previous(NamedTuple):
    """States of the positions of a block when they were last scored."""

    hidden: Float[Array, "B C D"]
    known: Bool[Array, "B C"]


class RuleState(NamedTuple):
    """What is kept for a user's rule in the canvas."""

    state: State
    at_start: State  # as `init` made it
    previous: Previous | None  # where the rule needs divergences


def new_state(setup: Setup, batch: int, length: int) -> RuleState | None:
    """Returns the state of a user's rule; None for others. Raises ValueError for other shapes."""
    rule = setup.own_rule
    if rule is None:
        return None
    sizes = Sizes(batch, setup.config.block_length, length, setup.model.vocab_size)
    state = rule.init(sizes)
    name = type(rule).__name__
    require(isinstance(state, State), f"rule {name}: init gives {state!r}; allowed: lj.State")
    for leaf in jax.tree.leaves(state):
        shape = np.shape(leaf)
        require(
            shape[:1] == (batch,),
            f"rule {name}: init gives an array of shape {shape}; allowed: a first axis of the "
            f"batch ({batch})",
        )
    state = jax.tree.map(jnp.array, state)  # a copy of each: loops donate them
    previous = None
    if setup.needs("divergence"):
        hidden = jnp.zeros((batch, sizes.block, setup.model.width), jnp.float32)
        previous = Previous(hidden, jnp.zeros(hidden.shape[:2], bool))
    return RuleState(state, jax.tree.map(jnp.copy, state), previous)


def remembered(
    memory: RuleState, state: State, scored: Bool[Array, "B C"], scores: StepScores
) -> RuleState:
    """Returns what is kept after a decision: the rule's new state, and the states that scored."""
    previous = memory.previous
    if previous is not None:
        assert scores.hidden is not None
        latest = scores.hidden.astype(jnp.float32)
        hidden = jnp.where(scored[..., None], latest, previous.hidden)
        previous = Previous(hidden, previous.known | scored)
    return memory._replace(state=state, previous=previous)


def next_for_own_rule(canvas: Canvas, moved: Bool[Array, " B"]) -> Canvas:
    """Returns the canvas whose rule forgets what it knew of a block, where rows have another."""
    memory: RuleState | None = canvas.rule_state
    if memory is None:
        return canvas
    block = jax.tree.map(partial(choose, moved), memory.at_start.block, memory.state.block)
    state, previous = memory.state._replace(block=block), memory.previous
    if previous is not None:
        previous = previous._replace(known=previous.known & ~moved[:, None])
    return canvas._replace(rule_state=memory._replace(state=state, previous=previous))


def choose(where: Bool[Array, "*leading"], one: Array, other: Array) -> Array:
    """Returns one array in some places of its leading axes, and the other in the rest."""
    return jnp.where(where.reshape(*where.shape, *[1] * (one.ndim - where.ndim)), one, other)
