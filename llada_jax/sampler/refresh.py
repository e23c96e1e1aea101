"""Refreshes by a worker of the host: a forward of its own, of tokens that left the window."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from llada_jax.rows import write_rows
from llada_jax.sampler.canvas import Canvas, choose, put, take
from llada_jax.sampler.constrained import class_scores, with_classes
from llada_jax.sampler.record import StepScores, spread, standing_probability
from llada_jax.sampler.setup import Setup
from llada_jax.sampler.step_plan import PROBE, REFRESH, ExtraRows, StepPlan, packed
from llada_jax.sampler.step_rows import rows_beside, with_unconditional
from llada_jax.sampler.windows.window import Span
from llada_jax.types import Asked, HeadOut, Rows, RowsOut


class RefreshJob(NamedTuple):
    """A forward of its own that refreshes tokens which left the window."""

    rows: Rows
    at: Int[Array, "B F"]  # positions of the tokens; L where there is none
    row: Int[Array, "B F"]  # the rows that score them
    asked: Asked


def refresh_job(setup: Setup, canvas: Canvas, plan: StepPlan) -> RefreshJob:
    """Returns what a worker runs beside the forward: it sees the cache as it is now."""
    chosen, shadow = plan.refreshed, setup.rule.rescore == "shadow"
    nowhere = jnp.zeros_like(chosen)
    extra = ExtraRows(jnp.stack([nowhere, chosen, chosen if shadow else nowhere], axis=1))
    nothing = Span(canvas.settled, canvas.settled)
    n_tokens = setup.rule.refresh_rows
    rows = rows_beside(setup, canvas, extra, nothing, (1 + shadow) * n_tokens)
    at = packed(chosen, n_tokens)
    row = take(extra.slots[:, PROBE if shadow else REFRESH], at)
    asked = with_classes(setup, Asked(listed=take(canvas.tokens, at)[..., None]))
    assert asked is not None
    return RefreshJob(with_unconditional(setup, canvas, rows), at, row, asked)


def merge(
    canvas: Canvas,
    plan: StepPlan,
    scores: StepScores,
    job: RefreshJob,
    out: RowsOut,
    found: HeadOut,
) -> tuple[Canvas, StepPlan, StepScores]:
    """Merges what a worker found, at the boundary of the step that it ran beside."""
    length = canvas.tokens.shape[1]
    at = spread(job.at, found.scores, length)
    measured = at.token >= 0
    here = jax.tree.map(partial(jnp.where, measured), at, scores.here)
    assert scores.standing is not None  # of a rule that revises
    standing = put(job.at, standing_probability(found), length)
    standing = jnp.where(measured, standing, scores.standing)
    scores = scores._replace(here=here, standing=standing)
    if scores.classes is not None:
        new = class_scores(job.at, found, length)
        scores = scores._replace(
            classes=jax.tree.map(partial(choose, measured), new, scores.classes)
        )
    canvas = canvas._replace(cache=write_rows(canvas.cache, job.rows, out))
    query = plan.query._replace(rescored=plan.query.rescored | measured)
    return canvas, plan._replace(query=query), scores
