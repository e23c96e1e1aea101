"""What a canvas may become: the states before each position, and the best text that agrees with it.

A position is fixed, and then has the class of its token; or free, and then any class, each at its
own value. Of a tail that is free and without values, the distance of a state says all.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from llada_jax.constraint.automaton import DEAD
from llada_jax.constraint.patterns import Measure


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Grammar:
    """The texts of some patterns.

    Attributes:
      class_of: The class of each id.
      transitions: The state after each class.
      distance: The fewest tokens until a text may end.
      sources, targets: Which states follow each other by any class; `DEAD` where there are fewer.
      start: The state at a text's begin.
      representative: An id of each class.
      single: Whether it is the only one, or as good as any.
      end_class: The class of ids that end a text.
      confidence: As a `Constraint` has it.
    """

    class_of: Int[Array, " V"]
    transitions: Int[Array, "P S G"]
    distance: Int[Array, "P S"]
    sources: Int[Array, "P E"]
    targets: Int[Array, "P E"]
    start: Int[Array, " P"]
    representative: Int[Array, " G"]
    single: Bool[Array, " G"]
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
    feasible: Bool[Array, " B"]
    allowed: Bool[Array, "B L G"] | None
    """Classes that a position may have, whatever stands there, where all other fixed ones stay."""


def position_values(
    grammar: Grammar,
    text: Placed,
    tokens: Int[Array, "B L"],
    free: Bool[Array, "B L"],
    values: Float[Array, "B L G"],
) -> Float[Array, "B L G"]:
    """Returns the value of each class at each position: -inf where it has another one."""
    classes = jnp.arange(grammar.n_classes, dtype=jnp.int32)
    own = classes == grammar.class_of[tokens][..., None]
    behind = jnp.arange(tokens.shape[1], dtype=jnp.int32) >= text.stop[:, None]
    values = jnp.where(free[..., None], values, jnp.where(own, 0.0, -jnp.inf))
    return jnp.where(behind[..., None] & (classes != grammar.end_class), -jnp.inf, values)


def reach(
    grammar: Grammar,
    text: Placed,
    values: Float[Array, "B L G"],
    fixed: Bool[Array, "B L"],
    weighed: Bool[Array, "B L"],
    rows: Bool[Array, " B"],
    *,
    alternatives: bool,
) -> Reach:
    """Returns the text of the highest sum of values, by dynamic programming from the canvas's end
    (Viterbi); exact, and O(L S G) for each row.

    Args:
      values: as `position_values` gives them.
      fixed: positions whose token stays.
      weighed: free positions with values; all classes of the others are worth 0.
      rows: of which the results count.
      alternatives: whether `allowed` is wanted.
    """
    length, live = values.shape[1], rows[:, None]
    position = jnp.arange(length, dtype=jnp.int32)
    inside = live & (position >= text.begin[:, None])
    first = jnp.where(inside & ~fixed, position, length).min()
    last = jnp.where(inside & (fixed | weighed), position + 1, 0).max()
    first = jnp.minimum(first, last)
    table = _Table(grammar, text)
    best = table.suffixes(values, first, last)

    def prefix(i, state):
        after = table.step(state, values[:, i].argmax(axis=-1))
        return jnp.where(i >= text.begin, after, state)

    batch = values.shape[0]
    state = grammar.start[text.pattern]
    state = jax.lax.fori_loop(text.begin.min(), first, prefix, state)
    feasible = jnp.take_along_axis(best[first], state[:, None], axis=1)[:, 0] > -jnp.inf

    def trace(i, carry):
        state, classes = carry
        worth = values[:, i] + table.after(best[i + 1], state)
        chosen = worth.argmax(axis=-1).astype(jnp.int32)
        after = jnp.where(i >= text.begin, table.step(state, chosen), state)
        return after, classes.at[:, i].set(chosen)

    nothing = jnp.zeros((batch, length), jnp.int32)
    _, classes = jax.lax.fori_loop(first, last, trace, (state, nothing))
    allowed = None
    if alternatives:
        ends = jnp.arange(grammar.n_classes, dtype=jnp.int32) == grammar.end_class
        allowed = table.allowed(state, best, values, fixed, first, last)
        allowed &= ends | (position < text.stop[:, None])[..., None]
    return Reach(classes, feasible, allowed)


class _Table:
    """The transitions of a batch, of which all rows may share one pattern."""

    def __init__(self, grammar: Grammar, text: Placed) -> None:
        self.text = text
        shared = grammar.transitions.shape[0] == 1
        self.axis = None if shared else 0
        chosen = 0 if shared else text.pattern
        self.transitions = grammar.transitions[chosen]
        self.distance = grammar.distance[chosen]
        self.sources, self.targets = grammar.sources[chosen], grammar.targets[chosen]

    def step(self, state: Int[Array, " B"], chosen: Int[Array, " B"]) -> Int[Array, " B"]:
        """Returns the states after a class in each row."""
        return jax.vmap(lambda table, s, g: table[s, g], (self.axis, 0, 0))(
            self.transitions, state, chosen
        )

    def after(self, suffix: Float[Array, "B S"], state: Int[Array, " B"]) -> Float[Array, "B G"]:
        """Returns what follows each class at its best, from one state of each row."""
        return jax.vmap(lambda table, best, s: best[table[s]], (self.axis, 0, 0))(
            self.transitions, suffix, state
        )

    def suffixes(
        self, values: Float[Array, "B L G"], first: Int[Array, ""], last: Int[Array, ""]
    ) -> Float[Array, "L B S"]:
        """Returns the best sum of values from each position on, from each state; -inf where no text
        ends. Positions from `last` on are free and worth nothing."""
        text, length = self.text, values.shape[1]
        left = jnp.maximum(text.stop - last, 0)
        tail = jnp.where(self.distance <= left[:, None], 0.0, -jnp.inf).astype(values.dtype)
        found = jnp.zeros((length + 1, *tail.shape), values.dtype).at[last].set(tail)

        def better(table, suffix, here):
            return (here + suffix[table]).max(axis=-1)

        def back(k, carry):
            suffix, found = carry
            i = last - 1 - k
            before = jax.vmap(better, (self.axis, 0, 0))(self.transitions, suffix, values[:, i])
            before = jnp.where((i >= text.begin)[:, None], before, suffix)
            return before, found.at[i].set(before)

        return jax.lax.fori_loop(0, last - first, back, (tail, found))[1]

    def allowed(
        self,
        state: Int[Array, " B"],
        best: Float[Array, "L B S"],
        values: Float[Array, "B L G"],
        fixed: Bool[Array, "B L"],
        first: Int[Array, ""],
        last: Int[Array, ""],
    ) -> Bool[Array, "B L G"]:
        """Returns the classes that lead from a state before a position to one behind it, from which
        a text ends."""
        n_states, text = self.transitions.shape[-2], self.text

        def leads(table, before, suffix):
            return (before[:, None] & (suffix > -jnp.inf)[table]).any(axis=0)

        def onward(table, sources, targets, before, chosen, is_fixed):
            nowhere = jnp.zeros(n_states, bool)
            by_one = nowhere.at[table[:, chosen]].max(before)
            by_any = nowhere.at[targets].max(before[sources])
            return jnp.where(is_fixed, by_one, by_any).at[DEAD].set(False)

        def forth(i, carry):
            before, allowed = carry
            here = jax.vmap(leads, (self.axis, 0, 0))(self.transitions, before, best[i + 1])
            axes = (self.axis, self.axis, self.axis, 0, 0, 0)
            chosen = values[:, i].argmax(axis=-1)
            beyond = jax.vmap(onward, axes)(
                self.transitions, self.sources, self.targets, before, chosen, fixed[:, i]
            )
            beyond = jnp.where((i >= text.begin)[:, None], beyond, before)
            return beyond, allowed.at[:, i].set(here)

        before = jnp.arange(n_states, dtype=jnp.int32) == state[:, None]
        nothing = jnp.zeros(values.shape, bool)
        return jax.lax.fori_loop(first, last, forth, (before, nothing))[1]
