"""The two loops that drive a step: compiled as one program, or from the host."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from llada_jax.on_mesh import MeshDenoiser
from llada_jax.programs import kept, own_jit
from llada_jax.sampler.decide import decide
from llada_jax.sampler.drafting import with_drafts
from llada_jax.sampler.plan import StepPlan, guide, plan_rows, step_rows
from llada_jax.sampler.record import OnStep, StepCounts, StepRecord, StepScores, view_of
from llada_jax.sampler.refresh import RefreshJob, merge, refresh_job
from llada_jax.sampler.spec import StepSpec
from llada_jax.sampler.state import DecodeState, take
from llada_jax.sampler.step import (
    ForwardOutput,
    absorb,
    by_position,
    rows_result,
    run_head,
    step,
)
from llada_jax.types import Denoiser, HeadOut, Params, Rows, RowsOut


class Refresher(NamedTuple):
    """What refreshes tokens that left the window: a thread, and the functions that it runs."""

    worker: Executor  # runs one job at a time while the loop goes on
    denoiser: Denoiser  # may be the run's own, if two threads may call it
    params: Params


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Decoding:
    """The input of both loops: settings with arrays for numbers, a model, and program sizes."""

    spec: StepSpec
    params: Params
    denoiser: Denoiser = field(metadata={"static": True})
    buckets: tuple[int, ...] = field(metadata={"static": True})  # rows of a forward, ascending
    max_steps: int = field(metadata={"static": True})  # of a canvas
    pauses: bool = field(default=False, metadata={"static": True})
    """Whether the loops return once a sequence has moved to another block."""


class Steps(NamedTuple):
    """Every step of a run, in numpy arrays."""

    records: Any  # a `StepRecord` with a leading step axis in each array
    rows: Int[np.ndarray, " S"]
    seconds: Float[np.ndarray, " S"]  # wall time; NaN if a compiled loop ran them all


@dataclass(frozen=True)
class TracedRunner:
    """Runs the parts of a step inside one JAX program, with a branch for each size."""

    denoiser: Denoiser
    buckets: tuple[int, ...]

    draft = staticmethod(with_drafts)
    plan = staticmethod(plan_rows)
    decide = staticmethod(decide)

    def run_rows(
        self, spec: StepSpec, params: Params, state: DecodeState, plan: StepPlan
    ) -> tuple[DecodeState, ForwardOutput, Int[Array, ""]]:
        def forward(params, state, plan, n_rows):
            rows = step_rows(spec, state, plan, n_rows)
            out = self.denoiser.forward_rows(params, rows, state.cache)
            # Every layer has read the cache before the first one writes: else XLA copies it whole.
            cache, out = jax.lax.optimization_barrier((state.cache, out))
            return rows_result(spec, params, state._replace(cache=cache), plan, rows, out)

        bucket = _bucket_index(self.buckets, plan.n_rows)
        branches = [partial(forward, n_rows=n_rows) for n_rows in self.buckets]
        result = jax.lax.switch(bucket, branches, params, state, plan)
        return *absorb(spec, state, plan, result), jnp.asarray(self.buckets, jnp.int32)[bucket]

    def score(
        self, spec: StepSpec, params: Params, state: DecodeState, denoised: ForwardOutput
    ) -> tuple[DecodeState, StepScores]:
        length = state.tokens.shape[1]
        head_sizes = spec.head_sizes(length)

        def score(params, denoised, n_heads):
            queried = denoised.first(n_heads)
            inputs = queried.hidden, queried.noise_keys, queried.request
            return by_position(spec, queried, run_head(self.denoiser, params, *inputs), length)

        size = _bucket_index(head_sizes, denoised.counts.head_rows)
        branches = [partial(score, n_heads=n_heads) for n_heads in head_sizes]
        return state, jax.lax.switch(size, branches, params, denoised)


def decode_step(decoding: Decoding, state: DecodeState) -> tuple[DecodeState, StepRecord]:
    """Runs one forward for every sequence that is not done, and decides by its scores.

    A pure function that can be jitted, scanned and vmapped; `llada_jax.start` makes its arguments.
    Under `jax.vmap` over states a forward of every compiled size runs.

    Returns:
      The next state, and the record of what happened: events and scores by position, and the
      number of rows of each kind.
    """
    runner = TracedRunner(decoding.denoiser, decoding.buckets)
    params = decoding.denoiser.loop_params(decoding.params)
    state, record, _ = step(runner, decoding.spec, params, state)
    return state, record


def _run_all(
    decoding: Decoding, state: DecodeState, until: Int[Array, ""], most: Int[Array, ""]
) -> tuple[DecodeState, StepRecord, Int[Array, " S"], Int[Array, ""]]:
    if isinstance(decoding.denoiser, MeshDenoiser):
        return decoding.denoiser.run_loop(_run_all, decoding, state, until, most)
    runner, limit = TracedRunner(decoding.denoiser, decoding.buckets), decoding.max_steps
    params = decoding.denoiser.loop_params(decoding.params)
    # Jitted once, so that the loop's body reuses the trace that found the record's shapes.
    one_step = jax.jit(partial(step, runner, decoding.spec), inline=True)
    record = jax.eval_shape(one_step, params, state)[1]
    records = jax.tree.map(lambda leaf: jnp.zeros((limit, *leaf.shape), leaf.dtype), record)

    def body(carry):
        index, state, records, rows = carry
        state, record, n_rows = one_step(params, state)
        records = jax.tree.map(lambda every, one: every.at[index].set(one), records, record)
        return index + 1, state, records, rows.at[index].set(n_rows)

    def unfinished(carry):
        goes_on = (carry[0] < most) & (carry[1].done.sum() < until)
        same = carry[1].block_start(block_length) == starts
        return goes_on & same.all() if decoding.pauses else goes_on

    block_length = decoding.spec.config.block_length
    starts = state.block_start(block_length)
    start = (jnp.int32(0), state, records, jnp.zeros(limit, jnp.int32))
    index, state, records, rows = jax.lax.while_loop(unfinished, body, start)
    return state, records, rows, index


@kept
def _compiled(on_mesh: bool, *shape: Any) -> Callable[..., Any]:
    return own_jit(_run_all, rounds=on_mesh, donate_argnames="state")


def program_of(decoding: Decoding, state: DecodeState) -> Callable[..., Any]:
    """Returns the compiled program that decodes canvases of this shape."""
    on_mesh = isinstance(decoding.denoiser, MeshDenoiser)
    return _compiled(on_mesh, jax.tree.structure(decoding), state.tokens.shape)


def compiled_loop(
    decoding: Decoding, state: DecodeState, until: int, most: int
) -> tuple[DecodeState, Steps]:
    """Decodes in one compiled program (`lax.while_loop`) until `until` sequences are done, or for
    `most` steps; consumes the state."""
    state, records, rows, count = program_of(decoding, state)(decoding, state, until, most)
    n_steps = int(count)
    records = jax.tree.map(lambda leaf: np.asarray(leaf)[:n_steps], records)
    return state, Steps(records, np.asarray(rows)[:n_steps], np.full(n_steps, np.nan))


def _decide_and_plan(
    spec: StepSpec, state: DecodeState, counts: StepCounts, scores: StepScores
) -> tuple[DecodeState, StepRecord, StepPlan]:
    """Decides a step, and plans the next one in the same program."""
    state, record = decide(spec, state, counts, scores)
    return state, record, plan_rows(spec, state)


def _absorb_rows(
    spec: StepSpec, params: Params, state: DecodeState, plan: StepPlan, rows: Rows, out: RowsOut
) -> tuple[DecodeState, ForwardOutput]:
    return absorb(spec, state, plan, rows_result(spec, params, state, plan, rows, out))


@kept
def _programs(*shape: Any) -> Any:
    """Returns the programs of the host loop apart from the denoiser, for one shape."""
    return SimpleNamespace(
        draft=own_jit(with_drafts, donate_argnames="state"),
        plan=own_jit(plan_rows),
        rows=own_jit(step_rows, static_argnums=3),
        absorb=own_jit(_absorb_rows, donate_argnames="state"),
        absorb_copy=own_jit(_absorb_rows),  # while a worker reads the cache
        refresh_job=own_jit(refresh_job),
        states_at=own_jit(lambda spec, hidden, rows: take(guide(spec, hidden), rows)),
        merge=own_jit(merge, donate_argnames=("state", "scores")),
        by_position=own_jit(by_position, static_argnames="length"),
        decide=own_jit(_decide_and_plan, donate_argnames="state"),
    )


class HostRunner:
    """Runs the parts of a step from Python, each as a separate program.

    The forward is one program for each bucket, whatever the sampler's rules are, and a denoiser
    that runs outside JAX is called as it is. A refresher refreshes tokens that left the window from
    the state at the start of a step; its results are merged when the step is scored.
    """

    def __init__(
        self, decoding: Decoding, shape: tuple[int, ...], refresher: Refresher | None
    ) -> None:
        self._programs = _programs(jax.tree.structure(decoding.spec), shape)
        self._denoiser = _jitted(decoding.denoiser, shape)
        self._buckets, self._length = decoding.buckets, shape[1]
        self._head_sizes = decoding.spec.head_sizes(self._length)
        if refresher is not None:
            refresher = refresher._replace(denoiser=_jitted(refresher.denoiser, shape))
        self._refresher = refresher if decoding.spec.config.has_worker else None
        self._refresh: tuple[RefreshJob, Future[tuple[RowsOut, HeadOut]]] | None = None
        self._planned: tuple[DecodeState | None, StepPlan | None] = (None, None)

    def draft(self, spec: StepSpec, params: Params, state: DecodeState) -> DecodeState:
        if spec.config.drafter is None:
            return state
        return self._programs.draft(spec, params, state)

    def plan(self, spec: StepSpec, state: DecodeState) -> StepPlan:
        planned_for, plan = self._planned  # `decide` has planned the step after it
        if plan is not None and planned_for is state:
            return plan
        return self._programs.plan(spec, state)

    def run_rows(
        self, spec: StepSpec, params: Params, state: DecodeState, plan: StepPlan
    ) -> tuple[DecodeState, ForwardOutput, int]:
        n_rows = _smallest(self._buckets, plan.n_rows, "rows")
        self._refresh = self._start_refresh(spec, state, plan)
        rows = self._programs.rows(spec, state, plan, n_rows)
        out = self._denoiser.forward_rows(params, rows, state.cache)
        programs = self._programs
        absorb_rows = programs.absorb if self._refresh is None else programs.absorb_copy
        if spec.config.drafter is None:  # nothing reads the parameters
            params = None
        return *absorb_rows(spec, params, state, plan, rows, out), n_rows

    def score(
        self, spec: StepSpec, params: Params, state: DecodeState, denoised: ForwardOutput
    ) -> tuple[DecodeState, StepScores]:
        n_heads = _smallest(self._head_sizes, denoised.counts.head_rows, "heads")
        queried = denoised.first(n_heads)
        inputs = queried.hidden, queried.noise_keys, queried.request
        head = run_head(self._denoiser, params, *inputs)
        scores = self._programs.by_position(spec, queried, head, length=self._length)
        if self._refresh is None:
            return state, scores
        job, results = self._refresh
        return self._programs.merge(state, scores, job, *results.result())

    def decide(
        self, spec: StepSpec, state: DecodeState, counts: StepCounts, scores: StepScores
    ) -> tuple[DecodeState, StepRecord]:
        state, record, plan = self._programs.decide(spec, state, counts, scores)
        self._planned = (state, plan)
        return state, record

    def _start_refresh(
        self, spec: StepSpec, state: DecodeState, plan: StepPlan
    ) -> tuple[RefreshJob, Future[tuple[RowsOut, HeadOut]]] | None:
        """Gives the worker the tokens that are to be refreshed, if there are any."""
        if self._refresher is None or not np.asarray(plan.refreshed).any():
            return None
        job, cache = self._programs.refresh_job(spec, state, plan), state.cache
        worker, denoiser, params = self._refresher

        def refresh() -> tuple[RowsOut, HeadOut]:
            out = denoiser.forward_rows(params, job.rows, cache)
            states = self._programs.states_at(spec, out.hidden, job.row)
            request = job.request if denoiser.measure_rows else None
            return jax.block_until_ready((out, run_head(denoiser, params, states, None, request)))

        return job, worker.submit(refresh)


def host_loop(
    decoding: Decoding,
    state: DecodeState,
    until: int,
    most: int,
    on_step: OnStep | None = None,
    refresher: Refresher | None = None,
    first: int = 0,
) -> tuple[DecodeState, Steps]:
    """Decodes step by step from Python, for backends and callbacks, until `until` sequences are
    done, or for `most` steps, which `on_step` counts from `first`; consumes the state."""
    runner = HostRunner(decoding, state.tokens.shape, refresher)
    spec, params = decoding.spec, decoding.params
    records, rows, seconds = [], [], []
    starts = np.array(state.block_start(spec.config.block_length))
    # At least one step, for the shapes of a record. Sequences that are done take no part in it.
    while not records or (len(records) < most and np.asarray(state.done).sum() < until):
        began = time.perf_counter()
        before = np.array(state.status) if on_step else None
        state, record, n_rows = step(runner, spec, params, state)
        records.append(jax.tree.map(np.asarray, record))
        rows.append(n_rows)
        seconds.append(time.perf_counter() - began)
        if on_step:
            on_step(view_of(first + len(records) - 1, int(n_rows), state, before))
        if decoding.pauses and (state.block_start(spec.config.block_length) != starts).any():
            break
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *records)
    return state, Steps(stacked, np.asarray(rows, np.int32), np.asarray(seconds))


@kept
def _jitted(denoiser: Denoiser, *shape: Any) -> Denoiser:
    """Returns the same functions, compiled if they can be."""
    if not denoiser.traceable:
        return denoiser
    jitted = partial(own_jit, rounds=isinstance(denoiser, MeshDenoiser))
    return replace(
        denoiser,
        forward_rows=jitted(denoiser.forward_rows),
        score_rows=jitted(denoiser.score_rows),
        measure_rows=denoiser.measure_rows and jitted(denoiser.measure_rows),
    )


def _bucket_index(sizes: Sequence[int], needs: Int[Array, " B"]) -> Int[Array, ""]:
    """Returns the index of the smallest compiled size that is enough for every sequence."""
    return (jnp.asarray(sizes[:-1], jnp.int32) < needs.max()).sum(dtype=jnp.int32)


def _smallest(sizes: Sequence[int], needs: Int[Array, " B"], what: str) -> int:
    """Returns the smallest compiled size that is enough for every sequence."""
    needed = np.asarray(needs).max()
    assert needed <= sizes[-1], f"a step needs {needed} {what}; programs for {sizes}"
    return next(size for size in sizes if size >= needed)
