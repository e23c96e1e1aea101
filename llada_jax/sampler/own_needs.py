"""What is asked of the head for a user's own rule, what it remembers, and what it is shown."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from llada_jax.config import require
from llada_jax.sampler.candidates import Candidates
from llada_jax.sampler.canvas import VISIBLE, Canvas, put, take
from llada_jax.sampler.record import StepScores
from llada_jax.sampler.rules.own import Ask, Drafts, OwnRule, Seen
from llada_jax.sampler.setup import Setup
from llada_jax.sampler.standing import asked_of_standing
from llada_jax.sampler.step_plan import Query, StepPlan
from llada_jax.types import Asked


def asked_of(setup: Setup, canvas: Canvas, query: Query) -> Asked | None:
    """Returns what is asked of the head for the positions of a query, beside the scores; None:
    nothing. Raises ValueError where the rule asks in other shapes."""
    rule, memory = setup.own_rule, canvas.rule_state
    if setup.doubts and setup.measures:
        return asked_of_standing(take(canvas.tokens, query.at % canvas.tokens.shape[1]))
    if rule is None or not rule.head_needs:
        return None
    shape = (canvas.tokens.shape[0], setup.config.block_length)
    ask = _checked(rule, rule.ask(memory.state), shape)
    tokens, none = (
        take(canvas.tokens, canvas.block_positions(setup.config.block_length))[..., None],
        jnp.int32(-1),
    )
    listed = [each for each in (ask.listed,) if each is not None]
    listed += [tokens] if setup.needs("current") else []  # the last one, to which nothing is added
    added = ask.added
    if added is not None and setup.needs("current"):
        added = jnp.pad(added, ((0, 0), (0, 0), (0, 1)))

    offset = query.at - canvas.block_start(shape[1])[:, None]

    def of_rows(array: Array, outside: Array) -> Array:
        inside = ((offset >= 0) & (offset < shape[1]))[..., None]
        return jnp.where(inside, take(array, offset), outside)

    return Asked(
        top_k=rule.top_k if setup.needs("top_k") else 0,
        listed=of_rows(jnp.concatenate(listed, axis=-1), none) if listed else None,
        added=None if added is None else of_rows(added, jnp.zeros((), added.dtype)),
        previous=memory.previous and of_rows(memory.previous.hidden, jnp.float32(0)),
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
        **_measured(setup, canvas, scores),
    )


def _measured(setup: Setup, canvas: Canvas, scores: StepScores) -> dict[str, Array | None]:
    """Returns what the head measured, by its names in `Seen`."""
    if scores.measured is None:
        return {}
    said = scores.measured
    log_sum_exp, listed, moved = said.log_sum_exp, said.listed, said.divergence
    found = {"top_ids": said.top_ids, "top_logits": said.top_logits}
    if setup.needs("log_sum_exp"):
        found["log_sum_exp"] = log_sum_exp
    if setup.needs("current"):
        assert listed is not None
        found["current"], listed = listed[..., -1] - log_sum_exp, listed[..., :-1]
    if setup.needs("listed"):
        found["listed"] = listed
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
