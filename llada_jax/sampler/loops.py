"""The two loops that drive a step: compiled as one program, or from the host.

Both choose, before each step, the smallest bucket that holds the rows that it plans.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from llada_jax.on_mesh import loop_on_all
from llada_jax.programs import kept, own_jit
from llada_jax.sampler.canvas import Canvas, take
from llada_jax.sampler.decide import decide
from llada_jax.sampler.record import OnStep, StepCounts, StepRecord, StepScores, view_of
from llada_jax.sampler.refresh import RefreshJob, merge, refresh_job
from llada_jax.sampler.setup import Setup
from llada_jax.sampler.step import absorb, by_position, head_out, run_head
from llada_jax.sampler.step_plan import StepPlan, plan_step
from llada_jax.sampler.step_rows import guide, step_rows
from llada_jax.types import Denoiser, HeadOut, Params, RowsOut


class Refresher(NamedTuple):
    """What refreshes tokens that left the window: a thread, and the functions that it runs."""

    worker: Executor  # does one job at a time beside the loop
    denoiser: Denoiser  # may be the run's own, where that can be called by two threads
    params: Params


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Decoding:
    """What both loops drive: settings whose numbers are arrays, a model, and sizes of programs."""

    setup: Setup
    params: Params
    denoiser: Denoiser = field(metadata={"static": True})
    buckets: tuple[int, ...] = field(metadata={"static": True})  # rows of a forward, ascending
    limit: int = field(metadata={"static": True})  # the most steps that a canvas may take


class Steps(NamedTuple):
    """Every step of a run, in numpy arrays."""

    records: Any  # a `StepRecord` with a leading step axis in each array
    rows: Int[np.ndarray, " S"]
    seconds: Float[np.ndarray, " S"]  # wall time; NaN where a compiled loop ran them all


def _run_whole(
    decoding: Decoding, canvas: Canvas, until: Int[Array, ""], most: Int[Array, ""]
) -> tuple[Canvas, StepRecord, Int[Array, " S"], Int[Array, ""]]:
    place = decoding.denoiser.on_mesh
    if place is not None:
        return loop_on_all(place, _run_whole, decoding, canvas, until, most)
    setup, denoiser, limit = decoding.setup, decoding.denoiser, decoding.limit
    params = denoiser.for_loops(decoding.params)
    length = canvas.tokens.shape[1]
    head_buckets = setup.head_sizes(length)
    sizes, head_sizes = (jnp.asarray(each, jnp.int32) for each in (decoding.buckets, head_buckets))

    def forward(params, canvas, plan, n_rows):
        rows = step_rows(setup, canvas, plan, n_rows)
        out = denoiser.forward_rows(params, rows, canvas.cache)
        # Every layer has read the cache before the first one writes: else XLA copies it whole.
        cache, out = jax.lax.optimization_barrier((canvas.cache, out))
        return absorb(setup, canvas._replace(cache=cache), plan, rows, out)

    def score(params, denoised, n_heads):
        head = run_head(denoiser, params, denoised, n_heads)
        return by_position(setup, denoised, head, length)

    forwards = [partial(forward, n_rows=n_rows) for n_rows in decoding.buckets]
    heads = [partial(score, n_heads=n_heads) for n_heads in head_buckets]

    @partial(jax.jit, inline=True)  # so that the loop's body is what was traced for its shapes
    def one_step(params, canvas):
        plan = plan_step(setup, canvas)
        bucket = jnp.searchsorted(sizes, plan.n_rows.max())
        canvas, denoised = jax.lax.switch(bucket, forwards, params, canvas, plan)
        head = jnp.searchsorted(head_sizes, denoised.counts.head_rows.max())
        scores = jax.lax.switch(head, heads, params, denoised)
        canvas, record = decide(setup, canvas, plan, denoised.counts, scores)
        return canvas, record, sizes[bucket]

    record = jax.eval_shape(one_step, params, canvas)[1]
    records = jax.tree.map(lambda leaf: jnp.zeros((limit, *leaf.shape), leaf.dtype), record)

    def body(carry):
        step, canvas, records, rows = carry
        canvas, record, n_rows = one_step(params, canvas)
        records = jax.tree.map(lambda all_, one: all_.at[step].set(one), records, record)
        return step + 1, canvas, records, rows.at[step].set(n_rows)

    def unfinished(carry):
        return (carry[0] < most) & (carry[1].done.sum() < until)

    start = (jnp.int32(0), canvas, records, jnp.zeros(limit, jnp.int32))
    step, canvas, records, rows = jax.lax.while_loop(unfinished, body, start)
    return canvas, records, rows, step


@kept
def _compiled(on_mesh: bool, *shape: Any) -> Callable[..., Any]:
    return own_jit(_run_whole, rounds=on_mesh, donate_argnames="canvas")


def program_of(decoding: Decoding, canvas: Canvas) -> Callable[..., Any]:
    """Returns the compiled program that decodes canvases of this shape."""
    on_mesh = decoding.denoiser.on_mesh is not None
    return _compiled(on_mesh, jax.tree.structure(decoding), canvas.tokens.shape)


def compiled_loop(
    decoding: Decoding, canvas: Canvas, until: int, most: int
) -> tuple[Canvas, Steps]:
    """Decodes in one compiled program (`lax.while_loop`) until so many rows are done, or for `most`
    steps; consumes the canvas."""
    canvas, records, rows, count = program_of(decoding, canvas)(decoding, canvas, until, most)
    done = int(count)
    records = jax.tree.map(lambda leaf: np.asarray(leaf)[:done], records)
    return canvas, Steps(records, np.asarray(rows)[:done], np.full(done, np.nan))


def _decide_and_plan(
    setup: Setup, canvas: Canvas, plan: StepPlan, counts: StepCounts, scores: StepScores
) -> tuple[Canvas, StepRecord, StepPlan]:
    """Decides a step, and plans the next one in the same program."""
    canvas, record = decide(setup, canvas, plan, counts, scores)
    return canvas, record, plan_step(setup, canvas)


@kept
def _programs(*shape: Any) -> Any:
    """Returns what the host loop runs beside the denoiser, for one shape."""
    return SimpleNamespace(
        plan=own_jit(plan_step),
        rows=own_jit(step_rows, static_argnums=3),
        absorb=own_jit(absorb, donate_argnames="canvas"),
        absorb_copy=own_jit(absorb),  # while a worker reads the cache
        refresh_job=own_jit(refresh_job),
        states_at=own_jit(lambda setup, hidden, rows: take(guide(setup, hidden), rows)),
        merge=own_jit(merge, donate_argnames=("canvas", "scores")),
        by_position=own_jit(by_position, static_argnames="length"),
        decide=own_jit(_decide_and_plan, donate_argnames="canvas"),
    )


def host_loop(
    decoding: Decoding,
    canvas: Canvas,
    until: int,
    most: int,
    on_step: OnStep | None = None,
    refresher: Refresher | None = None,
) -> tuple[Canvas, Steps]:
    """Decodes step by step from Python, for backends and callbacks, until so many rows are done,
    or for `most` steps; consumes the canvas.

    The forward is a program of its own, one for each bucket, whatever the sampler's rules are. A
    denoiser that runs outside JAX is called as it is. A refresher refreshes tokens that left the
    window, from the state at the start of a step, and its results are merged at the step's end.
    """
    setup, params, shape = decoding.setup, decoding.params, canvas.tokens.shape
    programs = _programs(jax.tree.structure(setup), shape)
    denoiser = _callable(decoding.denoiser, shape)
    if refresher is not None:
        refresher = refresher._replace(denoiser=_callable(refresher.denoiser, shape))
    records, rows_run, seconds = [], [], []
    length = shape[1]
    head_sizes = setup.head_sizes(length)
    plan = programs.plan(setup, canvas)
    # One step at least: its record has the shapes of none. Rows that are done take no part in it.
    while not records or (len(records) < most and np.asarray(canvas.done).sum() < until):
        began = time.perf_counter()
        n_rows = _holding(decoding.buckets, plan.n_rows, "rows")
        before = np.array(canvas.state) if on_step else None
        refresh = _start_refresh(setup, programs, canvas, plan, refresher)
        rows = programs.rows(setup, canvas, plan, n_rows)
        out = denoiser.forward_rows(params, rows, canvas.cache)
        keep = programs.absorb if refresh is None else programs.absorb_copy
        canvas, denoised = keep(setup, canvas, plan, rows, out)
        n_heads = _holding(head_sizes, denoised.counts.head_rows, "heads")
        head = run_head(denoiser, params, denoised, n_heads)
        scores = programs.by_position(setup, denoised, head, length=length)
        if refresh is not None:
            job, found = refresh
            canvas, plan, scores = programs.merge(canvas, plan, scores, job, *found.result())
        canvas, record, plan = programs.decide(setup, canvas, plan, denoised.counts, scores)
        records.append(jax.tree.map(np.asarray, record))
        rows_run.append(n_rows)
        seconds.append(time.perf_counter() - began)
        if on_step:
            on_step(view_of(len(records) - 1, n_rows, canvas, before))
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *records)
    return canvas, Steps(stacked, np.asarray(rows_run, np.int32), np.asarray(seconds))


def _callable(denoiser: Denoiser, shape: tuple[int, ...]) -> Denoiser:
    """Returns the same functions, compiled where they can be."""
    return _traced(denoiser, shape) if denoiser.traceable else denoiser


@kept
def _traced(denoiser: Denoiser, *shape: Any) -> Denoiser:
    jitted = partial(own_jit, rounds=denoiser.on_mesh is not None)
    return denoiser._replace(
        forward_rows=jitted(denoiser.forward_rows),
        score_rows=jitted(denoiser.score_rows),
        measure_rows=denoiser.measure_rows and jitted(denoiser.measure_rows),
    )


def _holding(sizes: Sequence[int], needs: Int[Array, " B"], what: str) -> int:
    """Returns the smallest compiled size that holds what a step needs in each batch row."""
    needed = np.asarray(needs).max()
    assert needed <= sizes[-1], f"a step needs {needed} {what}; programs for {sizes}"
    return next(size for size in sizes if size >= needed)


def _start_refresh(
    setup: Setup, programs: Any, canvas: Canvas, plan: StepPlan, refresher: Refresher | None
) -> tuple[RefreshJob, Future[tuple[RowsOut, HeadOut]]] | None:
    """Gives the worker what is to be refreshed, if anything is."""
    if refresher is None or not setup.config.has_worker or not np.asarray(plan.refreshed).any():
        return None
    job, cache = programs.refresh_job(setup, canvas, plan), canvas.cache
    worker, denoiser, params = refresher

    def refresh() -> tuple[RowsOut, HeadOut]:
        out = denoiser.forward_rows(params, job.rows, cache)
        states = programs.states_at(setup, out.hidden, job.row)
        asked = job.asked if denoiser.measure_rows else None
        return jax.block_until_ready((out, head_out(denoiser, params, states, None, asked)))

    return job, worker.submit(refresh)
