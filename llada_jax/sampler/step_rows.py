"""The rows of a step: what they feed, where they stand, and what they see."""

from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from llada_jax.rows import make_rows
from llada_jax.sampler.canvas import Canvas, block_start, take
from llada_jax.sampler.extra_rows import ExtraRows, rows_with
from llada_jax.sampler.guidance import with_unconditional
from llada_jax.sampler.setup import Setup
from llada_jax.sampler.step_plan import StepPlan
from llada_jax.sampler.windows.window import Span
from llada_jax.types import Rows


def step_rows(setup: Setup, canvas: Canvas, plan: StepPlan, n_rows: int) -> Rows:
    """Returns the rows of the forward that was planned, padded to `n_rows`."""
    if setup.most_extra_rows(canvas.tokens.shape[1]):
        rows = rows_beside(setup, canvas, plan.extra, plan.span, n_rows)
    else:
        rows = _rows_alone(setup, canvas, plan, n_rows)
    return with_unconditional(setup, canvas, rows)


def _rows_alone(setup: Setup, canvas: Canvas, plan: StepPlan, n_rows: int) -> Rows:
    positions = plan.span.start[:, None] + jnp.arange(n_rows, dtype=jnp.int32)
    cached, slots = _cached(canvas)
    slot_order = _order(setup, canvas, slots)
    return make_rows(
        take(canvas.tokens, positions),
        positions,
        positions < plan.span.stop[:, None],
        cached,
        _order(setup, canvas, positions),
        None if slot_order is None else jnp.broadcast_to(slot_order, cached.shape),
    )


def rows_beside(
    setup: Setup,
    canvas: Canvas,
    extra: ExtraRows,
    span: Span,
    n_rows: int,
) -> Rows:
    """Returns the rows of a span, and extra rows behind them, padded to `n_rows`."""
    hypothesis = canvas.hypothesis
    return rows_with(
        extra,
        span,
        n_rows,
        fed=canvas.tokens,
        branch_fed=canvas.tokens if hypothesis is None else hypothesis.tokens,
        cached=_cached(canvas)[0],
        order=partial(_order, setup, canvas),
        branch_start=block_start(canvas, setup.config.block_length),
        mask_id=setup.mask_id,
        order_binds_refresh=setup.model.block_length is not None,
    )


def _order(setup: Setup, canvas: Canvas, positions: Int[Array, "B R"]) -> Int[Array, "B R"] | None:
    """Returns the order between positions where attention is causal between blocks."""
    if setup.model.block_length is not None:
        return positions // setup.config.block_length
    return setup.window.attention_order(canvas, positions, setup.config)


def _cached(canvas: Canvas) -> tuple[Bool[Array, "B T"], Int[Array, "1 T"]]:
    """Returns the cached positions that may be read, and all positions of the cache."""
    slots = jnp.arange(canvas.cache.keys.shape[2], dtype=jnp.int32)[None, :]
    return slots < canvas.settled[:, None], slots
