"""Which rows the next forward runs and which of them are scored, computed from the state."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from llada_jax.sampler.spec import StepSpec
from llada_jax.sampler.state import MASKED, DecodeState, put, take
from llada_jax.sampler.windows.window import RowSet, Span, first_flags

SHADOW, REFRESH, PROBE, PADDING, WINDOW = range(5)
"""Kinds of rows.

- SHADOW feeds [MASK] at a position whose token it does not see: what would be there?
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
        """The index of each row among the extra ones; that of the one before if there is none."""
        flat = self.kinds.reshape(self.kinds.shape[0], -1)
        return (jnp.cumsum(flat, axis=1, dtype=jnp.int32) - 1).reshape(self.kinds.shape)


class Query(NamedTuple):
    """Which positions are scored, by which rows."""

    at: Int[Array, "B Q"]  # position; L for none
    row: Int[Array, "B Q"]
    rescored: Bool[Array, "B L"]  # visible tokens among them


class StepPlan(NamedTuple):
    """The rows of the next forward, and which of them are scored."""

    window: RowSet  # as the window returned it
    rows: RowSet  # what runs: one row more if outputs are shifted, none of sequences that are done
    extra: ExtraRows
    refreshed: Bool[Array, "B L"]  # visible tokens outside the window that are recomputed
    draft: Bool[Array, "B L"]  # masks of later blocks
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
    if (block := spec.whole_block) is not None:
        padding = -mask.shape[1] % block
        blocks = jnp.pad(mask, ((0, 0), (0, padding))).reshape(len(mask), -1, block)
        whole = jnp.repeat(blocks.any(axis=2), block, axis=1)
        mask = whole[:, : mask.shape[1]] & (state.positions < state.end[:, None])
    start = jnp.argmax(mask, axis=1).astype(jnp.int32)
    stop = jnp.where(mask, state.positions + 1, 0).max(axis=1)
    rows = mask
    if spec.shift:
        rows |= jnp.pad(mask[:, 1:], ((0, 0), (0, 1)))
    return RowSet(start, stop, mask), RowSet(start, stop, rows & ~state.done[:, None])


def _whole_blocks(spec: StepSpec, state: DecodeState, window: Span) -> Span:
    """Returns the window with every row that its rows see, if attention is causal between blocks.

    If outputs are shifted, too, the last row of a block predicts the first token of the next one
    without seeing it: it is committed by the forward that caches its block, before the others of
    its own block are run (Fast-dLLM v2, Nemotron).
    """
    if spec.whole_block is None and not spec.starts_blocks_alone:
        return window
    block = spec.whole_block or 1
    stop = jnp.minimum(-(-window.stop // block) * block, state.end)
    if spec.starts_blocks_alone:
        first = state.block_start(spec.config.block_length) // block * block
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
    asked = _open_positions(spec, state, rows) | rescored
    at = first_flags(asked, spec.max_queries(state.tokens.shape[1]))
    last = slots[:, -1, -1, None]  # the last row of all: what is not scored reads no padding
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
