"""Steps around a denoiser outside JAX, or beside a worker that refreshes tokens."""

from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Int

from llada_jax.on_mesh import MeshDenoiser
from llada_jax.programs import kept, own_jit
from llada_jax.sampler.decide import decide
from llada_jax.sampler.drafting import with_drafts
from llada_jax.sampler.plan import StepPlan, guide, step_rows
from llada_jax.sampler.record import StepRecord
from llada_jax.sampler.refresh import RefreshJob, merge, refresh_job
from llada_jax.sampler.runner import Decoding, plan_with_numbers, smallest_size, spec_program
from llada_jax.sampler.spec import StepSpec
from llada_jax.sampler.state import DecodeState, take
from llada_jax.sampler.step import (
    absorb,
    by_position,
    counted_nfe,
    head_inputs,
    rows_result,
    run_head,
)
from llada_jax.types import (
    Denoiser,
    HeadOut,
    HeadRequest,
    Hidden,
    NoiseKeys,
    Params,
    Rows,
    RowsOut,
)


class Refresher(NamedTuple):
    """What refreshes tokens that left the window: a thread, and the functions that it runs."""

    worker: Executor  # runs one job at a time while the loop goes on
    denoiser: Denoiser  # may be the run's own, if two threads may call it
    params: Params


class NextStep(NamedTuple):
    """What the host loop needs of a planned step, from the program that has planned it."""

    plan: StepPlan
    numbers: Int[Array, " 4"]
    keys: NoiseKeys
    request: HeadRequest | None
    rows: Rows | None  # in the bucket of the step before, which most steps take as well


def _next_step(spec: StepSpec, state: DecodeState, n_rows: int) -> NextStep:
    """Plans a step; builds its rows in a bucket of `n_rows`, unless that is 0."""
    plan, numbers = plan_with_numbers(spec, state)
    counted = state._replace(nfe=counted_nfe(state))
    rows = step_rows(spec, state, plan, n_rows) if n_rows else None
    return NextStep(plan, numbers, *head_inputs(spec, counted, plan), rows)


def _draft_and_plan(
    spec: StepSpec, params: Params, state: DecodeState, n_rows: int
) -> tuple[DecodeState, NextStep]:
    state = with_drafts(spec, params, state)
    return state, _next_step(spec, state, n_rows)


def _decide_and_plan(
    spec: StepSpec,
    params: Params,
    state: DecodeState,
    plan: StepPlan,
    rows: Rows,
    out: RowsOut,
    head: HeadOut,
    refreshed: Any,
) -> tuple[DecodeState, StepRecord, NextStep]:
    """Decides a step, and plans the next one in the same program."""
    result = rows_result(spec, params, state, plan, rows, out)
    state, denoised = absorb(spec, state, plan, result)
    scores = by_position(spec, denoised, head, state.tokens.shape[1])
    if refreshed is not None:
        state, scores = merge(state, scores, *refreshed)
    state, record = decide(spec, state, denoised.counts, scores)
    drafts = spec.config.drafter is not None  # they come first, and change the rows
    return state, record, _next_step(spec, state, 0 if drafts else rows.tokens.shape[1])


@kept
def _programs(spec: Any, *shape: Any) -> Any:
    """Returns the programs of the host loop around a denoiser, for one shape."""
    return SimpleNamespace(
        draft=spec_program(_draft_and_plan, spec, 2, static_argnums=3),
        rows=spec_program(step_rows, spec, static_argnums=3),
        refresh_job=spec_program(refresh_job, spec),
        states_at=spec_program(lambda spec, hidden, rows: take(guide(spec, hidden), rows), spec),
        decide=spec_program(_decide_and_plan, spec, 2),
    )


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


class HostRunner:
    """Runs the parts of a step from Python, if a denoiser or a worker is called between them.

    One program decides a step and prepares the next one, and the host waits for its rows and sizes.
    A refresher refreshes tokens that left the window from the state at the start of a step; its
    results are merged when the step is scored.
    """

    def __init__(
        self, decoding: Decoding, shape: tuple[int, ...], refresher: Refresher | None
    ) -> None:
        self._spec, structure = jax.tree.flatten(decoding.spec)
        self._params = decoding.params
        self._programs = _programs(structure, shape)
        self._denoiser = _jitted(decoding.denoiser, shape)
        drafter = decoding.spec.config.drafter
        self._drafts, self._guides = drafter is not None, bool(decoding.spec.config.cfg_scale)
        self._params_read = drafter.params_read(self._params) if drafter is not None else None
        self._buckets, self._head_sizes = decoding.buckets, decoding.spec.head_sizes(shape[1])
        if refresher is not None:
            refresher = refresher._replace(denoiser=_jitted(refresher.denoiser, shape))
        self._refresher = refresher
        self._next: NextStep | None = None
        self._n_rows = 0  # of the step before

    def step(self, state: DecodeState) -> tuple[DecodeState, StepRecord, int, int]:
        """As `JaxRunner.step`."""
        spec, programs, params = self._spec, self._programs, self._params_read
        planned = self._next
        if planned is None or self._drafts:
            state, planned = programs.draft(spec, params, state, self._n_rows)
        plan, numbers, keys, request, rows = planned
        needed, queries, refreshes, _ = np.asarray(numbers)
        n_rows = smallest_size(self._buckets, needed, "rows")
        refresh = self._start_refresh(state, plan) if refreshes else None
        if rows is None or n_rows != self._n_rows:
            rows, self._n_rows = programs.rows(spec, state, plan, n_rows), n_rows
        out = self._denoiser.forward_rows(self._params, rows, state.cache)
        head = self._score(queries, self._states(out, plan), keys, request)
        # The worker has read the cache by then.
        refreshed = refresh and (refresh[0], *refresh[1].result())
        state, record, planned = programs.decide(
            spec, params, state, plan, rows, out, head, refreshed
        )
        self._next = planned
        return state, record, n_rows, int(np.asarray(planned.numbers)[-1])

    def _states(self, out: RowsOut, plan: StepPlan) -> Hidden:
        """Returns the states that the head scores, as NumPy's array: it is sliced at once."""
        if self._guides:
            states = self._programs.states_at(self._spec, out.hidden, plan.query.row)
            return np.asarray(states)  # pyright: ignore
        row = np.asarray(plan.query.row)
        return np.asarray(out.hidden)[np.arange(len(row))[:, None], row]  # pyright: ignore

    def _score(
        self, queries: int, states: Hidden, keys: NoiseKeys, request: HeadRequest | None
    ) -> HeadOut:
        """Scores the first `queries` states. Pads the scores, so that one program decides after all
        sizes."""
        count = smallest_size(self._head_sizes, queries, "heads")
        keys = None if keys is None else keys[:, :count]
        request = request and request.first(count)
        head = run_head(self._denoiser, self._params, states[:, :count], keys, request)

        def padded(scores: Any) -> np.ndarray:
            array = np.asarray(scores)
            whole = np.zeros((len(array), states.shape[1], *array.shape[2:]), array.dtype)
            whole[:, :count] = array
            return whole

        return jax.tree.map(padded, head)

    def _start_refresh(
        self, state: DecodeState, plan: StepPlan
    ) -> tuple[RefreshJob, Future[tuple[RowsOut, HeadOut]]] | None:
        """Gives the worker the tokens that are to be refreshed, if there is one."""
        if self._refresher is None:
            return None
        job, cache = self._programs.refresh_job(self._spec, state, plan), state.cache
        worker, denoiser, params = self._refresher

        def refresh() -> tuple[RowsOut, HeadOut]:
            out = denoiser.forward_rows(params, job.rows, cache)
            states = self._programs.states_at(self._spec, out.hidden, job.row)
            request = job.request if denoiser.measure_rows else None
            return jax.block_until_ready((out, run_head(denoiser, params, states, None, request)))

        return job, worker.submit(refresh)
