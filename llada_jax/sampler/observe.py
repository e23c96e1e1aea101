"""What a rule observes and remembers: from the scores of a step to an `Observation`.

The head scores positions anywhere on the canvas; a rule sees its current block, position by
position, with the fields in its `needs` and no others. Memory that only some needs require
(drafts, the states of the previous score) is in `RuleMemory`, and is updated here.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from llada_jax.config import require
from llada_jax.sampler.record import StepScores
from llada_jax.sampler.rules.rule import (
    Ask,
    CanvasView,
    Decision,
    Drafts,
    Observation,
    Rule,
    RuleState,
)
from llada_jax.sampler.spec import StepSpec
from llada_jax.sampler.state import (
    VISIBLE,
    DecodeState,
    PreviousScores,
    RuleMemory,
    choose,
    put,
    take,
)
from llada_jax.types import HeadRequest, Scores


def keep_drafts(state: DecodeState, scores: Scores) -> DecodeState:
    """Returns the state with the step's scores among the drafts, if the rule needs drafts."""
    if state.rule.drafts is None:
        return state
    newer = jax.tree.map(partial(jnp.where, scores.token >= 0), scores, state.rule.drafts)
    return state._replace(rule=state.rule._replace(drafts=newer))


def remember(
    memory: RuleMemory, state: RuleState, done: Bool[Array, " B"], seen: Observation,
    scores: StepScores,
) -> RuleMemory:  # fmt: skip
    """Returns the memory after a decision; sequences that are done keep theirs."""
    state = jax.tree.map(partial(choose, done), memory.state, state)
    previous = memory.previous
    if previous is not None:
        assert scores.hidden is not None
        scored = seen.predicted >= 0
        latest = scores.hidden.astype(jnp.float32)
        hidden = jnp.where(scored[..., None], latest, previous.hidden)
        previous = PreviousScores(hidden, previous.known | scored)
    return memory._replace(state=state, previous=previous)


def start_blocks(state: DecodeState, moved: Bool[Array, " B"]) -> DecodeState:
    """Returns the state in which the rule forgets the block of sequences that have moved on."""
    memory = state.rule
    block = jax.tree.map(partial(choose, moved), memory.initial_block, memory.state.block)
    previous = memory.previous
    if previous is not None:
        previous = previous._replace(known=previous.known & ~moved[:, None])
    rule_state = memory.state._replace(block=block)
    return state._replace(rule=memory._replace(state=rule_state, previous=previous))


def head_request(spec: StepSpec, state: DecodeState, at: Int[Array, "B Q"]) -> HeadRequest | None:
    """Returns the rule's request to the head for positions `at`, or None for scores alone.

    Raises ValueError if the rule asks in wrong shapes.
    """
    rule, memory, probability = spec.rule, state.rule, spec.needs("probability")
    top_k = max(spec.rule_top_k, spec.top_logprobs)
    if not rule.head_needs:
        if not (spec.measures and (probability or top_k)):
            return None
        tokens = take(state.tokens, at % state.tokens.shape[1])[..., None]
        return HeadRequest(top_k, listed=tokens if probability else None)
    length, batch = spec.config.block_length, state.tokens.shape[0]
    listed, added = _checked(rule, rule.ask(memory.state), (batch, length))
    if spec.needs("current", "probability"):  # the last one, to which nothing is added
        tokens = take(state.tokens, state.block_positions(length))[..., None]
        listed = tokens if listed is None else jnp.concatenate([listed, tokens], axis=-1)
        added = None if added is None else jnp.pad(added, ((0, 0), (0, 0), (0, 1)))
    offset = at - state.block_start(length)[:, None]
    inside = ((offset >= 0) & (offset < length))[..., None]

    def at_rows(array: Array | None, outside: int) -> Array | None:
        if array is None:
            return None
        return jnp.where(inside, take(array, offset), jnp.asarray(outside, array.dtype))

    return HeadRequest(
        top_k=top_k,
        listed=at_rows(listed, -1),
        added=at_rows(added, 0),
        previous=at_rows(memory.previous and memory.previous.hidden, 0),
    )


def _checked(rule: Rule, ask: Ask, block: tuple[int, int]) -> Ask:
    name = type(rule).__name__
    require(isinstance(ask, Ask), f"rule {name} asks {ask!r}; allowed: lj.Ask")
    if "listed" not in rule.needs:
        return Ask()
    listed, added = ask
    _require_array(rule, "listed", listed, jnp.integer, *block, None)
    if added is not None and listed is not None:
        _require_array(rule, "added", added, jnp.floating, *listed.shape)
        require(
            "divergence" not in rule.needs,
            f"rule {name} needs divergence and adds to logits; allowed: one of the two",
        )
    return ask


def _require_array(rule: Rule, part: str, value: Any, kind: Any, *shape: int | None) -> None:
    """Raises ValueError unless an array has a dtype of this kind and this shape; None in a shape
    allows any length."""
    found, fits = value, False
    if value is not None:
        array = jnp.asarray(value)
        found = f"{array.dtype}{list(array.shape)}"
        fits = array.ndim == len(shape) and jnp.issubdtype(array.dtype, kind)
        fits &= all(want in (None, have) for want, have in zip(shape, array.shape, strict=False))
    allowed = ", ".join("any" if length is None else str(length) for length in shape)
    require(
        fits,
        f"rule {type(rule).__name__}: {part} is {found}; allowed: {kind.__name__}[{allowed}]",
    )


def to_block(
    values: Array, at: Int[Array, "B Q"], start: Int[Array, " B"], length: int
) -> Float[Array, "B C ..."]:
    """Scatters values of positions `at`, [B, Q, ...], to the positions of a block; else zeros."""
    offset = at - start[:, None]
    return put(jnp.where((offset >= 0) & (offset < length), offset, length), values, length)


def observe(
    spec: StepSpec, state: DecodeState, scores: StepScores, active: Bool[Array, " B"]
) -> Observation:
    """Returns the rule's view of the current block; only `active` sequences have masks in it."""
    config, memory = spec.config, state.rule
    positions = state.block_positions(config.block_length)
    here = Scores(*(take(array, positions) for array in scores.here))
    masked = take(state.masked, positions) & (positions < state.end[:, None])
    exists = ~state.done[:, None] & (positions < state.end[:, None])
    known = {"entropy": here.entropy, "margin": here.margin, "hidden": scores.hidden}
    known |= _head_extras(spec, memory, scores)
    if spec.needs("drafts"):
        known["drafts"] = _drafts(spec, state)
    if scores.probability is not None:
        known["probability"] = take(scores.probability, positions)
    names = {"top_ids": "top_k", "top_logits": "top_k"}
    return Observation(
        position=positions,
        token=take(state.tokens, positions),
        predicted=here.token,
        confidence=here.confidence,
        masked=masked & (here.token >= 0) & active[:, None],
        committed=(take(state.status, positions) == VISIBLE) & exists,
        rescored=take(scores.rescored, positions) & exists,
        priority=_priority(spec, state, here, positions),
        step=state.block_step,
        block_masks=state.block_masks,
        quota=_quota(spec, state, masked),
        canvas=_canvas_view(spec, state, scores),
        **{name: value for name, value in known.items() if spec.needs(names.get(name, name))},
        block_length=config.block_length,
        eos_id=config.eos_id,
        parity=config.parity,
    )


def _priority(
    spec: StepSpec, state: DecodeState, scores: Scores, positions: Int[Array, "B C"]
) -> Float[Array, "B C"]:
    if spec.config.remasking == "random":
        keys = state.noise_keys(positions)
        return jax.vmap(jax.vmap(lambda key: jax.random.uniform(key, (), jnp.float32)))(keys)
    of_scores = {
        "low_confidence": scores.confidence,
        "entropy": -scores.entropy,
        "margin": scores.margin,
        "sequential": -positions.astype(jnp.float32),
    }
    return of_scores[spec.config.remasking]


def _quota(spec: StepSpec, state: DecodeState, masked: Bool[Array, "B C"]) -> Int[Array, " B"]:
    steps, step = spec.config.steps_per_block, state.block_step
    left = masked.sum(axis=1, dtype=state.block_masks.dtype)
    if spec.config.parity.schedule == "even":
        return even_quota(state.block_masks, step, steps)
    if spec.config.parity.schedule == "noise":
        return _noise_quota(left, step, steps)
    return left - linear_masks(state.block_masks, step, steps)


def even_quota(masks: Int[Array, " B"], step: Int[Array, " B"], steps: int) -> Int[Array, " B"]:
    """Returns `num_transfer_tokens`: `masks` spread evenly over `steps`, the remainder on the first
    ones. LLaDA's linear noise schedule (arXiv 2502.09992, Algorithm 5)."""
    return masks // steps + (step < masks % steps).astype(masks.dtype)


def _noise_quota(masks: Int[Array, " B"], step: Int[Array, " B"], steps: int) -> Int[Array, " B"]:
    """Returns how many of the `masks` that are left Dream commits, while its noise level falls
    from 1 to 0.001 in equal steps; the last step commits all."""
    level, lower = (1 - (1 - 1e-3) * ((step + i).astype(jnp.float32) / steps) for i in (0, 1))
    due = (masks.astype(jnp.float32) * (1 - lower / level)).astype(masks.dtype)
    return jnp.where(step < steps - 1, due, masks)


def linear_masks(masks: Int[Array, " B"], step: Int[Array, " B"], steps: int) -> Int[Array, " B"]:
    """Returns how many of a block's first `masks` Open-dCoder's P2 leaves after a step."""
    shares = np.array([1.0 - (i + 1) / steps for i in range(steps)], np.float32)  # rounded as there
    share = jnp.asarray(shares)[jnp.minimum(step, steps - 1)]
    return (masks.astype(jnp.float32) * share).astype(masks.dtype)


def _head_extras(spec: StepSpec, memory: RuleMemory, scores: StepScores) -> dict[str, Any]:
    """Returns the head's measurements by their names in `Observation`."""
    if scores.measured is None:
        return {}
    extras = scores.measured._asdict()
    listed, divergence = extras["listed"], extras["divergence"]
    if spec.needs("current", "probability"):
        extras["current"] = listed[..., -1] - extras["log_sum_exp"]
        extras["listed"] = listed[..., :-1]
    if divergence is not None and memory.previous is not None:
        most = jnp.finfo(divergence.dtype).max
        extras["divergence"] = jnp.where(memory.previous.known, divergence, most)
    return extras


def _drafts(spec: StepSpec, state: DecodeState) -> Drafts:
    blocks = state.blocks(spec.config.block_length)
    masked = state.masked & (blocks > state.block[:, None]) & ~state.done[:, None]
    drafts = state.rule.drafts
    assert drafts is not None
    return Drafts(masked & (drafts.token >= 0), drafts.token, drafts.confidence)


def _canvas_view(spec: StepSpec, state: DecodeState, scores: StepScores) -> CanvasView:
    here, memory = scores.here, state.rule
    probability = here.confidence if scores.probability is None else scores.probability
    remasks = jnp.zeros_like(state.tokens) if memory.remasks is None else memory.remasks
    ends = spec.ends(state)
    return CanvasView(
        state, here.token, here.confidence, scores.rescored, probability, remasks, ends
    )


def completed(rule: Rule, decision: Decision, seen: Observation) -> Any:
    """Returns the decision without None in its parts for the block.

    Raises ValueError for parts of other shapes and types.
    """
    name = type(rule).__name__
    require(isinstance(decision, Decision), f"rule {name} decides {decision!r}; allowed: Decision")
    block, canvas = seen.masked.shape, seen.canvas.state.tokens.shape
    kinds = {"token": jnp.integer, "confidence": jnp.floating}
    shapes = {"end": block[:1], "ahead": canvas}
    stable = rule.is_stable(seen.confidence) if not rule.revises else jnp.zeros(block, bool)
    parts: dict[str, Any] = {
        "token": seen.predicted,
        "confidence": seen.confidence,
        "stable": stable,
    }
    for part, value in decision._asdict().items():
        shape = shapes.get(part, block)
        if part == "canvas":
            parts[part] = value
        elif value is None:
            parts.setdefault(part, jnp.zeros(shape, bool))
        else:
            _require_array(rule, part, value, kinds.get(part, jnp.bool_), *shape)
            parts[part] = value
    return Decision(**parts)


def require_same_state(rule: Rule, old: RuleState, new: RuleState) -> None:
    """Raises ValueError if a step changed the shapes or dtypes of the rule's state."""

    def form(state: Any) -> Any:
        return jax.tree.map(lambda leaf: (jnp.shape(leaf), jnp.asarray(leaf).dtype), state)

    require(
        form(old) == form(new),
        f"rule {type(rule).__name__}: its state was {form(old)} and is {form(new)}; allowed: the "
        "same shapes and types after each step",
    )


def require_finite_rule(rule: Rule, state: DecodeState) -> None:
    """Raises ValueError if a custom rule's state, or a confidence that it set, is NaN."""
    if ":" not in rule.name:
        return
    leaves = [*jax.tree.leaves(state.rule.state), state.confidence]
    floats = (leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating))
    require(
        not any(bool(jnp.isnan(leaf).any()) for leaf in floats),
        f"rule {type(rule).__name__} has NaN in its state or confidences; allowed: numbers",
    )
