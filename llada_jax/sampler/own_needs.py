"""What is asked of the head for a user's own rule, what it remembers, and what it is shown."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from llada_jax.config import require
from llada_jax.sampler.candidates import Candidates
from llada_jax.sampler.canvas import (
    MASKED,
    VISIBLE,
    Canvas,
    Hypothesis,
    block_of,
    block_start,
    commit,
    in_span,
    positions_of,
    take,
)
from llada_jax.sampler.commit import block_positions
from llada_jax.sampler.record import StepScores
from llada_jax.sampler.rules.own import Ask, Drafts, OwnRule, Seen, Sizes, State, Tried
from llada_jax.sampler.setup import Setup
from llada_jax.sampler.step_plan import Query, StepPlan
from llada_jax.types import Asked


class Previous(NamedTuple):
    """States of the positions of a block when they were last scored."""

    hidden: Float[Array, "B C D"]
    known: Bool[Array, "B C"]


class RuleState(NamedTuple):
    """What is kept for a user's rule in the canvas."""

    state: State
    remasks: Int[Array, "B L"]  # how often each position was masked again
    at_start: State  # as `init` made it
    previous: Previous | None  # where the rule needs divergences


def new_state(setup: Setup, sizes: Sizes) -> RuleState | None:
    """Returns the state of a user's rule; None for others. Raises ValueError for other shapes."""
    rule = setup.own_rule
    if rule is None:
        return None
    state = rule.init(sizes)
    name = type(rule).__name__
    require(isinstance(state, State), f"rule {name}: init gives {state!r}; allowed: lj.State")
    for leaf in jax.tree.leaves(state):
        shape = np.shape(leaf)
        require(
            shape[:1] == (sizes.batch,),
            f"rule {name}: init gives an array of shape {shape}; allowed: a first axis of the "
            f"batch ({sizes.batch})",
        )
    state = jax.tree.map(jnp.asarray, state)
    remasks = jnp.zeros((sizes.batch, sizes.canvas), jnp.int32)
    previous = None
    if setup.needs("divergence"):
        block = (sizes.batch, sizes.block)
        hidden = jnp.zeros((*block, setup.model.width), jnp.float32)
        previous = Previous(hidden, jnp.zeros(block, bool))
    return RuleState(state, remasks, jax.tree.map(jnp.copy, state), previous)


def asked_of(setup: Setup, canvas: Canvas, query: Query) -> Asked | None:
    """Returns what is asked of the head for the positions of a query, beside the scores; None:
    nothing. Raises ValueError where the rule asks in other shapes."""
    rule, memory = setup.own_rule, canvas.rule_state
    if rule is None or not rule.head_needs:
        return None
    shape = (canvas.tokens.shape[0], setup.config.block_length)
    ask = _checked(rule, rule.ask(memory.state), shape, setup.model.vocab_size)
    tokens, none = take(canvas.tokens, block_positions(setup, canvas))[..., None], jnp.int32(-1)
    listed = [each for each in (ask.listed,) if each is not None]
    listed += [tokens] if setup.needs("current") else []  # the last one, to which nothing is added
    added = ask.added
    if added is not None and setup.needs("current"):
        added = jnp.pad(added, ((0, 0), (0, 0), (0, 1)))

    offset = query.at - block_start(canvas, shape[1])[:, None]

    def of_rows(array: Array, outside: Array) -> Array:
        inside = ((offset >= 0) & (offset < shape[1]))[..., None]
        return jnp.where(inside, take(array, offset), outside)

    return Asked(
        top_k=rule.top_k if setup.needs("top_k") else 0,
        n_classes=rule.n_classes if setup.needs("classes") else 0,
        listed=of_rows(jnp.concatenate(listed, axis=-1), none) if listed else None,
        added=None if added is None else of_rows(added, jnp.zeros((), added.dtype)),
        class_of=ask.class_of,
        previous=memory.previous and of_rows(memory.previous.hidden, jnp.float32(0)),
    )


def _checked(rule: OwnRule, ask: Ask, shape: tuple[int, int], vocab: int) -> Ask:
    name, given = type(rule).__name__, np.shape(ask.listed)
    require(isinstance(ask, Ask), f"rule {name} asks {ask!r}; allowed: lj.Ask")
    for part, need in (("listed", "listed"), ("added", "listed"), ("class_of", "classes")):
        value = getattr(ask, part)
        wanted = need in rule.needs and (part != "added" or value is not None)
        require(
            (value is not None) == wanted,
            f"rule {name}: ask gives {'a' if value is not None else 'no'} {part}; allowed: "
            f"{part} where the rule needs {need!r}, and only there",
        )
    require(
        ask.listed is None or (given[:2] == shape and len(given) == 3),
        f"rule {name}: listed has shape {given}; allowed: {(*shape, 'K')}",
    )
    require(
        ask.added is None or np.shape(ask.added) == given,
        f"rule {name}: added has shape {np.shape(ask.added)}; allowed: that of listed {given}",
    )
    require(
        ask.added is None or "divergence" not in rule.needs,
        f"rule {name} needs divergence and adds to logits; allowed: one of the two",
    )
    require(
        ask.class_of is None or (np.shape(ask.class_of) == (vocab,) and rule.n_classes > 0),
        f"rule {name}: class_of has shape {np.shape(ask.class_of)} and n_classes is "
        f"{rule.n_classes}; allowed: {(vocab,)}, and 1 or more classes",
    )
    return ask


def to_block(
    values: Array, at: Int[Array, "B Q"], start: Int[Array, " B"], length: int
) -> Float[Array, "B C ..."]:
    """Returns what stands at positions `at`, [B, Q, ...], by position of a block; else zeros."""
    offset = at - start[:, None]
    slots = jnp.where((offset >= 0) & (offset < length), offset, length)
    batch = jnp.arange(at.shape[0])[:, None]
    empty = jnp.zeros((at.shape[0], length, *values.shape[2:]), values.dtype)
    return empty.at[batch, slots].set(values, mode="drop")


def seen_of(
    setup: Setup, canvas: Canvas, plan: StepPlan, candidates: Candidates, scores: StepScores
) -> Seen:
    """Returns what the rule is shown after a forward."""
    positions = block_positions(setup, canvas)
    alive = ~canvas.done[:, None] & (positions < canvas.end[:, None])
    said, tokens = candidates.scores, take(canvas.tokens, positions)
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
        entropy=said.entropy if setup.needs("entropy") else None,
        margin=said.margin if setup.needs("margin") else None,
        hidden=scores.hidden if setup.needs("hidden") else None,
        drafts=_drafts(setup, canvas) if setup.needs("drafts") else None,
        tried=None
        if not setup.rule.branches
        else Tried(take(scores.ahead.token, positions), take(scores.ahead.confidence, positions)),
        **_measured(setup, canvas, scores),
    )


def _measured(setup: Setup, canvas: Canvas, scores: StepScores) -> dict[str, Array | None]:
    """Returns what the head measured, by its names in `Seen`."""
    if scores.measured is None:
        return {}
    found = scores.measured._asdict()
    log_sum_exp, listed, moved = (
        found.pop(name) for name in ("log_sum_exp", "listed", "divergence")
    )
    if setup.needs("log_sum_exp"):
        found["log_sum_exp"] = log_sum_exp
    if setup.needs("current"):
        found["current"], listed = listed[..., -1] - log_sum_exp, listed[..., :-1]
    if setup.needs("listed"):
        found["listed"] = listed
    if moved is not None:
        known = canvas.rule_state.previous.known
        found["divergence"] = jnp.where(known, moved, jnp.finfo(moved.dtype).max)
    return found


def _drafts(setup: Setup, canvas: Canvas) -> Drafts:
    blocks = block_of(canvas, positions_of(canvas)[None], setup.config.block_length)
    masked = (canvas.state == MASKED) & (blocks > canvas.block[:, None]) & ~canvas.done[:, None]
    latest = canvas.latest
    return Drafts(masked & (latest.token >= 0), latest.token, latest.confidence)


def remembered(
    memory: RuleState, state: State, scored: Bool[Array, "B C"], scores: StepScores
) -> RuleState:
    """Returns what is kept after a decision: the rule's new state, and the states that scored."""
    previous = memory.previous
    if previous is not None:
        assert scores.hidden is not None
        hidden = jnp.where(scored[..., None], scores.hidden, previous.hidden)
        previous = Previous(hidden.astype(jnp.float32), previous.known | scored)
    return memory._replace(state=state, previous=previous)


def next_for_own_rule(setup: Setup, canvas: Canvas, moved: Bool[Array, " B"]) -> Canvas:
    """Returns the canvas whose rule forgets what it knew of a block, where rows have another, and
    says what its branch is."""
    memory: RuleState | None = canvas.rule_state
    if memory is None:
        return canvas
    block = jax.tree.map(partial(choose, moved), memory.at_start.block, memory.state.block)
    state, previous = memory.state._replace(block=block), memory.previous
    if previous is not None:
        previous = previous._replace(known=previous.known & ~moved[:, None])
    canvas = canvas._replace(rule_state=memory._replace(state=state, previous=previous))
    return canvas._replace(hypothesis=_branch(setup, canvas)) if setup.rule.branches else canvas


def _branch(setup: Setup, canvas: Canvas) -> Hypothesis:
    """Returns the other version of the block, where the rule has one that differs in masks."""
    rule, positions = setup.own_rule, block_positions(setup, canvas)
    assert rule is not None
    tokens = take(canvas.tokens, positions)
    version = rule.branch(tokens, canvas.rule_state.state)
    require(
        jnp.shape(version) == tokens.shape and jnp.issubdtype(version.dtype, jnp.integer),
        f"rule {type(rule).__name__}: branch is {version.dtype}{list(jnp.shape(version))}; "
        f"allowed: integer{list(tokens.shape)}",
    )
    open_ = (take(canvas.state, positions) == MASKED) & (positions < canvas.end[:, None])
    differs = open_ & (version >= 0) & (version != setup.mask_id) & ~canvas.done[:, None]
    then = commit(
        canvas, positions, version, jnp.zeros(version.shape), differs,
        canvas.state[:, :1], setup.mask_id,
    )  # fmt: skip
    rows = in_span(canvas, positions[:, 0], jnp.minimum(positions[:, -1] + 1, canvas.end))
    return Hypothesis(then.tokens, rows & differs.any(axis=1, keepdims=True))


def choose(where: Bool[Array, " B"], one: Array, other: Array) -> Array:
    """Returns one array in some rows of the batch, and the other in the rest."""
    return jnp.where(where.reshape(-1, *[1] * (one.ndim - 1)), one, other)
