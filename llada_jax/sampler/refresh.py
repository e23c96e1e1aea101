"""Refreshes by a worker thread: a separate forward for visible tokens that left the window.

llada.cpp (arXiv 2606.13740) refreshes such tokens, because later tokens may change their scores.
The worker's forward sees the cache at the start of a step and runs during the loop's own forward;
its keys, values and scores are merged when that step is scored.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from llada_jax.rows import write_rows
from llada_jax.sampler.constrained import class_scores, with_classes
from llada_jax.sampler.plan import (
    PROBE,
    REFRESH,
    ExtraRows,
    StepPlan,
    rows_with_extra,
    with_unconditional,
)
from llada_jax.sampler.record import StepScores, spread, token_probability, top_tokens
from llada_jax.sampler.spec import StepSpec
from llada_jax.sampler.state import DecodeState, choose, put, take
from llada_jax.sampler.windows.window import RowSet, first_flags
from llada_jax.types import HeadOut, HeadRequest, Rows, RowsOut


class RefreshJob(NamedTuple):
    """The forward of a worker."""

    rows: Rows
    at: Int[Array, "B F"]  # positions of the tokens; L for none
    row: Int[Array, "B F"]  # the rows that score them
    request: HeadRequest


def refresh_job(spec: StepSpec, state: DecodeState, plan: StepPlan) -> RefreshJob:
    """Returns the forward of a worker, which sees the cache as it is now."""
    chosen, shadow = plan.refreshed, spec.rule.rescore == "shadow"
    nothing = jnp.zeros_like(chosen)
    extra = ExtraRows(jnp.stack([nothing, chosen, chosen if shadow else nothing], axis=1))
    no_window = RowSet(state.n_cached, state.n_cached)
    n_tokens = spec.rule.refresh_rows
    rows = rows_with_extra(spec, state, extra, no_window, (1 + shadow) * n_tokens)
    at = first_flags(chosen, n_tokens)
    row = take(extra.slots[:, PROBE if shadow else REFRESH], at)
    request = HeadRequest(spec.top_logprobs, listed=take(state.tokens, at)[..., None])
    if spec.grammar is not None:
        request = with_classes(spec, request)
    return RefreshJob(with_unconditional(spec, state, rows), at, row, request)


def merge(
    state: DecodeState, scores: StepScores, job: RefreshJob, out: RowsOut, head: HeadOut
) -> tuple[DecodeState, StepScores]:
    """Merges a worker's results into the state and the scores of the step that ran meanwhile."""
    length = state.tokens.shape[1]
    refreshed = spread(job.at, head.scores, length)
    known = refreshed.token >= 0
    assert scores.probability is not None  # of a rule that revises
    probability = put(job.at, token_probability(head), length)
    classes, top = scores.classes, scores.top
    if classes is not None:
        newer = class_scores(job.at, head, length)
        classes = jax.tree.map(partial(choose, known), newer, classes)
    if top is not None:
        newer = top_tokens(job.at, head, length, top.ids.shape[-1])
        top = jax.tree.map(partial(choose, known), newer, top)
    scores = scores._replace(
        here=jax.tree.map(partial(jnp.where, known), refreshed, scores.here),
        rescored=scores.rescored | known,
        probability=jnp.where(known, probability, scores.probability),
        classes=classes,
        top=top,
    )
    return state._replace(cache=write_rows(state.cache, job.rows, out)), scores
