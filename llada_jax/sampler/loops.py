"""The two loops that drive a step: compiled as one program, or from the host."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from llada_jax.on_mesh import MeshDenoiser
from llada_jax.programs import kept, own_jit
from llada_jax.sampler.host_runner import HostRunner, Refresher
from llada_jax.sampler.record import OnStep, StepRecord, view_of
from llada_jax.sampler.runner import Decoding, TracedRunner, spec_program
from llada_jax.sampler.state import DecodeState
from llada_jax.sampler.steps import Steps, steps_of
from llada_jax.sampler.text_runner import TextRunner
from llada_jax.types import Denoiser

RECORDED_POSITIONS = 1 << 22
"""Positions of all canvases and steps that a loop records before the host takes the records: up to
84 MB with all scores."""


def recorded_steps(decoding: Decoding, shape: Sequence[int]) -> int:
    """Returns the largest number of steps that a loop runs and records in one call, on canvases of
    this shape [B, L]."""
    return max(1, min(decoding.max_steps, RECORDED_POSITIONS // prod(shape)))


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


@kept
def _step_program(denoiser: Denoiser, buckets: tuple[int, ...], spec: Any, *shape: Any) -> Any:
    def run(spec, params, state):
        state, record, n_rows = TracedRunner(denoiser, buckets).step(spec, params, state)
        return state, record, jnp.stack([n_rows, state.done.sum(dtype=jnp.int32)])

    return spec_program(run, spec, 2, rounds=isinstance(denoiser, MeshDenoiser))


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
