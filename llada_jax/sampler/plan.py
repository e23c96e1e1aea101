"""The rows of the next forward: which positions run, what they feed and see, which are scored.

`plan_rows` computes the plan from the state; the number of rows varies, so a loop picks the
smallest compiled size that holds them, and `step_rows` makes the arrays of that size. Rows outside
the window follow the window's rows in the same forward, and no row of the window sees them: they
never change its results. With classifier-free guidance the same rows follow a second time, with the
prompt masked.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from llada_jax.rows import filled_order, make_rows
from llada_jax.sampler.spec import StepSpec
from llada_jax.sampler.state import MASKED, PROMPT, VISIBLE, DecodeState, put, take
from llada_jax.sampler.windows.window import RowSet, Span, first_flags
from llada_jax.types import Rows

SHADOW, REFRESH, PROBE, PADDING, WINDOW = range(5)
"""Kinds of rows.

- SHADOW feeds [MASK] at a position and does not see its token, to score that token again.
- REFRESH feeds a token that left the window, for its key and value; it sees the cache and itself.
- PROBE is the shadow of such a token.
"""


class ExtraRows(NamedTuple):
    """Which positions have a row outside the window. Such rows follow the window's in the same
    forward; no row of the window sees one, so its results do not depend on them.
    """

    kinds: Bool[Array, "B 3 L"]  # shadow, refresh, probe

    def of(self, kind: int) -> Bool[Array, "B L"]:
        """Returns the positions that have a row of this kind."""
        return self.kinds[:, kind]

    @property
    def slots(self) -> Int[Array, "B 3 L"]:
        """The index of each row among the extra ones; the index of the row before if there is
        none."""
        flat = self.kinds.reshape(self.kinds.shape[0], -1)
        return (jnp.cumsum(flat, axis=1, dtype=jnp.int32) - 1).reshape(self.kinds.shape)


class Query(NamedTuple):
    """The positions that are scored, and the rows that score them."""

    at: Int[Array, "B Q"]  # position; L for none
    row: Int[Array, "B Q"]
    rescored: Bool[Array, "B L"]  # visible tokens among them


class StepPlan(NamedTuple):
    """The rows of the next forward, and which of them are scored."""

    window: RowSet  # as the window returned it
    rows: RowSet  # what runs: one row more if outputs are shifted, none of sequences that are done
    extra: ExtraRows
    refreshed: Bool[Array, "B L"]  # visible tokens outside the window that are recomputed
    draft: Bool[Array, "B L"]  # masks of later blocks, and what a drafter has proposed
    query: Query
    n_rows: Int[Array, " B"]  # that each sequence needs


def plan_rows(spec: StepSpec, state: DecodeState) -> StepPlan:
    """Returns the plan of the next forward."""
    config, rule = spec.config, spec.rule
    context = spec.window_context(state)
    window, rows = _row_sets(spec, state, spec.window.positions(state, context))
    rescorable = context.rescorable & ~state.done[:, None]
    refreshed = nothing = jnp.zeros(rescorable.shape, bool)
    if config.refreshes:  # the least confident ones first
        left = rescorable & (state.positions < state.n_cached[:, None])
        doubt, length = jnp.where(left, -state.confidence, -jnp.inf), left.shape[1]
        best, index = jax.lax.top_k(doubt, min(rule.refresh_rows, length))
        refreshed = put(index, best > -jnp.inf, length)
    shadow = rescorable & rows.includes(state.positions) if spec.shadows else nothing
    refresh = nothing if config.has_worker else refreshed
    probe = refresh if rule.rescore == "shadow" else nothing
    extra = ExtraRows(jnp.stack([shadow, refresh, probe], axis=1))
    draft = state.masked & (state.blocks(config.block_length) > state.block[:, None])
    if config.drafter is not None:
        draft |= state.status == VISIBLE
    query = _query(spec, state, rows, extra, rescorable)
    n_rows = rows.count + extra.kinds.sum(axis=(1, 2), dtype=jnp.int32)
    return StepPlan(window, rows, extra, refreshed, draft, query, n_rows)


def _row_sets(
    spec: StepSpec, state: DecodeState, window: Span | Bool[Array, "B L"]
) -> tuple[RowSet, RowSet]:
    """Returns the window's positions in whole blocks, and the rows that run for them."""
    if isinstance(window, Span):
        window = _whole_blocks(spec, state, window)
        start = jnp.maximum(window.start - spec.shift, 0)
        stop = jnp.where(state.done, start, window.stop)
        return RowSet(*window), RowSet(start, stop)
    mask = window & (state.positions < state.end[:, None])
    if spec.whole_block is not None:
        blocks = spec.model_blocks(state, state.positions)
        blocks -= blocks[:, :1]
        runs = jnp.zeros_like(mask).at[jnp.arange(len(mask))[:, None], blocks].max(mask)
        mask = take(runs, blocks) & (state.positions < state.end[:, None])
    start = jnp.argmax(mask, axis=1).astype(jnp.int32)
    stop = jnp.where(mask, state.positions + 1, 0).max(axis=1)
    rows = mask
    if spec.shift:
        rows |= jnp.pad(mask[:, 1:], ((0, 0), (0, 1)))
    return RowSet(start, stop, mask), RowSet(start, stop, rows & ~state.done[:, None])


def _whole_blocks(spec: StepSpec, state: DecodeState, window: Span) -> Span:
    """Returns the window with every row that its rows see, if attention is causal between blocks.

    If outputs are also shifted, the last row of a block predicts the first token of the next one
    without seeing it: it is committed by the forward that caches its block, before the others of
    its own block are run (Fast-dLLM v2, Nemotron).
    """
    if spec.whole_block is None and not spec.starts_blocks_alone:
        return window
    last = window.stop + (spec.whole_block or 1) - 1
    stop = jnp.minimum(spec.block_floor(state, last), state.end)
    if spec.starts_blocks_alone:
        first = spec.block_floor(state, state.block_start(spec.config.block_length))
        is_masked = take(state.status, first[:, None])[:, 0] == MASKED
        stop = jnp.where(is_masked & (window.start < first), first, stop)
    return Span(window.start, stop)


def _query(
    spec: StepSpec,
    state: DecodeState,
    rows: RowSet,
    extra: ExtraRows,
    rescorable: Bool[Array, "B L"],
) -> Query:
    slots = extra.slots + rows.count[:, None, None]
    row = rows.row_of(jnp.maximum(state.positions - _shift(spec, state, rows), 0))
    for kind in (SHADOW, PROBE) if spec.shadows else (REFRESH,):
        row = jnp.where(extra.of(kind), slots[:, kind], row)
    rescored = jnp.zeros(rescorable.shape, bool)
    if spec.shadows:
        rescored = extra.of(SHADOW) | extra.of(PROBE)
    elif spec.rule.revises and spec.rule.rescore == "token":
        rescored = (rescorable & rows.includes(state.positions)) | extra.of(REFRESH)
    open_positions = _open_positions(spec, state, rows) | rescored
    at = first_flags(open_positions, spec.max_queries(state.tokens.shape[1]))
    last = slots[:, -1, -1, None]  # the last row of all: unscored positions must not read padding
    return Query(at, jnp.maximum(jnp.minimum(take(row, at), last), 0), rescored)


def _shift(spec: StepSpec, state: DecodeState, rows: RowSet) -> Int[Array, "B L"] | int:
    """Returns how many positions before each one the row is that predicts it.

    If finished tokens predict the next one, that is one up to the current block's first token,
    provided that such a row runs.
    """
    if spec.model.causal != "finished":
        return spec.shift
    position, first = state.positions, state.block_start(spec.config.block_length)
    shifted = (position > rows.start[:, None]) & (position <= first[:, None])
    return shifted.astype(jnp.int32)


def _open_positions(spec: StepSpec, state: DecodeState, rows: RowSet) -> Bool[Array, "B L"]:
    """Marks masked positions of the current block, and drafts."""
    length = spec.config.block_length
    start, stop = state.block_start(length), state.block_stop(length)
    if spec.window.drafts or spec.needs("drafts"):
        stop = rows.stop
    if spec.starts_blocks_alone:
        stop = jnp.minimum(stop, rows.stop + 1)
    positions = state.in_span(start, stop) & ~state.done[:, None] & state.masked
    if rows.mask is not None:  # only what has a row that predicts it
        positions &= rows.includes(jnp.maximum(state.positions - spec.shift, 0))
    return positions


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
    if spec.attention == "model_block":
        return spec.model_blocks(state, positions)
    if spec.attention == "filled":
        every = jnp.broadcast_to(positions, (state.tokens.shape[0], positions.shape[1]))
        return filled_order(take(state.status, every) == MASKED, every)
    if spec.attention == "finished":
        return jnp.minimum(positions, state.block_start(spec.config.block_length)[:, None])
    return spec.window.attention_order(state, positions, spec.window_context())


def _cached(state: DecodeState) -> tuple[Bool[Array, "B T"], Int[Array, "1 T"]]:
    """Returns the cached positions that may be read, and all positions of the cache."""
    slots = jnp.arange(state.cache.length, dtype=jnp.int32)[None, :]
    return slots < state.n_cached[:, None], slots


def with_unconditional(spec: StepSpec, state: DecodeState, rows: Rows) -> Rows:
    """Returns the rows and, under guidance, a second batch of them with the prompt masked."""
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
