"""The two loops that drive a step: compiled as one program, or from the host."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from llada_jax.on_mesh import MeshDenoiser
from llada_jax.programs import kept, own_jit
from llada_jax.sampler.constrained import commit_forced, constrain_scores, hold_to_text
from llada_jax.sampler.decide import apply_rule, decide, finish_step, skip_finished
from llada_jax.sampler.drafting import with_drafts
from llada_jax.sampler.plan import StepPlan, guide, plan_rows, step_rows
from llada_jax.sampler.record import OnStep, StepCounts, StepRecord, StepScores, view_of
from llada_jax.sampler.refresh import RefreshJob, merge, refresh_job
from llada_jax.sampler.spec import StepSpec
from llada_jax.sampler.state import DecodeState, take
from llada_jax.sampler.step import (
    ForwardOutput,
    RowsResult,
    absorb,
    by_position,
    counted_nfe,
    head_inputs,
    rows_result,
    run_head,
)
from llada_jax.sampler.steps import Steps, steps_of
from llada_jax.types import (
    Denoiser,
    HeadOut,
    HeadRequest,
    Hidden,
    KVCache,
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


RECORDED_POSITIONS = 1 << 22
"""Positions of all canvases and steps that a loop records before the host takes the records: up to
84 MB with all scores."""


def recorded_steps(decoding: Decoding, shape: Sequence[int]) -> int:
    """Returns the largest number of steps that a loop runs and records in one call, on canvases of
    this shape [B, L]."""
    return max(1, min(decoding.max_steps, RECORDED_POSITIONS // prod(shape)))


@dataclass(frozen=True)
class TracedRunner:
    """Runs the parts of a step inside a JAX program, with a branch for each size."""

    denoiser: Denoiser
    buckets: tuple[int, ...]

    def step(
        self, spec: StepSpec, params: Params, state: DecodeState
    ) -> tuple[DecodeState, StepRecord, Int[Array, ""]]:
        """Runs one forward and decides by its scores.

        Returns the next state, the record of what happened, and the number of rows that ran for
        each sequence, padding included.
        """
        state = with_drafts(spec, params, state)
        plan = plan_rows(spec, state)
        state, denoised, n_rows = self.run_rows(spec, params, state, plan)
        scores = self.score(spec, params, denoised)
        state, record = decide(spec, state, denoised.counts, scores)
        return state, record, n_rows

    def run_rows(
        self, spec: StepSpec, params: Params, state: DecodeState, plan: StepPlan
    ) -> tuple[DecodeState, ForwardOutput, Int[Array, ""]]:
        """Runs the planned rows in the smallest bucket that holds them, and returns its size as
        well."""
        bucket = _bucket_index(self.buckets, plan.n_rows)
        branches = [partial(self.forward, spec, n_rows=n_rows) for n_rows in self.buckets]
        result = jax.lax.switch(bucket, branches, params, state, plan)
        return *absorb(spec, state, plan, result), jnp.asarray(self.buckets, jnp.int32)[bucket]

    def forward(
        self, spec: StepSpec, params: Params, state: DecodeState, plan: StepPlan, n_rows: int
    ) -> RowsResult:
        """Runs the planned rows in a bucket of `n_rows`."""
        rows = step_rows(spec, state, plan, n_rows)
        out = self.denoiser.forward_rows(params, rows, state.cache)
        # Every layer has read the cache before the first one writes: else XLA copies it whole.
        cache, out = jax.lax.optimization_barrier((state.cache, out))
        return rows_result(spec, params, state._replace(cache=cache), plan, rows, out)

    def score(self, spec: StepSpec, params: Params, denoised: ForwardOutput) -> StepScores:
        """Scores the queried positions, in the smallest size of the head that holds them."""
        length = denoised.rescored.shape[1]
        head_sizes = spec.head_sizes(length)

        def score(params, denoised, n_heads):
            queried = denoised.first(n_heads)
            inputs = queried.hidden, queried.noise_keys, queried.request
            return by_position(spec, queried, run_head(self.denoiser, params, *inputs), length)

        size = _bucket_index(head_sizes, denoised.counts.head_rows)
        branches = [partial(score, n_heads=n_heads) for n_heads in head_sizes]
        return jax.lax.switch(size, branches, params, denoised)


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
    state, record, _ = runner.step(decoding.spec, params, state)
    return state, record


def _run_all(
    decoding: Decoding, state: DecodeState, until: Int[Array, ""], most: Int[Array, ""]
) -> tuple[DecodeState, StepRecord, Int[Array, " S"], Int[Array, ""]]:
    if isinstance(decoding.denoiser, MeshDenoiser):
        return decoding.denoiser.run_loop(_run_all, decoding, state, until, most)
    runner = TracedRunner(decoding.denoiser, decoding.buckets)
    limit = recorded_steps(decoding, state.tokens.shape)
    params = decoding.denoiser.loop_params(decoding.params)
    # Jitted once, so that the loop's body reuses the trace that found the record's shapes.
    one_step = jax.jit(partial(runner.step, decoding.spec), inline=True)
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
    `most` steps, at most `recorded_steps`; consumes the state."""
    state, records, rows, count = program_of(decoding, state)(decoding, state, until, most)
    n_steps = int(count)
    records = jax.tree.map(lambda leaf: np.asarray(leaf)[:n_steps], records)
    return state, steps_of(records, np.array(rows)[:n_steps], np.full(n_steps, np.nan))


def _program(function: Callable[..., Any], spec: Any, *donated: int, **options: Any) -> Any:
    """Compiles a function of a spec, as one of the spec's leaves: its policies would be flattened
    in Python in each call."""

    def run(leaves: Any, *arguments: Any) -> Any:
        return function(jax.tree.unflatten(spec, leaves), *arguments)

    return own_jit(run, donate_argnums=donated, **options)


@kept
def _step_program(denoiser: Denoiser, buckets: tuple[int, ...], spec: Any, *shape: Any) -> Any:
    def run(spec, params, state):
        state, record, n_rows = TracedRunner(denoiser, buckets).step(spec, params, state)
        return state, record, jnp.stack([n_rows, state.done.sum(dtype=jnp.int32)])

    return _program(run, spec, 2, rounds=isinstance(denoiser, MeshDenoiser))


class JaxRunner:
    """Runs steps from Python, each in one program, and waits for one array of it."""

    def __init__(self, decoding: Decoding, shape: tuple[int, ...]) -> None:
        self._spec, structure = jax.tree.flatten(decoding.spec)
        self._params = decoding.params
        self._run = _step_program(decoding.denoiser, decoding.buckets, structure, shape)

    def step(self, state: DecodeState) -> tuple[DecodeState, StepRecord, int, int]:
        """Returns the results of `TracedRunner.step`, and the number of sequences that are done."""
        state, record, numbers = self._run(self._spec, self._params, state)
        return state, record, *np.asarray(numbers).tolist()


def _plan(spec: StepSpec, state: DecodeState) -> tuple[StepPlan, Int[Array, " 4"]]:
    """Returns the plan of the next forward, and what the host has to know: the largest numbers of
    rows and of queries, whether tokens are refreshed, and how many sequences are done."""
    plan = plan_rows(spec, state)
    queries = (plan.query.at < state.tokens.shape[1]).sum(axis=1)
    numbers = plan.n_rows.max(), queries.max(), plan.refreshed.any(), state.done.sum()
    return plan, jnp.stack([number.astype(jnp.int32) for number in numbers])


def _forward(
    denoiser: Denoiser,
    spec: StepSpec,
    params: Params,
    cache: KVCache,
    state: DecodeState,
    plan: StepPlan,
    n_rows: int,
) -> RowsResult:
    runner = TracedRunner(denoiser, (n_rows,))
    return runner.forward(spec, params, state._replace(cache=cache), plan, n_rows)


def _score_classes(
    denoiser: Denoiser,
    spec: StepSpec,
    params: Params,
    state: DecodeState,
    plan: StepPlan,
    result: RowsResult,
) -> tuple[DecodeState, StepCounts, StepScores]:
    """Returns the state and the scores of a forward, without the constraint."""
    state, denoised = absorb(spec, state, plan, result)
    return state, denoised.counts, TracedRunner(denoiser, ()).score(spec, params, denoised)


def _finish_and_plan(
    spec: StepSpec, *arguments: Any
) -> tuple[DecodeState, StepRecord, StepPlan, Int[Array, " 4"]]:
    state, record = finish_step(spec, *arguments)
    return state, record, *_plan(spec, state)


@kept
def _plain_programs(denoiser: Denoiser, spec: Any, *shape: Any) -> Any:
    """Returns the programs of `TextRunner` that read no constraint, for one shape."""
    program = partial(_program, rounds=isinstance(denoiser, MeshDenoiser))
    return SimpleNamespace(
        plan=program(_plan, spec),
        forward=program(partial(_forward, denoiser), spec, 2, static_argnums=5),
        apply_rule=program(apply_rule, spec),
        finish=program(_finish_and_plan, spec),
        skip_finished=program(skip_finished, spec),
    )


@kept
def _class_program(denoiser: Denoiser, spec: Any, *shape: Any) -> Any:
    """Returns the program of `TextRunner` that scores classes of tokens, for one shape."""
    rounds = isinstance(denoiser, MeshDenoiser)
    return _program(partial(_score_classes, denoiser), spec, rounds=rounds)


@kept
def _text_programs(denoiser: Denoiser, spec: Any, *shape: Any) -> Any:
    """Returns the programs of `TextRunner` that read a constraint of one size, for one shape."""
    program = partial(_program, rounds=isinstance(denoiser, MeshDenoiser))
    return SimpleNamespace(
        constrain=program(constrain_scores, spec),
        commit_forced=program(commit_forced, spec),
        hold_to_text=program(hold_to_text, spec),
        finish=program(_finish_and_plan, spec),
    )


def _without_cache(record: Any) -> tuple[KVCache, Any]:
    """Parts the cache from a state or a result, because no program but the forward reads it."""
    return record.cache, record._replace(cache=None)


class TextRunner:
    """Runs steps under a constraint from Python, in several programs.

    XLA compiles a program again for each size of a constraint's tables, and most of its time goes
    to the forwards and the head. So only the programs that read the tables depend on their size,
    the head depends on the number of classes, and a forward is compiled once for each bucket that
    occurs.
    """

    def __init__(self, decoding: Decoding, shape: tuple[int, ...]) -> None:
        spec, denoiser, params = decoding.spec, decoding.denoiser, decoding.params
        assert spec.grammar is not None
        self._spec, structure = jax.tree.flatten(replace(spec, grammar=None))
        self._text_spec, text_structure = jax.tree.flatten(spec)
        classes = replace(spec, grammar=spec.grammar.without_tables())
        self._class_spec, class_structure = jax.tree.flatten(classes)
        self._programs = _plain_programs(denoiser, structure, shape)
        self._score = _class_program(denoiser, class_structure, shape)
        self._texts = _text_programs(denoiser, text_structure, shape)
        self._buckets = decoding.buckets
        self._params, self._head_params = params, denoiser.head_params(params)
        self._planned: tuple[DecodeState | None, StepPlan | None, Any] = None, None, None
        """The state that the last step returned, with the plan of its next step."""

    def start(self, state: DecodeState) -> DecodeState:
        """Returns the state before the first forward, with the tokens committed that need none."""
        cache, state = _without_cache(state)
        state = self._texts.commit_forced(self._text_spec, state)
        return self._programs.skip_finished(self._spec, state)._replace(cache=cache)

    def step(self, state: DecodeState) -> tuple[DecodeState, StepRecord, int, int]:
        """As `JaxRunner.step`. The state may be another one than the last step returned."""
        spec, programs = self._spec, self._programs
        planned, plan, numbers = self._planned
        cache, canvases = _without_cache(state)
        if planned is not state:
            plan, numbers = programs.plan(spec, canvases)
        n_rows = _smallest(self._buckets, np.asarray(numbers)[0], "rows")
        plain = canvases._replace(constraint=None)
        result = programs.forward(spec, self._params, cache, plain, plan, n_rows)
        cache, result = _without_cache(result)
        state, record, plan, numbers = self._decide(canvases, plan, result)
        state, numbers = state._replace(cache=cache), np.asarray(numbers)
        self._planned = state, plan, numbers
        return state, record, n_rows, int(numbers[-1])

    def _decide(
        self, state: DecodeState, plan: Any, result: RowsResult
    ) -> tuple[DecodeState, StepRecord, StepPlan, Int[Array, " 4"]]:
        """Scores and decides a step, and plans the next one."""
        texts, programs, spec = self._texts, self._programs, self._text_spec
        state, counts, raw = self._score(self._class_spec, self._head_params, state, plan, result)
        scores = texts.constrain(spec, state, raw)
        decided = programs.apply_rule(self._spec, state, scores)
        if decided.strays is None:
            revised = texts.commit_forced(spec, decided.state)
            return programs.finish(self._spec, state, revised, counts, scores)
        revised = texts.hold_to_text(spec, state, decided.state, raw)
        return texts.finish(spec, state, revised, counts, scores, raw)


class NextStep(NamedTuple):
    """What the host loop needs of a planned step, from the program that has planned it."""

    plan: StepPlan
    numbers: Int[Array, " 4"]
    keys: NoiseKeys
    request: HeadRequest | None
    rows: Rows | None  # in the bucket of the step before, which most steps take as well


def _next_step(spec: StepSpec, state: DecodeState, n_rows: int) -> NextStep:
    """Plans a step; builds its rows in a bucket of `n_rows`, unless that is 0."""
    plan, numbers = _plan(spec, state)
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
        draft=_program(_draft_and_plan, spec, 2, static_argnums=3),
        rows=_program(step_rows, spec, static_argnums=3),
        refresh_job=_program(refresh_job, spec),
        states_at=_program(lambda spec, hidden, rows: take(guide(spec, hidden), rows), spec),
        decide=_program(_decide_and_plan, spec, 2),
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
        n_rows = _smallest(self._buckets, needed, "rows")
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
        count = _smallest(self._head_sizes, queries, "heads")
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
    shape, has_worker = state.tokens.shape, decoding.spec.config.has_worker
    if decoding.denoiser.traceable and not has_worker:
        runner = (JaxRunner if decoding.spec.grammar is None else TextRunner)(decoding, shape)
    else:
        runner = HostRunner(decoding, shape, refresher if has_worker else None)
    records, rows, seconds, n_done = [], [], [], 0
    starts = np.array(state.block_start(decoding.spec.config.block_length))
    # At least one step, for the shapes of a record. Sequences that are done take no part in it.
    while not records or (len(records) < most and n_done < until):
        began = time.perf_counter()
        before = np.array(state.status) if on_step else None
        state, record, n_rows, n_done = runner.step(state)
        records.append(record)
        rows.append(n_rows)
        seconds.append(time.perf_counter() - began)
        if on_step:
            on_step(view_of(first + len(records) - 1, n_rows, state, before))
        if decoding.pauses:
            if (state.block_start(decoding.spec.config.block_length) != starts).any():
                break
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *records)
    return state, steps_of(stacked, np.asarray(rows, np.int32), np.asarray(seconds))


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


def _smallest(sizes: Sequence[int], needed: int, what: str) -> int:
    """Returns the smallest compiled size of at least `needed`."""
    assert needed <= sizes[-1], f"a step needs {needed} {what}; programs for {sizes}"
    return next(size for size in sizes if size >= needed)
