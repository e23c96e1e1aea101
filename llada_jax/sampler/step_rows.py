"""The rows of a step: what they feed, where they stand, and what they see. Under classifier-free
guidance, the same rows a second time, whose prompt is masked."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from llada_jax.rows import filled_order, make_rows
from llada_jax.sampler.canvas import MASKED, PROMPT, Canvas, take
from llada_jax.sampler.setup import Setup
from llada_jax.sampler.step_plan import (
    NOTHING,
    PROBE,
    REFRESH,
    SHADOW,
    WINDOW,
    ExtraRows,
    StepPlan,
    packed,
)
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


def rows_beside(setup: Setup, canvas: Canvas, extra: ExtraRows, span: Span, n_rows: int) -> Rows:
    """Returns the rows of a span, and extra rows behind them, padded to `n_rows`.

    Refreshed tokens see no position of a later order either where the model's attention is causal
    between blocks.
    """
    index = jnp.arange(n_rows, dtype=jnp.int32)[None, :]
    batch, length = canvas.tokens.shape
    of_window = index < span.length[:, None]
    behind = index - span.length[:, None]
    entry = take(packed(extra.kinds.reshape(batch, -1), n_rows), jnp.maximum(behind, 0))
    kind = jnp.where(of_window, WINDOW, entry // length)
    positions = jnp.where(of_window, span.start[:, None] + index, entry % length)
    shadow = (kind == SHADOW) | (kind == PROBE)
    tokens = jnp.where(shadow, jnp.int32(setup.mask_id), take(canvas.tokens, positions))
    return Rows(
        tokens=tokens,
        positions=positions,
        live=kind != NOTHING,
        sees_cache=_sees_cache(setup, canvas, kind, positions, span),
        sees_rows=_sees_rows(setup, canvas, kind, positions),
        writes=(kind == WINDOW) | (kind == REFRESH),
    )


def _sees_cache(
    setup: Setup, canvas: Canvas, kind: Int[Array, "B R"], positions: Int[Array, "B R"], span: Span
) -> Bool[Array, "B R L"]:
    cached, slots = _cached(canvas)
    stands = (slots >= span.start[:, None]) & (slots < span.stop[:, None])
    refreshes = (kind == REFRESH) | (kind == PROBE)
    blind = (kind == SHADOW) | refreshes  # to its own position
    own = (positions[:, :, None] == slots[:, None, :]) & blind[:, :, None]
    sees = (cached & ~stands)[:, None, :] & ~own & (kind != NOTHING)[:, :, None]
    row_order, slot_order = _order(setup, canvas, positions), _order(setup, canvas, slots)
    if row_order is not None and slot_order is not None:
        free = refreshes & (setup.model.block_length is None)
        sees &= (slot_order[:, None, :] <= row_order[:, :, None]) | free[:, :, None]
    return sees


def _sees_rows(
    setup: Setup, canvas: Canvas, kind: Int[Array, "B R"], positions: Int[Array, "B R"]
) -> Bool[Array, "B R R"]:
    mine, other = kind[:, :, None], kind[:, None, :]
    elsewhere = positions[:, None, :] != positions[:, :, None]
    sees = (other == WINDOW) & ((mine == WINDOW) | ((mine == SHADOW) & elsewhere))
    order = _order(setup, canvas, positions)
    if order is not None:
        sees &= order[:, None, :] <= order[:, :, None]
    itself = jnp.eye(kind.shape[1], dtype=bool)
    return sees | (itself & (kind != NOTHING)[:, :, None])


def _order(setup: Setup, canvas: Canvas, positions: Int[Array, "B R"]) -> Int[Array, "B R"] | None:
    """Returns the order between positions where a row does not see all others."""
    if setup.model.block_length is not None:
        return positions // setup.model.block_length
    if setup.model.causal == "filled":
        every = jnp.broadcast_to(positions, (canvas.tokens.shape[0], positions.shape[1]))
        return filled_order(take(canvas.state, every) == MASKED, every)
    if setup.model.causal == "finished":
        return jnp.minimum(positions, canvas.block_start(setup.config.block_length)[:, None])
    return setup.window.attention_order(canvas, positions, setup.config)


def _cached(canvas: Canvas) -> tuple[Bool[Array, "B T"], Int[Array, "1 T"]]:
    """Returns the cached positions that may be read, and all positions of the cache."""
    slots = jnp.arange(canvas.cache.keys.shape[2], dtype=jnp.int32)[None, :]
    return slots < canvas.settled[:, None], slots


def with_unconditional(setup: Setup, canvas: Canvas, rows: Rows) -> Rows:
    """Returns the rows, and under guidance a second batch of them whose prompt is masked."""
    if not setup.config.cfg_scale:
        return rows
    prompt = take(canvas.state, rows.positions) == PROMPT
    blank = rows._replace(tokens=jnp.where(prompt, jnp.int32(setup.mask_id), rows.tokens))
    return jax.tree.map(lambda *batches: jnp.concatenate(batches), rows, blank)


def guide(setup: Setup, hidden: Float[Array, "BB R D"]) -> Float[Array, "B R D"]:
    """Applies classifier-free guidance: `un + (scale + 1) * (cond - un)`.

    LLaDA guides logits. The head is linear, so guiding its input gives the same, for D numbers
    a row instead of V.
    """
    scale = setup.config.cfg_scale
    if not scale:
        return hidden
    conditional, unconditional = jnp.split(hidden.astype(jnp.float32), 2)
    guided = unconditional + (scale + 1) * (conditional - unconditional)
    return guided.astype(hidden.dtype)
