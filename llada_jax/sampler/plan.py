"""What a step is going to run and to score, computed once from the canvas at its start."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from llada_jax.sampler.canvas import MASKED, VISIBLE, Canvas, put, take
from llada_jax.sampler.setup import Setup
from llada_jax.sampler.windows.window import Span

SHADOW, REFRESH, PROBE, NOTHING, WINDOW = range(5)
"""What a row is.

- SHADOW feeds [MASK] at a position whose token it does not see: what would stand there?
- REFRESH feeds a token that left the window, for its key and value; it sees the cache and itself.
- PROBE is the shadow of such a token.
"""


class ExtraRows(NamedTuple):
    """Which positions have a row of which kind beside the window's, which it follows in the same
    forward. No row of the window sees one, so with them or without them its results are the same.
    """

    kinds: Bool[Array, "B 3 L"]  # shadow, refresh, probe

    def at(self, kind: int) -> Bool[Array, "B L"]:
        """Returns the positions that have a row of this kind."""
        return self.kinds[:, kind]

    @property
    def slots(self) -> Int[Array, "B 3 L"]:
        """The place of each row behind the window's; that of the one before where there is none."""
        flat = self.kinds.reshape(self.kinds.shape[0], -1)
        return (jnp.cumsum(flat, axis=1, dtype=jnp.int32) - 1).reshape(self.kinds.shape)


class Query(NamedTuple):
    """What a step asks the model: which positions are scored, by which of its rows."""

    at: Int[Array, "B Q"]  # position; L where nothing is asked
    row: Int[Array, "B Q"]
    rescored: Bool[Array, "B L"]  # visible tokens among them


class StepPlan(NamedTuple):
    """The rows of the next forward, and what is asked of them."""

    window: Span  # as the window has it
    span: Span  # the positions that run: one more of shifted models, none of rows that are done
    extra: ExtraRows
    refreshed: Bool[Array, "B L"]  # visible tokens outside the window that are recomputed
    draft: Bool[Array, "B L"]  # masks of later blocks
    query: Query
    n_rows: Int[Array, " B"]  # that each batch row needs


def plan_step(setup: Setup, canvas: Canvas) -> StepPlan:
    """Returns the plan of the next forward."""
    config, rule = setup.config, setup.rule
    window = _of_whole_blocks(setup, canvas, setup.window.span(canvas, config, setup.shift))
    start = jnp.maximum(window.start - setup.shift, 0)
    span = Span(start, jnp.where(canvas.done, start, window.stop))
    visible = (canvas.state == VISIBLE) & ~canvas.done[:, None]
    measured = visible & rule.measures(canvas, config)
    refreshed = nowhere = jnp.zeros(visible.shape, bool)
    if config.refreshes:
        left = measured & (canvas.positions < canvas.settled[:, None])
        doubt, length = jnp.where(left, -canvas.confidence, -jnp.inf), left.shape[1]
        best, index = jax.lax.top_k(doubt, min(rule.refresh_rows, length))
        refreshed = put(index, best > -jnp.inf, length)
    shadow = measured & canvas.in_span(*span) if setup.shadows else nowhere
    refresh = nowhere if config.has_worker else refreshed
    probe = refresh if rule.rescore == "shadow" else nowhere
    extra = ExtraRows(jnp.stack([shadow, refresh, probe], axis=1))
    later = canvas.blocks(config.block_length) > canvas.block[:, None]
    draft = later & canvas.masked
    query = _query(setup, canvas, span, extra, measured)
    n_rows = span.length + extra.kinds.sum(axis=(1, 2), dtype=jnp.int32)
    return StepPlan(window, span, extra, refreshed, draft, query, n_rows)


def _of_whole_blocks(setup: Setup, canvas: Canvas, window: Span) -> Span:
    """Returns the window with every row that its rows see, where attention is causal between
    blocks.

    Where outputs are shifted, too, the last row of a block predicts the first token of the next
    one without seeing it: it is committed by the forward that settles its block, before the others
    of its own block are run (Fast-dLLM v2, Nemotron).
    """
    if setup.whole_block is None and not setup.seeds:
        return window
    block = setup.whole_block or 1
    stop = jnp.minimum(-(-window.stop // block) * block, canvas.end)
    if setup.seeds:
        first = canvas.block_start(setup.config.block_length) // block * block
        is_masked = take(canvas.state, first[:, None])[:, 0] == MASKED
        stop = jnp.where(is_masked & (window.start < first), first, stop)
    return Span(window.start, stop)


def _query(
    setup: Setup, canvas: Canvas, span: Span, extra: ExtraRows, measured: Bool[Array, "B L"]
) -> Query:
    slots = extra.slots + span.length[:, None, None]
    row = jnp.maximum(canvas.positions - _shift(setup, canvas, span) - span.start[:, None], 0)
    for kind in (SHADOW, PROBE) if setup.shadows else (REFRESH,):
        row = jnp.where(extra.at(kind), slots[:, kind], row)
    if setup.shadows:
        rescored = extra.at(SHADOW) | extra.at(PROBE)
    elif setup.rule.revises and setup.rule.rescore == "token":
        rescored = (measured & canvas.in_span(*span)) | extra.at(REFRESH)
    else:
        rescored = jnp.zeros(measured.shape, bool)
    asked = _open_positions(setup, canvas, span) | rescored
    at = packed(asked, setup.most_asked(canvas.tokens.shape[1]))
    last = slots[:, -1, -1, None]  # of all rows: what is not asked is of no padding
    return Query(at, jnp.maximum(jnp.minimum(take(row, at), last), 0), rescored)


def _shift(setup: Setup, canvas: Canvas, span: Span) -> Int[Array, "B L"] | int:
    """Returns how many positions before each one the row stands that predicts it: where finished
    tokens predict the next one, that is one as far as the current block, if such a row runs."""
    if setup.model.causal != "finished":
        return setup.shift
    position, first = canvas.positions, canvas.block_start(setup.config.block_length)
    shifted = (position > span.start[:, None]) & (position <= first[:, None])
    return shifted.astype(jnp.int32)


def _open_positions(setup: Setup, canvas: Canvas, span: Span) -> Bool[Array, "B L"]:
    """Returns the positions of the current block, and drafts: the masked ones, or all."""
    config = setup.config
    start = canvas.block_start(config.block_length)
    scores_drafts = setup.window.drafts or setup.needs("drafts")
    stop = span.stop if scores_drafts else canvas.block_stop(config.block_length)
    if setup.seeds:
        stop = jnp.minimum(stop, span.stop + 1)
    positions = canvas.in_span(start, stop) & ~canvas.done[:, None]
    return positions & canvas.masked if config.selective_logits else positions


def packed(flags: Bool[Array, "B M"], size: int) -> Int[Array, "B S"]:
    """Returns where the first `size` flags are, in order. M stands where there is none."""
    length = flags.shape[1]
    slot = jnp.where(flags, jnp.cumsum(flags, axis=1, dtype=jnp.int32) - 1, size)
    index = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), flags.shape)
    return put(slot, index, size, nothing=length)
