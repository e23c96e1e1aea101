"""A user's own rule in a step: what it remembers, asks of the head and is shown, and its decision.

A forward commits one token at the least, nothing outside the block changes, no position is masked
again more often than the rule allows, and a wrong result is one error that names the rule.
"""

from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from llada_jax.config import require
from llada_jax.sampler.candidates import Candidates, ranks
from llada_jax.sampler.canvas import STABLE, VISIBLE, Canvas, choose, put, take
from llada_jax.sampler.record import StepScores
from llada_jax.sampler.rules.own import Ask, Decision, Drafts, OwnRule, Seen, Sizes, State
from llada_jax.sampler.setup import Setup
from llada_jax.sampler.step_plan import Query, StepPlan
from llada_jax.types import Asked

_NEED = {"top_ids": "top_k", "top_logits": "top_k"}
"""By which need a rule is shown something, where that has another name."""


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


def asked_of(setup: Setup, canvas: Canvas, query: Query) -> Asked | None:
    """Returns what is asked of the head for the positions of a query, beside the scores; None:
    nothing. Raises ValueError where the rule asks in other shapes."""
    rule, memory = setup.own_rule, canvas.rule_state
    if setup.doubts and setup.measures:
        return Asked(listed=take(canvas.tokens, query.at % canvas.tokens.shape[1])[..., None])
    if rule is None or not rule.head_needs:
        return None
    length, batch = setup.config.block_length, canvas.tokens.shape[0]
    listed, added = _checked(rule, rule.ask(memory.state), (batch, length))
    if setup.needs("current"):  # the last one, to which nothing is added
        tokens = take(canvas.tokens, canvas.block_positions(length))[..., None]
        listed = tokens if listed is None else jnp.concatenate([listed, tokens], axis=-1)
        added = None if added is None else jnp.pad(added, ((0, 0), (0, 0), (0, 1)))
    offset = query.at - canvas.block_start(length)[:, None]
    inside = ((offset >= 0) & (offset < length))[..., None]

    def of_rows(array: Array | None, outside: int) -> Array | None:
        if array is None:
            return None
        return jnp.where(inside, take(array, offset), jnp.asarray(outside, array.dtype))

    return Asked(
        top_k=rule.top_k if setup.needs("top_k") else 0,
        listed=of_rows(listed, -1),
        added=of_rows(added, 0),
        previous=of_rows(memory.previous and memory.previous.hidden, 0),
    )


def _checked(rule: OwnRule, ask: Ask, block: tuple[int, int]) -> Ask:
    name = type(rule).__name__
    require(isinstance(ask, Ask), f"rule {name} asks {ask!r}; allowed: lj.Ask")
    if "listed" not in rule.needs:
        return Ask()
    listed, added = ask
    rule.require("listed", listed, jnp.integer, *block, None)
    if added is not None and listed is not None:
        rule.require("added", added, jnp.floating, *listed.shape)
        require(
            "divergence" not in rule.needs,
            f"rule {name} needs divergence and adds to logits; allowed: one of the two",
        )
    return ask


def to_block(
    values: Array, at: Int[Array, "B Q"], start: Int[Array, " B"], length: int
) -> Float[Array, "B C ..."]:
    """Returns what stands at positions `at`, [B, Q, ...], by position of a block; else zeros."""
    offset = at - start[:, None]
    return put(jnp.where((offset >= 0) & (offset < length), offset, length), values, length)


def seen_of(
    setup: Setup, canvas: Canvas, plan: StepPlan, candidates: Candidates, scores: StepScores
) -> Seen:
    """Returns what the rule is shown after a forward."""
    positions = canvas.block_positions(setup.config.block_length)
    alive = ~canvas.done[:, None] & (positions < canvas.end[:, None])
    said, tokens = candidates.scores, take(canvas.tokens, positions)
    known = {"entropy": said.entropy, "margin": said.margin, "hidden": scores.hidden}
    known |= _measured(setup, canvas, scores)
    if setup.needs("drafts"):
        known["drafts"] = _drafts(setup, canvas)
    needed = {name: value for name, value in known.items() if setup.needs(_NEED.get(name, name))}
    return Seen(
        position=positions,
        token=tokens,
        predicted=said.token,
        confidence=said.confidence,
        masked=candidates.open,
        committed=(take(canvas.state, positions) == VISIBLE) & alive,
        rescored=take(plan.query.rescored, positions) & alive,
        step=canvas.block_step,
        block_masks=canvas.block_masks,
        quota=candidates.quota,
        **needed,
    )


def _measured(setup: Setup, canvas: Canvas, scores: StepScores) -> dict[str, Any]:
    """Returns what the head measured, by its names in `Seen`."""
    if scores.measured is None:
        return {}
    found = scores.measured._asdict()
    listed, moved = found["listed"], found["divergence"]
    if setup.needs("current"):
        found["current"], found["listed"] = listed[..., -1] - found["log_sum_exp"], listed[..., :-1]
    if moved is not None:
        known = canvas.rule_state.previous.known
        found["divergence"] = jnp.where(known, moved, jnp.finfo(moved.dtype).max)
    return found


def _drafts(setup: Setup, canvas: Canvas) -> Drafts:
    blocks = canvas.blocks(setup.config.block_length)
    masked = canvas.masked & (blocks > canvas.block[:, None]) & ~canvas.done[:, None]
    latest = canvas.latest
    assert latest is not None
    return Drafts(masked & (latest.token >= 0), latest.token, latest.confidence)


def decide_by_own_rule(
    setup: Setup, canvas: Canvas, plan: StepPlan, candidates: Candidates, scores: StepScores
) -> Canvas:
    """Returns the canvas after what the rule decides of the current block, and of drafts."""
    rule, memory = cast(OwnRule, setup.rule), cast(RuleState, canvas.rule_state)
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
