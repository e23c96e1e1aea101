"""Decoding with routed experts in view: their routing recorded, or their number on hand limited."""

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from llada_jax.build.denoisers import denoiser_for, score_rules
from llada_jax.build.loading import Model
from llada_jax.config import SamplerConfig, require
from llada_jax.experts.cache import Visit
from llada_jax.experts.costs import ExpertCosts
from llada_jax.experts.decoding.budgeted_forward import forward_rows_budgeted
from llada_jax.experts.decoding.expert_store import ExpertStore
from llada_jax.experts.decoding.recorded_forward import RoutingRecord, recorded
from llada_jax.experts.decoding.recording import RecordedStep, changed_rows, trace_of_steps
from llada_jax.experts.expert_policies import ExpertPolicy
from llada_jax.experts.policy_run import LayerDecision, PolicyRun
from llada_jax.experts.routing import RoutingTrace, loads_of
from llada_jax.sampler.generate import Result, decode
from llada_jax.sampler.prompts import Prompts, with_ids
from llada_jax.sampler.trace import Event
from llada_jax.types import Denoiser, KVCache, Rows, RowsOut


def record_routing(
    model: Model, prompts: Prompts, config: SamplerConfig | None = None, *, seed: int = 0
) -> tuple[Result, RoutingTrace]:
    """Runs `generate`, and records the routing of every forward.

    Raises ValueError for a model without routed experts, and for what `generate` refuses.
    """
    _require_experts(model)
    config = with_ids(config or SamplerConfig(), model.config)
    steps: list[RecordedStep] = []

    def forward_rows(params: Any, rows: Rows, cache: KVCache) -> RowsOut:
        out, routing = recorded(params, model.config, rows, cache)
        steps.append(RecordedStep(*jax.tree.map(np.asarray, (routing, rows))))
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


class BudgetedRun(NamedTuple):
    """What a generation within a budget gives."""

    result: Result
    store: ExpertStore
    policy_run: PolicyRun
    """Its `seconds` are modelled; `hits`, `uses` and `transfers` are what happened."""


def generate_within_budget(
    model: Model,
    prompts: Prompts,
    policy: ExpertPolicy,
    costs: ExpertCosts,
    slots: int,
    profile: RoutingTrace,
    config: SamplerConfig | None = None,
    *,
    seed: int = 0,
) -> BudgetedRun:
    """Runs `generate` with `slots` experts a layer on the accelerator, and the rest on the host.

    Every layer runs as the policy plans it, with the policy's transfers; the tokens are those of
    `generate`, but for what rounding decides.

    Args:
      profile: the routing of an earlier run; its most used experts are resident at first.

    Raises ValueError for a model without routed experts or with quantized ones, a profile of
    another shape, a policy that needs the future, and slots that no layer has.
    """
    _require_experts(model)
    _require_profile(model, profile)
    config = with_ids(config or SamplerConfig(), model.config)
    policy_run = PolicyRun(policy, costs, slots, profile.loads)
    store = ExpertStore(model.params, policy_run.resident)
    result = _decode(model, _Budgeted(model, store, policy_run), prompts, config, seed)
    return BudgetedRun(result, store, policy_run)


class _Budgeted:
    """A forward that asks a policy where the experts of each layer run."""

    def __init__(self, model: Model, store: ExpertStore, policy_run: PolicyRun) -> None:
        self._model, self._store, self._policy_run = model, store, policy_run
        self._step = -1
        self._before: Rows | None = None

    def __call__(self, params: Any, rows: Rows, cache: KVCache) -> RowsOut:
        self._step += 1
        now, before = jax.tree.map(np.asarray, rows), self._before
        # A block has begun where the window stands elsewhere than in the forward before.
        new_block = before is None or not np.array_equal(now.positions, before.positions)
        changed = changed_rows(now, before)
        plan = partial(self._plan, now.live.reshape(-1), changed, new_block)
        self._before = now
        return forward_rows_budgeted(params, self._model.config, rows, cache, self._store, plan)

    def _plan(
        self,
        live: np.ndarray,
        changed: np.ndarray,
        new_block: bool,
        layer: int,
        routing: RoutingRecord,
    ) -> LayerDecision:
        bad = np.count_nonzero(~np.isfinite(routing.scores[live]))
        require(
            bad == 0,
            f"layer {layer} has {bad} router scores that are NaN or infinite; allowed: none",
        )
        experts = np.where(live[:, None], routing.experts, -1)
        visit = Visit(
            step=self._step,
            layer=layer,
            experts=experts,
            loads=loads_of(experts, routing.scores.shape[1]),
            scores=np.asarray(routing.scores)[live].mean(axis=0),
            foreseen=np.where(live[:, None], routing.foreseen, -1),
            changed=changed,
            new_block=new_block,
        )
        return self._policy_run.run_layer(visit)


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


def _require_profile(model: Model, profile: RoutingTrace) -> None:
    moe = model.config.moe
    assert moe is not None
    wanted = (model.config.n_layers - moe.first_layer, moe.n_experts)
    found = (profile.n_layers, profile.n_experts)
    require(
        found == wanted,
        f"the profile has {found[0]} layers of {found[1]} experts; allowed: {wanted[0]} layers of "
        f"{wanted[1]}",
    )
