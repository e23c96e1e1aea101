"""The rows of a step: what they feed, their positions, and what they see.

With classifier-free guidance the same rows follow a second time, with the prompt masked.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from llada_jax.rows import filled_order, make_rows
from llada_jax.sampler.plan import (
    PADDING,
    PROBE,
    REFRESH,
    SHADOW,
    WINDOW,
    ExtraRows,
    StepPlan,
)
from llada_jax.sampler.spec import StepSpec
from llada_jax.sampler.state import MASKED, PROMPT, DecodeState, take
from llada_jax.sampler.windows.window import RowSet, first_flags
from llada_jax.types import Rows


def step_rows(spec: StepSpec, state: DecodeState, plan: StepPlan, n_rows: int) -> Rows:
    """Returns the rows of a planned forward, padded to `n_rows`."""
    if spec.max_extra_rows(state.tokens.shape[1]):
        rows = rows_with_extra(spec, state, plan.extra, plan.rows, n_rows)
    else:
        rows = _window_rows(spec, state, plan.rows, n_rows)
    return with_unconditional(spec, state, rows)


def _window_rows(spec: StepSpec, state: DecodeState, window: RowSet, n_rows: int) -> Rows:
    positions = window.positions(n_rows)
    if window.mask is None:
        live = positions < window.stop[:, None]
    else:
        live = jnp.arange(n_rows)[None, :] < window.count[:, None]
    cached, slots = _cached(state)
    slot_order = _order(spec, state, slots)
    return make_rows(
        take(state.tokens, positions),
        positions,
        live,
        cached,
        _order(spec, state, positions),
        None if slot_order is None else jnp.broadcast_to(slot_order, cached.shape),
    )


def rows_with_extra(
    spec: StepSpec, state: DecodeState, extra: ExtraRows, window: RowSet, n_rows: int
) -> Rows:
    """Returns the rows of a window followed by extra rows, padded to `n_rows`.

    If the model's attention is causal between blocks, refreshed tokens do not see later blocks
    either.
    """
    index = jnp.arange(n_rows, dtype=jnp.int32)[None, :]
    batch, length = state.tokens.shape
    of_window = index < window.count[:, None]
    behind = index - window.count[:, None]
    entry = take(first_flags(extra.kinds.reshape(batch, -1), n_rows), jnp.maximum(behind, 0))
    kind = jnp.where(of_window, WINDOW, entry // length)
    positions = jnp.where(of_window, window.positions(n_rows), entry % length)
    shadow = (kind == SHADOW) | (kind == PROBE)
    tokens = jnp.where(shadow, jnp.int32(spec.mask_id), take(state.tokens, positions))
    return Rows(
        tokens=tokens,
        positions=positions,
        live=kind != PADDING,
        sees_cache=_sees_cache(spec, state, kind, positions, window),
        sees_rows=_sees_rows(spec, state, kind, positions),
        writes=(kind == WINDOW) | (kind == REFRESH),
    )


def _sees_cache(
    spec: StepSpec,
    state: DecodeState,
    kind: Int[Array, "B R"],
    positions: Int[Array, "B R"],
    window: RowSet,
) -> Bool[Array, "B R L"]:
    cached, slots = _cached(state)
    replaced = window.includes(slots)
    refreshes = (kind == REFRESH) | (kind == PROBE)
    blind = (kind == SHADOW) | refreshes  # to its own position
    own = (positions[:, :, None] == slots[:, None, :]) & blind[:, :, None]
    sees = (cached & ~replaced)[:, None, :] & ~own & (kind != PADDING)[:, :, None]
    row_order, slot_order = _order(spec, state, positions), _order(spec, state, slots)
    if row_order is not None and slot_order is not None:
        free = refreshes & (spec.model.block_length is None)
        sees &= (slot_order[:, None, :] <= row_order[:, :, None]) | free[:, :, None]
    return sees


def _sees_rows(
    spec: StepSpec, state: DecodeState, kind: Int[Array, "B R"], positions: Int[Array, "B R"]
) -> Bool[Array, "B R R"]:
    mine, other = kind[:, :, None], kind[:, None, :]
    elsewhere = positions[:, None, :] != positions[:, :, None]
    sees = (other == WINDOW) & ((mine == WINDOW) | ((mine == SHADOW) & elsewhere))
    order = _order(spec, state, positions)
    if order is not None:
        sees &= order[:, None, :] <= order[:, :, None]
    itself = jnp.eye(kind.shape[1], dtype=bool)[None]
    return sees | (itself & (kind != PADDING)[:, :, None])


def _order(
    spec: StepSpec, state: DecodeState, positions: Int[Array, "B R"]
) -> Int[Array, "B R"] | None:
    """Returns the order of positions in which a row sees its own and lower ones; None for all."""
    if spec.model.block_length is not None:
        return positions // spec.model.block_length
    if spec.model.causal == "filled":
        every = jnp.broadcast_to(positions, (state.tokens.shape[0], positions.shape[1]))
        return filled_order(take(state.status, every) == MASKED, every)
    if spec.model.causal == "finished":
        return jnp.minimum(positions, state.block_start(spec.config.block_length)[:, None])
    return spec.window.attention_order(state, positions, spec.window_context())


def _cached(state: DecodeState) -> tuple[Bool[Array, "B T"], Int[Array, "1 T"]]:
    """Returns the cached positions that may be read, and all positions of the cache."""
    slots = jnp.arange(state.cache.keys.shape[2], dtype=jnp.int32)[None, :]
    return slots < state.n_cached[:, None], slots


def with_unconditional(spec: StepSpec, state: DecodeState, rows: Rows) -> Rows:
    """Returns the rows and, under guidance, a second batch of them whose prompt is masked."""
    if not spec.config.cfg_scale:
        return rows
    prompt = take(state.status, rows.positions) == PROMPT
    blank = rows._replace(tokens=jnp.where(prompt, jnp.int32(spec.mask_id), rows.tokens))
    return jax.tree.map(lambda *batches: jnp.concatenate(batches), rows, blank)


def guide(spec: StepSpec, hidden: Float[Array, "BB R D"]) -> Float[Array, "B R D"]:
    """Applies classifier-free guidance: `un + (scale + 1) * (cond - un)`.

    LLaDA guides logits. The head is linear, so guiding its input gives the same, for D numbers
    a row instead of V.
    """
    scale = spec.config.cfg_scale
    if not scale:
        return hidden
    conditional, unconditional = jnp.split(hidden.astype(jnp.float32), 2)
    guided = unconditional + (scale + 1) * (conditional - unconditional)
    return guided.astype(hidden.dtype)
