"""Finds the texts of a pattern that agree with a canvas: the best one, and each position's options.

A canvas has fixed positions, which keep their token, and free ones, at which each class of tokens
has a value (its log-probability, for example). Dynamic programming over the states of the automaton
gives the text with the highest sum of values. After the last position that is fixed or has values,
only the minimum distance to an end of the text matters, so those positions cost nothing.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from llada_jax.constraint.automaton import DEAD
from llada_jax.constraint.patterns import Measure


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Grammar:
    """The merged automata of P patterns, with S states, G classes and E pairs of states."""

    class_of: Int[Array, " V"]
    transitions: Int[Array, "P S G"]  # next state by state and class
    distance: Int[Array, "P S"]  # minimum number of further tokens before a text may end
    sources: Int[Array, "P E"]  # pairs of successive states, for any class: the first states
    targets: Int[Array, "P E"]  # and the second ones; `DEAD` as padding
    start: Int[Array, " P"]
    representative: Int[Array, " G"]  # an id of each class
    single: Bool[Array, " G"]  # whether the class has one id, or it does not matter which
    end_class: Int[Array, ""]
    confidence: Measure = field(default="raw", metadata={"static": True})

    @property
    def n_classes(self) -> int:
        return self.transitions.shape[2]

    def without_tables(self) -> "Grammar":
        """Returns the classes alone, whose sizes do not depend on the numbers of patterns, states
        and pairs."""
        none = {name: np.zeros((0, 0), np.int32) for name in ("distance", "sources", "targets")}
        none |= {"transitions": np.zeros((0, 0, self.n_classes), np.int32)}
        return replace(self, start=np.zeros(0, np.int32), **none)


class TextSpans(NamedTuple):
    """The pattern of each row's text, and its span on the canvas."""

    pattern: Int[Array, " B"]
    begin: Int[Array, " B"]
    stop: Int[Array, " B"]  # end of the span (exclusive); positions after it hold end tokens


class Reach(NamedTuple):
    """The result of `reach`."""

    classes: Int[Array, "B L"]
    """The best text of each row, in classes."""
    allowed: Bool[Array, "B L G"] | None
    """Classes possible at each position, given all other fixed positions but not its own token."""


def reach(
    grammar: Grammar,
    text: TextSpans,
    tokens: Int[Array, "B L"],
    fixed: Bool[Array, "B L"],
    values: Float[Array, "B L G"],
    weighed: Bool[Array, "B L"],
    rows: Bool[Array, " B"],
    *,
    alternatives: bool,
) -> Reach:
    """Returns the text with the highest sum of values, by dynamic programming from the end of the
    canvas (Viterbi): exact, and O(L S G) for each row.

    Args:
      fixed: Positions that keep their token.
      values: Value of each class at free positions.
      weighed: Free positions at which `values` count; at others every class is worth 0.
      rows: Rows whose results are needed; others do not extend the range of positions.
      alternatives: Whether to compute `allowed`.
    """
    length = values.shape[1]
    position = jnp.arange(length, dtype=jnp.int32)[None, :]
    inside = rows[:, None] & (position >= text.begin[:, None])
    last = jnp.where(inside & (fixed | weighed), position + 1, 0).max()
    first = jnp.minimum(jnp.where(inside & ~fixed, position, length).min(), last)
    shared = grammar.transitions.shape[0] == 1  # one pattern for all rows
    tables = (grammar.transitions, grammar.distance, grammar.sources, grammar.targets)
    tables = tuple(table[0 if shared else text.pattern] for table in tables)
    start, span = grammar.start[text.pattern], (text.begin.min(), first, last)
    classes = jnp.arange(grammar.n_classes, dtype=jnp.int32)[None, None, :]
    is_token, is_end = classes == grammar.class_of[tokens][..., None], classes == grammar.end_class
    values = jnp.where(fixed[..., None], jnp.where(is_token, 0.0, -jnp.inf), values)
    is_after = (position >= text.stop[:, None])[..., None]
    values = jnp.where(is_after & ~is_end, -jnp.inf, values)
    of_row = partial(_reach_of_row, span=span, is_end=is_end[0] if alternatives else None)
    axes = (None if shared else 0, 0, 0, 0, 0, 0)
    return jax.vmap(of_row, axes)(tables, start, text.begin, text.stop, values, fixed)


def _reach_of_row(tables, start, begin, stop, values, fixed, span, is_end) -> Reach:
    """Computes `reach` for one row. Positions from `span[0]` to `span[1]` are fixed, those from
    `span[2]` on are free and without values. Alternatives are computed unless `is_end`, which marks
    the class of end tokens, is None."""
    table, distance, sources, targets = tables
    (begins, first, last), length = span, len(values)

    # Backward: the best sum of values from each position and state on; -inf if no text ends.
    def back(k, carry):
        suffix, best = carry
        i = last - 1 - k
        before = jnp.where(i >= begin, (values[i][None, :] + suffix[table]).max(axis=-1), suffix)
        return before, best.at[i].set(before)

    left = jnp.maximum(stop - last, 0)
    tail = jnp.where(distance <= left, 0.0, -jnp.inf).astype(values.dtype)
    best = jnp.zeros((length + 1, len(tail)), values.dtype).at[last].set(tail)
    _, best = jax.lax.fori_loop(0, last - first, back, (tail, best))

    # Through the fixed prefix, in which only the class of the token has a finite value.
    def prefix(i, state):
        return jnp.where(i >= begin, table[state, values[i].argmax()], state)

    # Forward along the best text.
    def trace(i, carry):
        state, classes = carry
        chosen = (values[i] + best[i + 1][table[state]]).argmax().astype(jnp.int32)
        return jnp.where(i >= begin, table[state, chosen], state), classes.at[i].set(chosen)

    state = jax.lax.fori_loop(begins, first, prefix, start)
    nothing = jnp.zeros(length, jnp.int32)
    _, classes = jax.lax.fori_loop(first, last, trace, (state, nothing))
    if is_end is None:
        return Reach(classes, None)

    # Forward with the set of possible states: a class is allowed if it leads from one of them to a
    # state from which a text ends.
    def forth(i, carry):
        before, allowed = carry
        here = (before[:, None] & (best[i + 1] > -jnp.inf)[table]).any(axis=0)
        by_token = no_state.at[table[:, values[i].argmax()]].max(before)
        by_any = no_state.at[targets].max(before[sources])
        after = jnp.where(fixed[i], by_token, by_any).at[DEAD].set(False)
        return jnp.where(i >= begin, after, before), allowed.at[i].set(here)

    no_state = jnp.zeros(len(tail), bool)
    before = no_state.at[state].set(True)
    nothing = jnp.zeros(values.shape, bool)
    _, allowed = jax.lax.fori_loop(first, last, forth, (before, nothing))
    return Reach(classes, allowed & (is_end | (jnp.arange(length) < stop)[:, None]))
