"""Steps under a constraint, from Python."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int

from llada_jax.on_mesh import MeshDenoiser
from llada_jax.programs import kept
from llada_jax.sampler.constrained import commit_forced, constrain_scores, hold_to_text
from llada_jax.sampler.decide import apply_rule, finish_step, skip_finished
from llada_jax.sampler.plan import StepPlan
from llada_jax.sampler.record import StepCounts, StepRecord, StepScores
from llada_jax.sampler.runner import (
    Decoding,
    TracedRunner,
    plan_with_numbers,
    smallest_size,
    spec_program,
)
from llada_jax.sampler.spec import StepSpec
from llada_jax.sampler.state import DecodeState
from llada_jax.sampler.step import RowsResult, absorb
from llada_jax.types import Denoiser, KVCache, Params


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
    return state, record, *plan_with_numbers(spec, state)


@kept
def _plain_programs(denoiser: Denoiser, spec: Any, *shape: Any) -> Any:
    """Returns the programs of `TextRunner` that read no constraint, for one shape."""
    program = partial(spec_program, rounds=isinstance(denoiser, MeshDenoiser))
    return SimpleNamespace(
        plan=program(plan_with_numbers, spec),
        forward=program(partial(_forward, denoiser), spec, 2, static_argnums=5),
        apply_rule=program(apply_rule, spec),
        finish=program(_finish_and_plan, spec),
        skip_finished=program(skip_finished, spec),
    )


@kept
def _class_program(denoiser: Denoiser, spec: Any, *shape: Any) -> Any:
    """Returns the program of `TextRunner` that scores classes of tokens, for one shape."""
    rounds = isinstance(denoiser, MeshDenoiser)
    return spec_program(partial(_score_classes, denoiser), spec, rounds=rounds)


@kept
def _text_programs(denoiser: Denoiser, spec: Any, *shape: Any) -> Any:
    """Returns the programs of `TextRunner` that read a constraint of one size, for one shape."""
    program = partial(spec_program, rounds=isinstance(denoiser, MeshDenoiser))
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
        n_rows = smallest_size(self._buckets, np.asarray(numbers)[0], "rows")
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
