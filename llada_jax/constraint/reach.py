"""What a canvas may become: the states before each position, and the best text that agrees with it.

A position is fixed, and then has the class of its token; or free, and then any class, each at its
own value. Of a tail that is free and without values, the distance of a state says all.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from llada_jax.constraint.automaton import DEAD
from llada_jax.constraint.patterns import Measure


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Grammar:
    """The texts of P patterns."""

    class_of: Int[Array, " V"]
    transitions: Int[Array, "P S G"]  # the state after each class
    distance: Int[Array, "P S"]  # the fewest tokens until a text may end
    sources: Int[Array, "P E"]  # these states, and
    targets: Int[Array, "P E"]  # those that follow them by any class; `DEAD` where there are fewer
    start: Int[Array, " P"]
    representative: Int[Array, " G"]  # an id of each class
    single: Bool[Array, " G"]  # whether it is the only one, or as good as any
    end_class: Int[Array, ""]
    confidence: Measure = field(default="raw", metadata={"static": True})

    @property
    def n_classes(self) -> int:
        return self.transitions.shape[2]


class Placed(NamedTuple):
    """Which pattern the text of each row has, and where it lies on the canvas."""

    pattern: Int[Array, " B"]
    begin: Int[Array, " B"]
    stop: Int[Array, " B"]  # one past its last position; what is behind it ends texts, too


class Reach(NamedTuple):
    """The best text of each row, in classes, and what else each position might be."""

    classes: Int[Array, "B L"]
    allowed: Bool[Array, "B L G"] | None
    """Classes that a position may have, whatever stands there, where all other fixed ones stay."""


def reach(
    grammar: Grammar,
    text: Placed,
    tokens: Int[Array, "B L"],
    fixed: Bool[Array, "B L"],
    values: Float[Array, "B L G"],
    weighed: Bool[Array, "B L"],
    rows: Bool[Array, " B"],
    *,
    alternatives: bool,
) -> Reach:
    """Returns the text of the highest sum of values, by dynamic programming from the canvas's end
    (Viterbi); exact, and O(L S G) for each row.

    Args:
      fixed: positions whose token stays.
      values: of each class, where a position is free.
      weighed: free positions with values; all classes of the others are worth 0.
      rows: of which the results count.
      alternatives: whether `allowed` is wanted.
    """
    length = values.shape[1]
    position = jnp.arange(length, dtype=jnp.int32)[None, :]
    inside = rows[:, None] & (position >= text.begin[:, None])
    last = jnp.where(inside & (fixed | weighed), position + 1, 0).max()
    first = jnp.minimum(jnp.where(inside & ~fixed, position, length).min(), last)
    shared = grammar.transitions.shape[0] == 1  # one pattern for all rows
    patterns = (grammar.transitions, grammar.distance, grammar.sources, grammar.targets)
    pattern = tuple(each[0 if shared else text.pattern] for each in patterns)
    start, span = grammar.start[text.pattern], (text.begin.min(), first, last)
    classes = jnp.arange(grammar.n_classes, dtype=jnp.int32)[None, None, :]
    own, ends = classes == grammar.class_of[tokens][..., None], classes == grammar.end_class
    values = jnp.where(fixed[..., None], jnp.where(own, 0.0, -jnp.inf), values)
    behind = (position >= text.stop[:, None])[..., None]
    values = jnp.where(behind & ~ends, -jnp.inf, values)
    of_row = partial(_reach_of_row, span=span, ends=ends[0] if alternatives else None)
    axes = (None if shared else 0, 0, 0, 0, 0, 0)
    return jax.vmap(of_row, axes)(pattern, start, text.begin, text.stop, values, fixed)


def _reach_of_row(pattern, start, begin, stop, values, fixed, span, ends) -> Reach:
    """Is `reach` of one row: positions from `span[0]` on are fixed, from `span[1]` on may be free,
    and from `span[2]` on are free and worth nothing; `ends` marks the class of ends where
    alternatives are wanted."""
    table, distance, sources, targets = pattern
    (begins, first, last), length = span, len(values)

    # The best sum of values from each position on, from each state; -inf where no text ends.
    def back(k, carry):
        suffix, best = carry
        i = last - 1 - k
        before = jnp.where(i >= begin, (values[i][None, :] + suffix[table]).max(axis=-1), suffix)
        return before, best.at[i].set(before)

    left = jnp.maximum(stop - last, 0)
    tail = jnp.where(distance <= left, 0.0, -jnp.inf).astype(values.dtype)
    best = jnp.zeros((length + 1, len(tail)), values.dtype).at[last].set(tail)
    _, best = jax.lax.fori_loop(0, last - first, back, (tail, best))

    def prefix(i, state):
        return jnp.where(i >= begin, table[state, values[i].argmax()], state)

    def trace(i, carry):
        state, classes = carry
        chosen = (values[i] + best[i + 1][table[state]]).argmax().astype(jnp.int32)
        return jnp.where(i >= begin, table[state, chosen], state), classes.at[i].set(chosen)

    state = jax.lax.fori_loop(begins, first, prefix, start)
    nothing = jnp.zeros(length, jnp.int32)
    _, classes = jax.lax.fori_loop(first, last, trace, (state, nothing))
    if ends is None:
        return Reach(classes, None)

    # Classes that lead from a state before a position to one behind it, from which a text ends.
    def forth(i, carry):
        before, allowed = carry
        here = (before[:, None] & (best[i + 1] > -jnp.inf)[table]).any(axis=0)
        by_one = nowhere.at[table[:, values[i].argmax()]].max(before)
        by_any = nowhere.at[targets].max(before[sources])
        beyond = jnp.where(fixed[i], by_one, by_any).at[DEAD].set(False)
        return jnp.where(i >= begin, beyond, before), allowed.at[i].set(here)

    nowhere = jnp.zeros(len(tail), bool)
    before = nowhere.at[state].set(True)
    nothing = jnp.zeros(values.shape, bool)
    _, allowed = jax.lax.fori_loop(first, last, forth, (before, nothing))
    return Reach(classes, allowed & (ends | (jnp.arange(length) < stop)[:, None]))
