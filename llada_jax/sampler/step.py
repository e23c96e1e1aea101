"""One step of decoding: plan -> rows -> forward -> absorb -> score -> decide.

Each part is a pure function, and both loops run these.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from llada_jax.rows import write_rows
from llada_jax.sampler.canvas import Canvas, put, take
from llada_jax.sampler.constrained import class_scores, with_classes
from llada_jax.sampler.own_rule import asked_of, to_block
from llada_jax.sampler.record import StepCounts, StepScores, spread, standing_probability
from llada_jax.sampler.setup import Setup
from llada_jax.sampler.step_plan import PROBE, SHADOW, StepPlan
from llada_jax.sampler.step_rows import guide
from llada_jax.types import Asked, Denoiser, HeadOut, Hidden, NoiseKeys, Params, Rows, RowsOut


class Denoised(NamedTuple):
    """What a forward leaves for the decision, whatever its number of rows was."""

    hidden: Float[Array, "B Q D"]  # states that predict what was asked
    noise_keys: Key[Array, "B Q"] | None  # for the scores; None at temperature 0
    counts: StepCounts
    at: Int[Array, "B Q"]  # as the query has it
    asked: Asked | None  # beside the scores
    block_start: Int[Array, " B"]


def absorb(
    setup: Setup, canvas: Canvas, plan: StepPlan, rows: Rows, out: RowsOut
) -> tuple[Canvas, Denoised]:
    """Returns the canvas with the forward's keys and values, and what the decision needs of it."""
    config, cache = setup.config, canvas.cache
    if cache.keys.shape[2]:
        cache = write_rows(cache, rows, out)
    settled = setup.window.settled(canvas, config, plan.window)
    if setup.whole_block is not None and setup.window.leaves_tokens:  # a part has seen masks
        settled = settled // setup.whole_block * setup.whole_block
    alive = (~canvas.done).astype(canvas.nfe.dtype)
    counts = _counts(canvas, plan, rows)
    canvas = canvas._replace(
        cache=cache, settled=jnp.where(canvas.done, canvas.settled, settled), nfe=canvas.nfe + alive
    )
    hidden = take(guide(setup, out.hidden), plan.query.row)
    keys = None
    if config.temperature > 0:
        keys = canvas.noise_keys(plan.query.at % canvas.tokens.shape[1])
    asked = with_classes(setup, asked_of(setup, canvas, plan.query))
    start = canvas.block_start(config.block_length)
    return canvas, Denoised(hidden, keys, counts, plan.query.at, asked, start)


def run_head(denoiser: Denoiser, params: Params, denoised: Denoised, n_heads: int) -> HeadOut:
    """Returns what the head says of the first `n_heads` positions that are asked about."""
    keys = denoised.noise_keys
    keys = None if keys is None else keys[:, :n_heads]
    asked = denoised.asked and denoised.asked.first(n_heads)
    return head_out(denoiser, params, denoised.hidden[:, :n_heads], keys, asked)


def head_out(
    denoiser: Denoiser, params: Params, hidden: Hidden, keys: NoiseKeys, asked: Asked | None
) -> HeadOut:
    """Returns the scores of states, and what is asked beside them; None: nothing."""
    if asked is None:
        return HeadOut(denoiser.score_rows(params, hidden, keys), None)
    assert denoiser.measure_rows is not None
    return denoiser.measure_rows(params, hidden, keys, asked)


def by_position(setup: Setup, denoised: Denoised, head: HeadOut, length: int) -> StepScores:
    """Returns scores by position of a canvas of `length`, and what else was asked by that of the
    block."""
    n_heads = head.scores.token.shape[1]
    at = denoised.at[:, :n_heads]
    # A head that rounds its inputs to integers may make numbers of a NaN.
    finite = jnp.isfinite(denoised.hidden[:, :n_heads]).all(axis=-1)
    confidence = jnp.where(finite, head.scores.confidence, jnp.nan)
    said = head.scores._replace(confidence=confidence)
    hidden = denoised.hidden[:, :n_heads] if setup.needs("hidden", "divergence") else None
    measured = None
    if setup.own_rule is not None and setup.own_rule.head_needs:
        assert head.measured is not None
        measured = head.measured._replace(
            class_ids=None, class_logits=None, class_noisy=None, class_mass=None
        )
    standing = put(at, standing_probability(head), length) if setup.doubts else None
    classes = None if setup.grammar is None else class_scores(at, head, length)
    block = partial(to_block, at=at, start=denoised.block_start, length=setup.config.block_length)
    measured, hidden = jax.tree.map(block, (measured, hidden))
    return StepScores(spread(at, said, length), measured, hidden, standing, classes)


def _counts(canvas: Canvas, plan: StepPlan, rows: Rows) -> StepCounts:
    batch = canvas.tokens.shape[0]

    def total(flags: Bool[Array, "B X"]) -> Int[Array, " B"]:
        return flags.sum(axis=1, dtype=jnp.int32)

    return StepCounts(
        live_rows=total(rows.live[:batch]),
        shadow_rows=total(plan.extra.at(SHADOW) | plan.extra.at(PROBE)),
        draft_rows=total(plan.draft & canvas.in_span(*plan.span)),
        refreshed=total(plan.refreshed),
        head_rows=total(plan.query.at < canvas.tokens.shape[1]),
        cache_length=total(rows.sees_cache[:batch].any(axis=1)),
    )
