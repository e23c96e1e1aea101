"""The decision of a user's own rule, within what is guaranteed of every rule.

A forward commits one token at the least, nothing outside the block changes, no position is masked
again more often than the rule allows, and a wrong result is one error that names the rule.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from llada_jax.config import require
from llada_jax.sampler.candidates import Candidates, ranks
from llada_jax.sampler.canvas import STABLE, VISIBLE, Canvas, choose, put, take
from llada_jax.sampler.own_needs import RuleState, remembered, seen_of
from llada_jax.sampler.record import StepScores
from llada_jax.sampler.rules.own import Decision, OwnRule, Seen, State
from llada_jax.sampler.setup import Setup
from llada_jax.sampler.step_plan import StepPlan


def decide_by_own_rule(
    setup: Setup,
    rule: OwnRule,
    canvas: Canvas,
    plan: StepPlan,
    candidates: Candidates,
    scores: StepScores,
) -> Canvas:
    """Returns the canvas after what the rule decides of the current block, and of drafts."""
    memory: RuleState = canvas.rule_state
    seen = seen_of(setup, canvas, plan, candidates, scores)
    positions = seen.position
    decision, state = rule.decide(seen, memory.state)
    full: Any = _completed(rule, decision, seen, canvas.tokens.shape)
    _require_same_state(rule, memory.state, state)
    keep = partial(choose, canvas.done)
    state = jax.tree.map(keep, memory.state, state)
    memory = remembered(memory, state, candidates.scores.token >= 0, scores)

    remask = replace = jnp.zeros_like(seen.committed)
    if canvas.remasks is not None:
        remasks = take(canvas.remasks, positions)
        remask = seen.committed & full.remask & (remasks < rule.most_remasks)
        replace = seen.committed & full.replace & ~remask
    wanted = seen.masked & full.commit
    best = ranks(candidates.priority, candidates.open) == 0
    commits = jnp.where(wanted.any(axis=1, keepdims=True), wanted, seen.masked & best)

    token = jnp.where(full.token >= 0, full.token, seen.predicted)
    final = jnp.int8(VISIBLE if rule.revises else STABLE)
    states = jnp.where(commits, final, take(canvas.state, positions))
    write = commits | replace
    canvas = canvas.committed(positions, token, full.confidence, write, states, setup.mask_id)
    canvas = canvas.masked_again(put(positions, remask, canvas.tokens.shape[1]), setup.mask_id)
    canvas = canvas._replace(rule_state=memory)
    if seen.drafts is not None:
        everywhere = jnp.broadcast_to(canvas.positions, canvas.tokens.shape)
        ahead, drafts = seen.drafts.masked & full.ahead, seen.drafts
        canvas = canvas.committed(
            everywhere, drafts.predicted, drafts.confidence, ahead, final, setup.mask_id
        )
    if setup.config.eos_id is None:  # then no rule may end a row
        return canvas
    left = canvas.masked & (full.end & ~canvas.done)[:, None]
    return canvas.ended(left, setup.config.eos_id)


def require_numbers(rule: Any, canvas: Canvas) -> None:
    """Raises ValueError where a user's rule has come to NaN."""
    if canvas.rule_state is None:
        return
    leaves = [*jax.tree.leaves(canvas.rule_state.state), canvas.confidence]
    floats = (leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating))
    require(
        not any(bool(jnp.isnan(leaf).any()) for leaf in floats),
        f"rule {type(rule).__name__} has NaN in its state or confidences; allowed: numbers",
    )


def _completed(rule: OwnRule, decision: Decision, seen: Seen, canvas: tuple[int, ...]) -> Decision:
    """Returns the decision with all its parts. Raises ValueError for other shapes and types."""
    require(
        isinstance(decision, Decision),
        f"rule {type(rule).__name__} decides {decision!r}; allowed: lj.Decision",
    )
    block, done = seen.masked.shape, seen.step.shape
    kinds = {"token": jnp.integer, "confidence": jnp.floating}
    shapes = {"end": done, "ahead": canvas}
    given = {"token": seen.predicted, "confidence": seen.confidence}
    for part, value in decision._asdict().items():
        shape = shapes.get(part, block)
        if value is None:
            given.setdefault(part, jnp.zeros(shape, bool))
        else:
            rule.require(part, value, kinds.get(part, jnp.bool_), *shape)
            given[part] = value
    return Decision(**given)


def _require_same_state(rule: OwnRule, old: State, new: State) -> None:
    def form(state: Any) -> Any:
        return jax.tree.map(lambda leaf: (jnp.shape(leaf), jnp.asarray(leaf).dtype), state)

    require(
        form(old) == form(new),
        f"rule {type(rule).__name__}: its state was {form(old)} and is {form(new)}; allowed: the "
        "same shapes and types after each step",
    )
