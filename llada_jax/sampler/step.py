"""The parts of a step of decoding around the model, which all runners share.

    draft -> plan rows -> run them -> score the queried positions -> decide

The number of rows varies from step to step, but compiled shapes are fixed, and some models run
outside JAX. So a runner picks a compiled size and runs the parts: all of them inside one program,
or one program after another from Python. What the forward and the head return (`ForwardOutput`,
`StepScores`) has shapes that do not depend on the number of rows, so one program decides after any
forward.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from llada_jax.rows import write_rows
from llada_jax.sampler.constrained import class_scores, with_classes
from llada_jax.sampler.observe import head_request, to_block
from llada_jax.sampler.plan import PROBE, SHADOW, StepPlan, guide
from llada_jax.sampler.record import (
    StepCounts,
    StepScores,
    spread,
    token_probability,
    top_tokens,
)
from llada_jax.sampler.spec import StepSpec
from llada_jax.sampler.state import DecodeState, put, take
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


class ForwardOutput(NamedTuple):
    """The output of a forward that scoring and deciding need."""

    hidden: Float[Array, "B Q D"]  # states that predict the queried positions
    noise_keys: Key[Array, "B Q"] | None  # for sampling; None at temperature 0
    counts: StepCounts
    at: Int[Array, "B Q"]  # queried positions; L for none
    rescored: Bool[Array, "B L"]
    request: HeadRequest | None  # for the head, in addition to scores
    block_start: Int[Array, " B"]

    def first(self, n_heads: int) -> "ForwardOutput":
        """Returns the output for the first `n_heads` queried positions."""
        keys = self.noise_keys
        return self._replace(
            hidden=self.hidden[:, :n_heads],
            noise_keys=None if keys is None else keys[:, :n_heads],
            at=self.at[:, :n_heads],
            request=self.request and self.request.first(n_heads),
        )


class RowsResult(NamedTuple):
    """What a step keeps of a forward. The shapes do not depend on the number of rows, so a compiled
    loop has a branch for each bucket up to here only."""

    cache: KVCache
    draft: Any  # the memory of the drafter
    hidden: Float[Array, "B Q D"]  # states that predict the queried positions
    live_rows: Int[Array, " B"]
    cache_length: Int[Array, " B"]  # cached positions that some row sees


def rows_result(
    spec: StepSpec, params: Params, state: DecodeState, plan: StepPlan, rows: Rows, out: RowsOut
) -> RowsResult:
    """Writes the keys and values of a forward to the cache, and reads its queried rows. A drafter
    observes the forward."""
    cache, draft = state.cache, state.draft
    if spec.config.drafter is not None:
        draft = spec.config.drafter.observe(params, draft, rows, out)
    if cache.length:
        cache = write_rows(cache, rows, out)
    batch = plan.n_rows.shape[0]  # without the second batch of rows for guidance
    return RowsResult(
        cache=cache,
        draft=draft,
        hidden=take(guide(spec, out.hidden), plan.query.row),
        live_rows=rows.live[:batch].sum(axis=1, dtype=jnp.int32),
        cache_length=rows.sees_cache[:batch].any(axis=1).sum(axis=1, dtype=jnp.int32),
    )


def absorb(
    spec: StepSpec, state: DecodeState, plan: StepPlan, result: RowsResult
) -> tuple[DecodeState, ForwardOutput]:
    """Advances the state by a forward (`cache`, `n_cached`, `nfe`)."""
    config, window = spec.config, spec.window
    n_cached = window.cached_after(state, plan.window, spec.window_context())
    if spec.whole_block is not None and window.caches_finished:
        # Rows of a block that is not full saw its masks: only whole blocks count as cached.
        n_cached = spec.block_floor(state, n_cached)
    state = state._replace(
        cache=result.cache,
        draft=result.draft,
        n_cached=jnp.where(state.done, state.n_cached, n_cached),
        nfe=counted_nfe(state),
    )
    query, length = plan.query, state.tokens.shape[1]
    rows_of_kind = {
        "shadow_rows": plan.extra.of(SHADOW) | plan.extra.of(PROBE),
        "draft_rows": plan.draft & plan.rows.includes(state.positions),
        "refreshed": plan.refreshed,
        "head_rows": query.at < length,
    }
    counts = {kind: flags.sum(axis=1, dtype=jnp.int32) for kind, flags in rows_of_kind.items()}
    keys, request = head_inputs(spec, state, plan)
    denoised = ForwardOutput(
        hidden=result.hidden,
        noise_keys=keys,
        counts=StepCounts(result.live_rows, cache_length=result.cache_length, **counts),
        at=query.at,
        rescored=query.rescored,
        request=request,
        block_start=state.block_start(config.block_length),
    )
    return state, denoised


def counted_nfe(state: DecodeState) -> Int[Array, " B"]:
    """Returns the numbers of forwards after one more."""
    return state.nfe + (~state.done).astype(state.nfe.dtype)


def head_inputs(
    spec: StepSpec, state: DecodeState, plan: StepPlan
) -> tuple[NoiseKeys, HeadRequest | None]:
    """Returns what the head takes in addition to states; `state` has counted the forward."""
    at, keys = plan.query.at, None
    if spec.config.temperature > 0:
        length = state.tokens.shape[1]
        keys = state.noise_keys(at % length, in_order=spec.rule.verifies)
    request = head_request(spec, state, at)
    return keys, request if spec.grammar is None else with_classes(spec, request)


def run_head(
    denoiser: Denoiser, params: Params, hidden: Hidden, keys: NoiseKeys, request: HeadRequest | None
) -> HeadOut:
    """Returns the scores of states, and the requested extras."""
    if request is None:
        return HeadOut(denoiser.score_rows(params, hidden, keys), None)
    assert denoiser.measure_rows is not None
    return denoiser.measure_rows(params, hidden, keys, request)


def by_position(spec: StepSpec, denoised: ForwardOutput, head: HeadOut, length: int) -> StepScores:
    """Scatters scores to the positions of a canvas of `length`, and extras to the block."""
    at = denoised.at
    # A head that rounds its inputs to integers may turn a NaN into numbers.
    finite = jnp.isfinite(denoised.hidden).all(axis=-1)
    scores = head.scores._replace(confidence=jnp.where(finite, head.scores.confidence, jnp.nan))
    hidden = denoised.hidden if spec.needs("hidden", "divergence") else None
    measured = None
    if spec.rule.head_needs:
        assert head.measured is not None
        top = head.measured.top_ids, head.measured.top_logits
        top_ids, top_logits = jax.tree.map(lambda every: every[..., : spec.rule_top_k], top)
        measured = head.measured._replace(
            top_ids=top_ids, top_logits=top_logits,
            class_ids=None, class_logits=None, class_noisy=None, class_mass=None,
        )  # fmt: skip
    block = partial(to_block, at=at, start=denoised.block_start, length=spec.config.block_length)
    measured, hidden = jax.tree.map(block, (measured, hidden))
    needed = spec.needs("probability")
    probability = put(at, token_probability(head), length) if needed else None
    classes = None if spec.grammar is None else class_scores(at, head, length)
    k = spec.top_logprobs
    top = top_tokens(at, head, length, k) if k else None
    return StepScores(
        spread(at, scores, length), denoised.rescored, measured, hidden, probability, classes, top
    )
