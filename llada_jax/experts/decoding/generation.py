"""Decoding with a mixture of experts: records its routing, or limits the experts in memory.

Both replace only the denoiser's `forward_rows`, so the sampler and its results are unchanged. With
a budget, each routed layer has a fixed number of experts in memory, and a policy decides after the
routing of each layer which experts are read from the file, evicted and prefetched.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from llada_jax import checkpoint
from llada_jax.api.denoisers import denoiser_for, score_rules
from llada_jax.api.model import Model
from llada_jax.config import require
from llada_jax.experts.decoding.budgeted_forward import forward_rows_budgeted
from llada_jax.experts.decoding.expert_file import ExpertFile, ExpertShape, write_experts
from llada_jax.experts.decoding.expert_slots import ExpertSlots
from llada_jax.experts.decoding.recording import RoutingRecord, forward_with_routing, trace_of_steps
from llada_jax.experts.policy_run import ExpertPolicy, LayerDecision, PolicyRun
from llada_jax.experts.routing import ABSENT, RoutingTrace, Visit, loads_of
from llada_jax.experts.schedule import ExpertCosts
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.generate import Result, decode
from llada_jax.sampler.prompts import Prompts, with_ids
from llada_jax.sampler.trace import Event
from llada_jax.types import Denoiser, KVCache, Rows, RowsOut


def record_routing(
    model: Model, prompts: Prompts, config: SamplerConfig | None = None, *, seed: int = 0
) -> tuple[Result, RoutingTrace]:
    """Runs `generate`, and records the routing of every forward pass.

    Raises ValueError for a model without routed experts, and the errors of `generate`.
    """
    _require_experts(model)
    config = with_ids(config or SamplerConfig(), model.config)
    steps: list[tuple[RoutingRecord, Rows]] = []

    def forward_rows(params: Any, rows: Rows, cache: KVCache) -> RowsOut:
        out, routing = forward_with_routing(params, model.config, rows, cache)
        steps.append(jax.tree.map(np.asarray, (routing, rows)))
        return out

    result = _decode(model, forward_rows, prompts, config, seed)
    trace = result.trace
    commits = trace.event_step[trace.event_kind == Event.COMMIT]
    routing = trace_of_steps(
        steps,
        current_block=trace.block,
        committed=np.bincount(commits, minlength=len(steps)),
        origin=trace.prompt_lengths,
        block_length=config.block_length,
        settings={"source": "recorded", "model": model.config.family},
    )
    return result, routing


def write_experts_of(
    source: str | os.PathLike[str], path: str | os.PathLike[str], dtype: str = "int4"
) -> None:
    """Writes the routed experts of a checkpoint of any size to a file for
    `generate_within_budget`.

    Raises ValueError for a checkpoint without routed experts, and the errors of `load`.
    """
    weights, _ = checkpoint.open_checkpoint(source)
    write_experts(Path(path), weights.config, weights, dtype, checkpoint.fingerprint(source))


class BudgetedRun(NamedTuple):
    """The result of a generation within a budget."""

    result: Result
    slots: ExpertSlots
    """Reports its memory, the experts read, and the time spent waiting for them."""
    policy_run: PolicyRun
    """Its `seconds` are simulated; `hits` and `uses` are real."""
    loads: Int[np.ndarray, "S N E"]
    """Rows of each expert; can be the `profile` of another run."""


def generate_within_budget(
    model: Model,
    file: ExpertFile,
    prompts: Prompts,
    policy: ExpertPolicy,
    costs: ExpertCosts,
    slots: int,
    profile: Int[np.ndarray, "S N E"] | None = None,
    config: SamplerConfig | None = None,
    *,
    seed: int = 0,
) -> BudgetedRun:
    """Runs `generate` with `slots` experts of each layer in memory, and the others in a file.

    One processor runs all experts. So only the policy's cache and prefetching matter, and missing
    experts are read. The tokens equal those of `generate` with experts in the file's dtype.

    Args:
      model: Its own experts are not used, and may be missing (`load(..., experts=False)`).
      costs: From `MachineProfile`; they determine how much is read ahead.
      profile: Loads of an earlier run; its most used experts are resident at first, by default
        those with the lowest indices.

    Raises ValueError for a model without routed experts, a file of another model, a profile of
    another shape, an invalid number of slots, and damaged experts.
    """
    _require_experts(model)
    expected = ExpertShape.of(model.config, file.shape.dtype)
    require(
        file.shape == expected,
        f"{file.path} has experts of {tuple(file.shape)}; allowed: {tuple(expected)}",
    )
    require(
        file.fingerprint == model.fingerprint or None in (file.fingerprint, model.fingerprint),
        f"{file.path} has the experts of another model; allowed: those of {model.source}",
    )
    n_layers, n_experts = file.shape.n_layers, file.shape.n_experts
    profile = np.zeros((1, n_layers, n_experts), np.int32) if profile is None else profile
    require(
        profile.shape[1:] == (n_layers, n_experts),
        f"the profile has {profile.shape[1]} layers of {profile.shape[2]} experts; allowed: "
        f"{n_layers} layers of {n_experts}",
    )
    config = with_ids(config or SamplerConfig(), model.config)
    policy_run = PolicyRun(replace(policy, scheduler="all_on_accelerator"), costs, slots, profile)
    with ExpertSlots(file, policy_run.resident) as expert_slots:
        forward = _BudgetedForward(model, expert_slots, policy_run)
        result = _decode(model, forward, prompts, config, seed)
    return BudgetedRun(result, expert_slots, policy_run, np.stack(forward.loads))


class _BudgetedForward:
    """A `forward_rows` that follows a policy's decisions for the experts of each layer."""

    def __init__(self, model: Model, slots: ExpertSlots, policy_run: PolicyRun) -> None:
        self._model, self._slots, self._policy_run = model, slots, policy_run
        self.loads: list[Int[np.ndarray, "N E"]] = []
        self._before: Rows | None = None

    def __call__(self, params: Any, rows: Rows, cache: KVCache) -> RowsOut:
        now, before = jax.tree.map(np.asarray, rows), self._before
        # Windows move at the beginning of a block, so other positions mean a new block.
        new_block = before is None or not np.array_equal(now.positions, before.positions)
        self._before, live = now, now.live.reshape(-1)
        self.loads.append(np.zeros(self._policy_run.resident.shape, np.int32))

        def plan(layer: int, routing: RoutingRecord) -> LayerDecision:
            bad = np.count_nonzero(~np.isfinite(routing.scores[live]))
            require(
                bad == 0,
                f"layer {layer} has {bad} router scores that are NaN or infinite; allowed: none",
            )
            experts, foreseen = (
                np.where(live[:, None], chosen, ABSENT)
                for chosen in (routing.experts, routing.foreseen)
            )
            loads = loads_of(experts, routing.scores.shape[1])
            scores = np.asarray(routing.scores)[live].mean(axis=0)
            self.loads[-1][layer] = loads
            visit = Visit(len(self.loads) - 1, layer, loads, scores, foreseen, new_block)
            return self._policy_run.run_layer(visit)

        return forward_rows_budgeted(params, self._model.config, rows, cache, self._slots, plan)


def _decode(
    model: Model, forward_rows: Any, prompts: Prompts, config: SamplerConfig, seed: int
) -> Result:
    plain = denoiser_for(model.config, score_rules(config))
    denoiser = Denoiser(forward_rows, jax.jit(plain.score_rows), plain.empty_cache, traceable=False)
    return decode(
        denoiser, model.params, model.config, prompts, config, seed=seed, loop="host", trace=True
    )


def _require_experts(model: Model) -> None:
    require(
        model.config.moe is not None and model.artifact is None,
        f"{model.config.family} has no routed experts to look at; allowed: a mixture of experts, "
        "with its parameters",
    )
