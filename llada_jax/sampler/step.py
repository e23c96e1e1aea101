"""One step of decoding: window -> forward_rows -> score_rows -> accept -> revise -> stop.

A step is a pure function from canvas to canvas; both loops run this one.
"""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from llada_jax.config import ModelConfig, SamplerConfig
from llada_jax.rows import make_rows, write_rows
from llada_jax.sampler.accept import (
    Accept,
    Bounds,
    Candidates,
    accept_for,
    draft_rule_for,
    quota,
)
from llada_jax.sampler.advance import Advance, advance_for, masks_left
from llada_jax.sampler.beside import (
    BRANCH,
    PROBE,
    REFRESH,
    SHADOW,
    Beside,
    beside,
    packed,
    rows_with,
)
from llada_jax.sampler.canvas import (
    MASKED,
    PROMPT,
    STABLE,
    VISIBLE,
    Canvas,
    Hypothesis,
    block_of,
    block_start,
    commit,
    in_span,
    positions_of,
    take,
)
from llada_jax.sampler.record import StepRecord, record_of
from llada_jax.sampler.revise import Rescored, Revise, revise_for
from llada_jax.sampler.stop import Stop, stop_for
from llada_jax.sampler.window import MultiBlock, Span, Window, attention_order, window_for
from llada_jax.types import Denoiser, Params, Rows, RowsOut, Scores


class Query(NamedTuple):
    """What a step asks the model: which positions are scored, by which of its rows."""

    at: Int[Array, "B Q"]  # position; plus L in the branch; 2 L where nothing is asked
    row: Int[Array, "B Q"]
    rescored: Bool[Array, "B L"]  # visible tokens among them
    refreshed: Bool[Array, "B L"]  # visible tokens outside the window that are refreshed
    waiting: Bool[Array, "B L"]  # and those that are not, for now


class Counts(NamedTuple):
    """How many rows of each kind a forward had."""

    live_rows: Int[Array, " B"]
    shadow_rows: Int[Array, " B"]
    draft_rows: Int[Array, " B"]
    branch_rows: Int[Array, " B"]
    refreshed: Int[Array, " B"]  # tokens
    head_rows: Int[Array, " B"]
    cache_length: Int[Array, " B"]  # cached positions that the rows read


class Denoised(NamedTuple):
    """What a forward leaves for the decision, whatever its number of rows was."""

    hidden: Float[Array, "B Q D"]  # states that predict what was asked
    noise_keys: Key[Array, "B Q"] | None  # for the scores; None at temperature 0
    query: Query
    counts: Counts


class Said(NamedTuple):
    """The scores of a step by position, [B, L]; token -1 where there is none."""

    here: Scores
    ahead: Scores  # in the branch


class RefreshJob(NamedTuple):
    """A forward of its own that refreshes tokens which left the window."""

    rows: Rows
    at: Int[Array, "B F"]  # positions of the tokens; L where there is none
    row: Int[Array, "B F"]  # the rows that score them


@dataclass(frozen=True)
class Decoder:
    """A sampler for the models of one shape. Hashable: a static argument of the compiled loops."""

    model: ModelConfig
    config: SamplerConfig

    @cached_property
    def window(self) -> Window:
        return window_for(self.config, self.shift)

    @cached_property
    def accept(self) -> Accept:
        return accept_for(self.config)

    @cached_property
    def accept_draft(self) -> Accept:
        return draft_rule_for(self.config)

    @cached_property
    def revise(self) -> Revise:
        return revise_for(self.config)

    @cached_property
    def advance(self) -> Advance:
        return advance_for(self.config)

    @cached_property
    def stop(self) -> Stop:
        return stop_for(self.config)

    @property
    def mask_id(self) -> int:
        assert self.config.mask_id is not None
        return self.config.mask_id

    @property
    def shift(self) -> int:
        """How many positions before a token its prediction stands."""
        return int(self.model.shift_logits)

    @property
    def drafts(self) -> bool:
        """Whether the window reaches into later blocks."""
        return isinstance(self.window, MultiBlock)

    @property
    def shadows(self) -> bool:
        """Whether visible tokens of the window are scored by rows of their own."""
        return self.config.revises and self.config.rescore == "shadow"

    def most_beside(self, length: int) -> int:
        """The most rows that stand beside the window, in a canvas of `length`."""
        block = self.config.block_length
        shadows = self._most_in_window(length)
        refreshed = 2 * self.config.refresh_rows
        return (
            self.shadows * shadows
            + (self.config.refreshes and not self.config.has_worker) * refreshed
            + self.config.lossless * 2 * block
        )

    def most_asked(self, length: int) -> int:
        """The most positions that one step scores."""
        config, block = self.config, self.config.block_length
        asked = self.window.most_rows if isinstance(self.window, MultiBlock) else block
        if config.revises:
            asked += self._most_in_window(length)
        return (
            min(asked + self.config.refreshes * config.refresh_rows, length)
            + config.lossless * block
        )

    def _most_in_window(self, length: int) -> int:
        """The most positions of the window that may be visible, the prompt aside."""
        if self.config.cache == "none":
            return length
        window = self.window
        return window.most_rows if isinstance(window, MultiBlock) else 2 * self.config.block_length

    def span(self, canvas: Canvas) -> Span:
        """The positions that the next forward runs; none for rows that are done."""
        start, stop = self.window.span(canvas)
        start = jnp.maximum(start - self.shift, 0)
        return Span(start, jnp.where(canvas.done, start, stop))

    def rows_needed(self, canvas: Canvas) -> Int[Array, ""]:
        """Rows of the next forward, of the batch's row that needs most."""
        start, stop = self.span(canvas)
        return (stop - start + self.others(canvas).count).max()

    def others(self, canvas: Canvas) -> Beside:
        """The rows beside the window."""
        shadow = refreshed = probe = branch = None
        if self.shadows:
            shadow = self._visible(canvas) & in_span(canvas, *self.span(canvas))
        if self.config.refreshes and not self.config.has_worker:
            refreshed, _ = self._refreshed(canvas)
            probe = refreshed if self.config.rescore == "shadow" else None
        if canvas.hypothesis is not None:
            branch = canvas.hypothesis.rows
        return beside(shadow, refreshed, probe, branch, like=canvas.tokens)

    def rows(self, canvas: Canvas, n_rows: int) -> Rows:
        """The rows of the next forward."""
        span = self.span(canvas)
        if self.most_beside(canvas.tokens.shape[1]):
            rows = self._rows_with(canvas, self.others(canvas), span, n_rows)
        else:
            rows = self._rows_alone(canvas, span, n_rows)
        return self._with_unconditional(canvas, rows)

    def refresh_job(self, canvas: Canvas) -> RefreshJob:
        """What a worker runs beside the next forward: it sees the cache as it is now."""
        chosen, _ = self._refreshed(canvas)
        shadow = self.config.rescore == "shadow"
        others = beside(refresh=chosen, probe=chosen if shadow else None, like=canvas.tokens)
        nothing = Span(canvas.settled, canvas.settled)
        n_tokens = self.config.refresh_rows
        rows = self._rows_with(canvas, others, nothing, (1 + shadow) * n_tokens)
        at = packed(chosen, n_tokens)
        row = take(others.slots[:, PROBE if shadow else REFRESH], at)
        return RefreshJob(self._with_unconditional(canvas, rows), at, row)

    def refresh(self, hidden: Float[Array, "BB F D"], job: RefreshJob) -> Float[Array, "B F D"]:
        """The states that score the tokens of a job."""
        return take(self._guide(hidden), job.row)

    def absorb(self, canvas: Canvas, rows: Rows, out: RowsOut) -> tuple[Canvas, Denoised]:
        """The canvas with the forward's keys and values, and what the decision needs of it."""
        cache = canvas.cache
        if cache.keys.shape[2]:
            cache = write_rows(cache, rows, out)
        others = self.others(canvas)
        query = self._query(canvas, others)
        counts = self._counts(canvas, rows, others, query)
        alive = (~canvas.done).astype(canvas.nfe.dtype)
        canvas = canvas._replace(
            cache=cache,
            settled=jnp.where(canvas.done, canvas.settled, self.window.settled(canvas)),
            nfe=canvas.nfe + alive,
            step=canvas.step + alive,
        )
        hidden = take(self._guide(out.hidden), query.row)
        keys = self._noise_keys(canvas, query.at) if self.config.temperature > 0 else None
        return canvas, Denoised(hidden, keys, query, counts)

    def denoise(
        self, denoiser: Denoiser, params: Params, canvas: Canvas, n_rows: int
    ) -> tuple[Canvas, Denoised]:
        """One forward of `n_rows` rows, at least `rows_needed`."""
        rows = self.rows(canvas, n_rows)
        return self.absorb(canvas, rows, denoiser.forward_rows(params, rows, canvas.cache))

    def head_sizes(self, length: int) -> tuple[int, ...]:
        """How many positions a forward's head may score, ascending; the last one holds all."""
        most = self.most_asked(length)
        if not self.config.selective_logits:
            return (most,)
        sizes, size = [], max(1, self.config.block_length // 4)
        while size < most:
            sizes.append(size)
            size *= 2
        return (*sizes, most)

    def score(self, denoiser: Denoiser, params: Params, denoised: Denoised, n_heads: int) -> Said:
        """The scores of what was asked, from a head of `n_heads` rows."""
        keys = denoised.noise_keys
        keys = None if keys is None else keys[:, :n_heads]
        scores = denoiser.score_rows(params, denoised.hidden[:, :n_heads], keys)
        return self.said(denoised.query, scores)

    def said(self, query: Query, scores: Scores) -> Said:
        """Scores by position."""
        length = query.rescored.shape[1]
        whole = _spread(query.at[:, : scores.token.shape[1]], scores, 2 * length)
        return Said(
            Scores(*(array[:, :length] for array in whole)),
            Scores(*(array[:, length:] for array in whole)),
        )

    def merge(
        self,
        canvas: Canvas,
        query: Query,
        said: Said,
        job: RefreshJob,
        out: RowsOut,
        scores: Scores,
    ) -> tuple[Canvas, Query, Said]:
        """What a worker found, at the boundary of the step that it ran beside."""
        at = _spread(job.at, scores, canvas.tokens.shape[1])
        found = at.token >= 0
        here = jax.tree.map(partial(jnp.where, found), at, said.here)
        canvas = canvas._replace(cache=write_rows(canvas.cache, job.rows, out))
        return canvas, query._replace(rescored=query.rescored | found), said._replace(here=here)

    def decide(
        self, canvas: Canvas, denoised: Denoised, said: Said, bounds: Bounds
    ) -> tuple[Canvas, StepRecord]:
        """Commit and revise what the scores allow, go on to the next block or stop."""
        before = canvas
        canvas = canvas._replace(said=_latest(canvas.said, said))
        canvas = self._commit(canvas, said.here, bounds, self.accept, ~canvas.done)
        accepted = ((before.state == MASKED) & (canvas.state != MASKED)).sum(1, dtype=jnp.int32)
        query = denoised.query
        passed = positions_of(canvas) < self.window.span(canvas).start[:, None]
        rescored = Rescored(said.here, query.rescored, passed, accepted)
        revised = self.revise(canvas, rescored, bounds)
        edited = ((revised.tokens != before.tokens) & query.rescored).any(axis=1)
        stale = (before.stale & ~query.refreshed) | ((revised.tokens != before.tokens) & passed)
        canvas = self._drop(revised, query)._replace(accepted=accepted, stale=stale)
        canvas = decided = self.stop(self.advance(canvas, edited, ~before.done))
        if self.drafts and self.config.draft_scores == "same_forward":
            canvas = self._accept_drafts(canvas, before, said, bounds)
        if self.config.lossless:
            canvas = self._take_branch(canvas, said, bounds)
            canvas = canvas._replace(hypothesis=self._hypothesis(canvas, bounds))
        return canvas, record_of(denoised.counts, before, revised, decided, canvas)

    def _rows_alone(self, canvas: Canvas, span: Span, n_rows: int) -> Rows:
        positions = span.start[:, None] + jnp.arange(n_rows, dtype=jnp.int32)
        live = positions < span.stop[:, None]
        cached, slots = self._cached(canvas)
        slot_order = self._order(canvas, slots)
        return make_rows(
            take(self._fed(canvas), positions),
            positions,
            live,
            cached,
            self._order(canvas, positions),
            None if slot_order is None else jnp.broadcast_to(slot_order, cached.shape),
        )

    def _rows_with(self, canvas: Canvas, others: Beside, span: Span, n_rows: int) -> Rows:
        hypothesis = canvas.hypothesis
        return rows_with(
            others,
            span,
            n_rows,
            fed=self._fed(canvas),
            branch_fed=canvas.tokens if hypothesis is None else hypothesis.tokens,
            cached=self._cached(canvas)[0],
            order=partial(self._order, canvas),
            branch_start=block_start(canvas, self.config.block_length),
            mask_id=self.mask_id,
            order_binds_refresh=self.model.block_length is not None,
        )

    def _cached(self, canvas: Canvas) -> tuple[Bool[Array, "B T"], Int[Array, "1 T"]]:
        """Cached positions that may be read, and all positions of the cache."""
        slots = jnp.arange(canvas.cache.keys.shape[2], dtype=jnp.int32)[None, :]
        return slots < canvas.settled[:, None], slots

    def _order(self, canvas: Canvas, positions: Int[Array, "B R"]) -> Int[Array, "B R"] | None:
        return attention_order(canvas, positions, self.config, self.model)

    def _fed(self, canvas: Canvas) -> Int[Array, "B L"]:
        """What the window's rows feed: the canvas, and perhaps the last draft of later blocks."""
        if not self.drafts or self.config.draft_feed == "mask":
            return canvas.tokens
        draft = self._is_draft(canvas) & (canvas.said.token >= 0)
        return jnp.where(draft, canvas.said.token, canvas.tokens)

    def _is_draft(self, canvas: Canvas) -> Bool[Array, "B L"]:
        block = block_of(canvas, positions_of(canvas)[None], self.config.block_length)
        return (canvas.state == MASKED) & (block > canvas.block[:, None])

    def _visible(self, canvas: Canvas) -> Bool[Array, "B L"]:
        return (canvas.state == VISIBLE) & ~canvas.done[:, None]

    def _refreshed(self, canvas: Canvas) -> tuple[Bool[Array, "B L"], Bool[Array, "B L"]]:
        """Visible tokens outside the window: those that are refreshed in this step, and others."""
        position = positions_of(canvas)
        left = self._visible(canvas) & (position < canvas.settled[:, None])
        priority = {
            "least_confident": -canvas.confidence,
            "leftmost": jnp.broadcast_to(-position, left.shape).astype(jnp.float32),
            "rightmost": jnp.broadcast_to(position, left.shape).astype(jnp.float32),
        }[self.config.refresh_order]
        count = min(self.config.refresh_rows, left.shape[1])
        best, index = jax.lax.top_k(jnp.where(left, priority, -jnp.inf), count)
        batch = jnp.arange(left.shape[0])[:, None]
        chosen = jnp.zeros_like(left).at[batch, index].set(best > -jnp.inf)
        return chosen, left & ~chosen

    def _query(self, canvas: Canvas, others: Beside) -> Query:
        span = self.span(canvas)
        n_window = (span.stop - span.start)[:, None]
        slots, kinds = others.slots + n_window[:, :, None], others.kinds
        row = jnp.maximum(positions_of(canvas) - self.shift - span.start[:, None], 0)
        refreshed = waiting = jnp.zeros(canvas.tokens.shape, bool)
        if self.config.refreshes:
            refreshed, waiting = self._refreshed(canvas)
        for kind in (SHADOW, PROBE) if self.shadows else (REFRESH,):
            row = jnp.where(kinds[:, kind], slots[:, kind], row)
        rescored = self._rescored(canvas, span, kinds)
        asked = self._asked(canvas, span) | rescored
        expected = kinds[:, BRANCH]
        if canvas.hypothesis is not None:
            expected &= canvas.hypothesis.tokens == self.mask_id
        flags = jnp.concatenate([asked, expected], axis=1)
        at = packed(flags, self.most_asked(canvas.tokens.shape[1]))
        rows = take(jnp.concatenate([row, slots[:, BRANCH]], axis=1), at)
        return Query(at, jnp.maximum(rows, 0), rescored, refreshed, waiting)

    def _rescored(
        self, canvas: Canvas, span: Span, kinds: Bool[Array, "B 4 L"]
    ) -> Bool[Array, "B L"]:
        if self.shadows:
            return kinds[:, SHADOW] | kinds[:, PROBE]
        if not self.config.revises:
            return jnp.zeros(canvas.tokens.shape, bool)
        return (self._visible(canvas) & in_span(canvas, *span)) | kinds[:, REFRESH]

    def _asked(self, canvas: Canvas, span: Span) -> Bool[Array, "B L"]:
        """Positions of the current block and drafts: the masked ones, or all."""
        length = self.config.block_length
        start = block_start(canvas, length)
        stop = span.stop if self.drafts else jnp.minimum(start + length, canvas.end)
        asked = in_span(canvas, start, stop) & ~canvas.done[:, None]
        if self.config.selective_logits:
            asked &= canvas.state == MASKED
        return asked

    def _counts(self, canvas: Canvas, rows: Rows, others: Beside, query: Query) -> Counts:
        batch = canvas.tokens.shape[0]

        def total(flags: Bool[Array, "B X"]) -> Int[Array, " B"]:
            return flags.sum(axis=1, dtype=jnp.int32)

        return Counts(
            live_rows=total(rows.live[:batch]),
            shadow_rows=total(others.kinds[:, SHADOW] | others.kinds[:, PROBE]),
            draft_rows=total(self._is_draft(canvas) & in_span(canvas, *self.span(canvas))),
            branch_rows=total(others.kinds[:, BRANCH]),
            refreshed=total(query.refreshed),
            head_rows=total(query.at < 2 * canvas.tokens.shape[1]),
            cache_length=total(rows.sees_cache[:batch].any(axis=1)),
        )

    def _noise_keys(self, canvas: Canvas, at: Int[Array, "B Q"]) -> Key[Array, "B Q"]:
        length = canvas.tokens.shape[1]
        ahead = at // length  # the branch is the next step
        return _step_keys(canvas, at % length, canvas.step[:, None] + ahead)

    def _candidates(self, canvas: Canvas) -> Int[Array, "B C"]:
        start = block_start(canvas, self.config.block_length)
        return start[:, None] + jnp.arange(self.config.block_length, dtype=jnp.int32)

    def _commit(
        self,
        canvas: Canvas,
        said: Scores,
        bounds: Bounds,
        rule: Accept,
        where: Bool[Array, " B"],
        *,
        ahead: bool = False,
    ) -> Canvas:
        """The current block with what `rule` accepts, in the rows `where`.

        Drafts (`ahead`) are not stable before a forward of their own block has measured them again.
        """
        positions = self._candidates(canvas)
        scores = Scores(*(take(array, positions) for array in said))
        candidates = self._weigh(canvas, positions, scores, where)
        transfer_mask = rule(candidates, bounds.accept)
        state = jnp.int8(VISIBLE if self.config.revises else STABLE)
        states = jnp.broadcast_to(state, positions.shape)
        if self.config.accept == "staged" and not ahead:
            states = jnp.where(scores.confidence >= bounds.revise, jnp.int8(STABLE), states)
        return commit(
            canvas,
            positions,
            scores.token,
            scores.confidence,
            transfer_mask,
            states,
            self.mask_id,
        )

    def _weigh(
        self,
        canvas: Canvas,
        positions: Int[Array, "B C"],
        scores: Scores,
        where: Bool[Array, " B"],
    ) -> Candidates:
        state = take(canvas.state, positions)
        is_open = (state == MASKED) & (positions < canvas.end[:, None]) & (scores.token >= 0)
        random = jnp.zeros(positions.shape, jnp.float32)
        if self.config.remasking == "random":
            keys = _step_keys(canvas, positions, canvas.step[:, None])
            random = jax.vmap(jax.vmap(lambda key: jax.random.uniform(key, (), jnp.float32)))(keys)
        due = quota(canvas.block_masks, canvas.block_step, self.config.steps_per_block)
        return Candidates(scores, is_open & where[:, None], random, due)

    def _drop(self, canvas: Canvas, query: Query) -> Canvas:
        """Tokens that no refresh had room for stay as they are, where they may not wait; but for
        those whose key and value the cache does not have."""
        if self.config.refresh_overflow == "carry":
            return canvas
        dropped = query.waiting & ~canvas.stale
        return canvas._replace(state=jnp.where(dropped, jnp.int8(STABLE), canvas.state))

    def _accept_drafts(self, canvas: Canvas, before: Canvas, said: Said, bounds: Bounds) -> Canvas:
        """Blocks that have become current take over drafts by the scores of this very forward; a
        block that they complete makes way for the next one at once."""

        def another(carry):
            return carry[1].any()

        def take_over(carry):
            canvas, moved = carry
            at = canvas.block
            canvas = self._commit(canvas, said.here, bounds, self.accept_draft, moved, ahead=True)
            nothing = jnp.zeros_like(moved)
            canvas = self.stop(self.advance(canvas, nothing, moved, counts=False))
            return canvas, (canvas.block != at) & ~canvas.done

        moved = (canvas.block != before.block) & ~canvas.done
        return jax.lax.while_loop(another, take_over, (canvas, moved))[0]

    def _take_branch(self, canvas: Canvas, said: Said, bounds: Bounds) -> Canvas:
        """Where this step committed just what was expected, the branch is the next step's forward:
        decide that one, too."""
        assert canvas.hypothesis is not None
        expected, rows = canvas.hypothesis
        hit = rows.any(axis=1) & ~canvas.done & (canvas.tokens == expected).all(axis=1)
        latest = _latest(canvas.said, Said(said.ahead, said.here))
        canvas = canvas._replace(
            step=canvas.step + hit.astype(canvas.step.dtype),
            said=jax.tree.map(partial(jnp.where, hit[:, None]), latest, canvas.said),
        )
        canvas = self._commit(canvas, said.ahead, bounds, self.accept, hit)
        return self.stop(self.advance(canvas, jnp.zeros_like(hit), hit))

    def _hypothesis(self, canvas: Canvas, bounds: Bounds) -> Hypothesis:
        """What the next step is expected to commit, judging by the last scores; and the rows of the
        step after it, while the block has few masks left."""
        length = self.config.block_length
        left = masks_left(canvas, length)
        late = (left > 0) & (left <= self.config.lookahead_trigger) & ~canvas.done
        coming = canvas._replace(step=canvas.step + 1)
        then = self._commit(coming, canvas.said, bounds, self._expect, late)
        expected = late & (then.tokens != canvas.tokens).any(axis=1)
        then = self.advance(then, jnp.zeros_like(late), expected)
        start = block_start(canvas, length)
        stop = jnp.minimum(block_start(then, length) + length, then.end)
        rows = in_span(canvas, start, stop) & (expected & ~then.done)[:, None]
        return Hypothesis(then.tokens, rows)

    def _expect(self, candidates: Candidates, bound: Float[Array, ""]) -> Bool[Array, "B C"]:
        taken = self.accept(candidates, bound)
        if self.config.guess_threshold is not None:
            reached = candidates.scores.confidence >= self.config.guess_threshold
            taken |= candidates.open & reached
        return taken

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


def _spread(at: Int[Array, "B Q"], scores: Scores, length: int) -> Scores:
    """Scores by position, [B, length]; token -1 where there is none."""
    batch = at.shape[0]
    index = jnp.arange(batch)[:, None]

    def spread(array: Array, nothing: int) -> Array:
        empty = jnp.full((batch, length), nothing, array.dtype)
        return empty.at[index, at].set(array, mode="drop")

    return Scores(spread(scores.token, -1), *(spread(array, 0) for array in scores[1:]))


def _latest(old: Scores, said: Said) -> Scores:
    """The last scores of each position; those of the branch where the forward had no others."""
    for new in (said.ahead, said.here):
        old = jax.tree.map(partial(jnp.where, new.token >= 0), new, old)
    return old


def _step_keys(
    canvas: Canvas, positions: Int[Array, "B C"], step: Int[Array, "B C"]
) -> Key[Array, "B C"]:
    """A key for each position in the decision of number `step`."""
    in_row = jax.vmap(
        lambda key, step, position: jax.random.fold_in(jax.random.fold_in(key, step), position),
        (None, 0, 0),
    )
    return jax.vmap(in_row)(canvas.key, jnp.broadcast_to(step, positions.shape), positions)
