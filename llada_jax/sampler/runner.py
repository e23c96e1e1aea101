"""A step of decoding as one function, and what the runners of its parts share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from llada_jax.programs import own_jit
from llada_jax.sampler.decide import decide
from llada_jax.sampler.drafting import with_drafts
from llada_jax.sampler.plan import StepPlan, plan_rows, step_rows
from llada_jax.sampler.record import StepRecord, StepScores
from llada_jax.sampler.spec import StepSpec
from llada_jax.sampler.state import DecodeState
from llada_jax.sampler.step import (
    ForwardOutput,
    RowsResult,
    absorb,
    by_position,
    rows_result,
    run_head,
)
from llada_jax.types import Denoiser, Params


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


def spec_program(function: Callable[..., Any], spec: Any, *donated: int, **options: Any) -> Any:
    """Compiles a function of a spec, as one of the spec's leaves: its policies would be flattened
    in Python in each call."""

    def run(leaves: Any, *arguments: Any) -> Any:
        return function(jax.tree.unflatten(spec, leaves), *arguments)

    return own_jit(run, donate_argnums=donated, **options)


def plan_with_numbers(spec: StepSpec, state: DecodeState) -> tuple[StepPlan, Int[Array, " 4"]]:
    """Returns the plan of the next forward, and what the host has to know: the largest numbers of
    rows and of queries, whether tokens are refreshed, and how many sequences are done."""
    plan = plan_rows(spec, state)
    queries = (plan.query.at < state.tokens.shape[1]).sum(axis=1)
    numbers = plan.n_rows.max(), queries.max(), plan.refreshed.any(), state.done.sum()
    return plan, jnp.stack([number.astype(jnp.int32) for number in numbers])


def smallest_size(sizes: Sequence[int], needed: int, what: str) -> int:
    """Returns the smallest compiled size of at least `needed`."""
    assert needed <= sizes[-1], f"a step needs {needed} {what}; programs for {sizes}"
    return next(size for size in sizes if size >= needed)


def _bucket_index(sizes: Sequence[int], needs: Int[Array, " B"]) -> Int[Array, ""]:
    """Returns the index of the smallest compiled size that is enough for every sequence."""
    return (jnp.asarray(sizes[:-1], jnp.int32) < needs.max()).sum(dtype=jnp.int32)
