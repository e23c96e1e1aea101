"""One step of decoding: window -> forward_rows -> score_rows -> accept -> stop.

A step is a pure function from canvas to canvas; both loops run this one.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from llada_jax.config import ModelConfig, SamplerConfig
from llada_jax.rows import make_rows, write_rows
from llada_jax.sampler.accept import Accept, Bound, Candidates, accept_for, quota
from llada_jax.sampler.canvas import (
    MASKED,
    PROMPT,
    Canvas,
    block_start,
    commit,
    positions_of,
    take,
)
from llada_jax.sampler.stop import Stop, stop_for
from llada_jax.sampler.window import Span, Window, attention_order, window_for
from llada_jax.types import Denoiser, Params, Rows, RowsOut, Scores


class Denoised(NamedTuple):
    """What a forward leaves for the decision, whatever its number of rows was."""

    hidden: Float[Array, "B C D"]  # states that predict the candidates
    noise_keys: Key[Array, "B C"] | None  # for the scores; None at temperature 0
    live_rows: Int[Array, " B"]
    cache_length: Int[Array, " B"]  # cached positions that the rows read


class StepRecord(NamedTuple):
    """What one step did: the raw material of the trace."""

    live_rows: Int[Array, " B"]
    head_rows: Int[Array, " B"]
    cache_length: Int[Array, " B"]
    block: Int[Array, " B"]
    first_candidate: Int[Array, " B"]  # position of candidate 0
    token: Int[Array, "B C"]
    confidence: Float[Array, "B C"]
    committed: Bool[Array, "B C"]


@dataclass(frozen=True)
class Decoder:
    """A sampler for the models of one shape. Hashable: a static argument of the compiled loops."""

    model: ModelConfig
    config: SamplerConfig

    @cached_property
    def window(self) -> Window:
        return window_for(self.config)

    @cached_property
    def accept(self) -> Accept:
        return accept_for(self.config)

    @cached_property
    def stop(self) -> Stop:
        return stop_for(self.config)

    @property
    def mask_id(self) -> int:
        assert self.config.mask_id is not None
        return self.config.mask_id

    @property
    def steps_per_block(self) -> int:
        """Forwards that one block may take: its schedule, or one a token."""
        by_quota = self.config.accept == "quota"
        return self.config.steps_per_block if by_quota else self.config.block_length

    @property
    def shift(self) -> int:
        """How many positions before a token its prediction stands."""
        return int(self.model.shift_logits)

    def span(self, canvas: Canvas) -> Span:
        """The positions that the next forward runs; none for rows that are done."""
        start, stop = self.window.span(canvas)
        start = jnp.maximum(start - self.shift, 0)
        return Span(start, jnp.where(canvas.done, start, stop))

    def rows_needed(self, canvas: Canvas) -> Int[Array, ""]:
        """Rows of the longest span of the batch."""
        start, stop = self.span(canvas)
        return (stop - start).max()

    def rows(self, canvas: Canvas, n_rows: int) -> Rows:
        """The rows of the next forward."""
        span = self.span(canvas)
        positions = span.start[:, None] + jnp.arange(n_rows, dtype=jnp.int32)
        live = positions < span.stop[:, None]
        slots = jnp.arange(canvas.cache.keys.shape[2], dtype=jnp.int32)[None, :]
        cached = slots < canvas.settled[:, None]
        row_order = attention_order(canvas, positions, self.config, self.model)
        slot_order = attention_order(canvas, slots, self.config, self.model)
        if slot_order is not None:
            slot_order = jnp.broadcast_to(slot_order, cached.shape)
        tokens = take(canvas.tokens, positions)
        rows = make_rows(tokens, positions, live, cached, row_order, slot_order)
        return self._with_unconditional(canvas, rows)

    def absorb(self, canvas: Canvas, rows: Rows, out: RowsOut) -> tuple[Canvas, Denoised]:
        """The canvas with the forward's keys and values, and what the candidates need of it."""
        cache = canvas.cache
        if cache.keys.shape[2]:
            cache = write_rows(cache, rows, out)
        positions = self._candidates(canvas)
        first_row = self.span(canvas).start[:, None]
        predicting_row = jnp.maximum(positions - self.shift - first_row, 0)
        batch = canvas.tokens.shape[0]
        canvas = canvas._replace(
            cache=cache,
            settled=jnp.where(canvas.done, canvas.settled, self.window.settled(canvas)),
            nfe=canvas.nfe + (~canvas.done).astype(canvas.nfe.dtype),
        )
        denoised = Denoised(
            hidden=take(self._guide(out.hidden), predicting_row),
            noise_keys=_step_keys(canvas, positions) if self.config.temperature > 0 else None,
            live_rows=rows.live[:batch].sum(axis=1, dtype=jnp.int32),
            cache_length=rows.sees_cache[:batch].any(axis=1).sum(axis=1, dtype=jnp.int32),
        )
        return canvas, denoised

    def denoise(
        self, denoiser: Denoiser, params: Params, canvas: Canvas, n_rows: int
    ) -> tuple[Canvas, Denoised]:
        """One forward of `n_rows` rows, at least `rows_needed`."""
        rows = self.rows(canvas, n_rows)
        return self.absorb(canvas, rows, denoiser.forward_rows(params, rows, canvas.cache))

    def decide(
        self, canvas: Canvas, denoised: Denoised, scores: Scores, bound: Bound
    ) -> tuple[Canvas, StepRecord]:
        """Commit what the candidates' scores allow, go on to the next block or stop."""
        positions = self._candidates(canvas)
        candidates = self._weigh(canvas, positions, scores)
        transfer_mask = self.accept(candidates, bound)
        record = StepRecord(
            live_rows=denoised.live_rows,
            head_rows=candidates.open.sum(axis=1, dtype=jnp.int32),
            cache_length=denoised.cache_length,
            block=canvas.block,
            first_candidate=positions[:, 0],
            token=scores.token,
            confidence=scores.confidence.astype(jnp.float32),
            committed=transfer_mask & (scores.token != self.mask_id),
        )
        canvas = commit(
            canvas, positions, scores.token, scores.confidence, transfer_mask, self.mask_id
        )
        return self.stop(self._next_block(canvas)), record

    def _candidates(self, canvas: Canvas) -> Int[Array, "B C"]:
        start = block_start(canvas, self.config.block_length)
        return start[:, None] + jnp.arange(self.config.block_length, dtype=jnp.int32)

    def _with_unconditional(self, canvas: Canvas, rows: Rows) -> Rows:
        """For guidance, a second batch of the same rows whose prompt is masked."""
        if not self.config.cfg_scale:
            return rows
        prompt = take(canvas.state, rows.positions) == PROMPT
        blank = rows._replace(tokens=jnp.where(prompt, jnp.int32(self.mask_id), rows.tokens))
        return jax.tree.map(lambda *batches: jnp.concatenate(batches), rows, blank)

    def _guide(self, hidden: Float[Array, "BB R D"]) -> Float[Array, "B R D"]:
        """Classifier-free guidance: `un + (scale + 1) * (cond - un)`.

        LLaDA guides logits. The head is linear, so guiding its input gives the same, for D numbers
        a row instead of V.
        """
        if not self.config.cfg_scale:
            return hidden
        conditional, unconditional = jnp.split(hidden.astype(jnp.float32), 2)
        guided = unconditional + (self.config.cfg_scale + 1) * (conditional - unconditional)
        return guided.astype(hidden.dtype)

    def _weigh(self, canvas: Canvas, positions: Int[Array, "B C"], scores: Scores) -> Candidates:
        state = take(canvas.state, positions)
        is_open = (state == MASKED) & (positions < canvas.end[:, None]) & ~canvas.done[:, None]
        random = jnp.zeros(positions.shape, jnp.float32)
        if self.config.remasking == "random":
            keys = _step_keys(canvas, positions)
            random = jax.vmap(jax.vmap(lambda key: jax.random.uniform(key, (), jnp.float32)))(keys)
        due = quota(canvas.block_masks, canvas.block_step, self.config.steps_per_block)
        return Candidates(scores, is_open, random, due)

    def _next_block(self, canvas: Canvas) -> Canvas:
        """Count the step; where the block is over, go to the next one that has masks."""
        length = self.config.block_length
        position = positions_of(canvas)
        masked = canvas.state == MASKED
        stop = block_start(canvas, length) + length
        beyond = masked & (position >= stop[:, None])
        left = (masked & ~beyond & (position >= (stop - length)[:, None])).sum(axis=1)
        block_step = canvas.block_step + 1
        over = ~canvas.done & ((left == 0) | (block_step >= self.steps_per_block))
        first = jnp.argmax(beyond, axis=1).astype(jnp.int32)
        block = jnp.where(over, (first - canvas.origin) // length, canvas.block)
        block_masks = (masked & (_block_at(canvas, position, length) == block[:, None])).sum(
            axis=1, dtype=jnp.int32
        )
        done = over & ~beyond.any(axis=1)
        moved = over & ~done
        return canvas._replace(
            block=jnp.where(moved, block, canvas.block),
            block_step=jnp.where(moved, 0, block_step),
            block_masks=jnp.where(moved, block_masks, canvas.block_masks),
            done=canvas.done | done,
        )


def _step_keys(canvas: Canvas, positions: Int[Array, "B C"]) -> Key[Array, "B C"]:
    """A key for each candidate of the step that follows the canvas's last forward."""
    step_key = jax.vmap(jax.random.fold_in)(canvas.key, canvas.nfe)
    return jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)))(step_key, positions)


def _block_at(canvas: Canvas, position: Int[Array, " L"], block_length: int) -> Int[Array, "B L"]:
    return (position - canvas.origin[:, None]) // block_length
