"""Simulated runs: accounts that add up, limits that hold, and the purpose of each policy."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llada_jax.experts.policy_run import POLICIES, ExpertPolicy, PolicyRun, bound, replay
from llada_jax.experts.schedule import ExpertCosts
from tests.experts.traces import small_trace, trace_of_loads

COSTS = ExpertCosts(
    cpu_expert=3.0, cpu_row=1.0, cpu_first=0.5, accelerator=1.0, transfer=4.0, dense=2.0
)
TRACE = small_trace()


def test_a_layer_computed_by_hand():
    """Two experts of load 1; slots for one; the other one runs on the CPU, as fast as it is."""
    loads = [[[1, 1, 0]]] * 3
    outcome = replay(trace_of_loads(loads), POLICIES["ktransformers"], COSTS, 1, profile_steps=1)
    np.testing.assert_allclose(outcome.seconds, [2 + 4.5, 2 + 4.5])
    assert outcome.hit_rate == 0.5
    assert outcome.tokens_per_second == pytest.approx(2 / 13)


def test_without_a_profile_the_first_experts_stay():
    """The profile has used the last one; only the first is resident."""
    loads = [[[0, 0, 1]]] * 3
    policy = replace(POLICIES["ktransformers"], profiled=False)
    outcome = replay(trace_of_loads(loads), policy, COSTS, 1, profile_steps=1)
    np.testing.assert_allclose(outcome.seconds, [2 + 4.5, 2 + 4.5])
    assert outcome.hit_rate == 0


def test_a_link_prefetches_one_expert_per_layer():
    """The new expert misses once; then the idle link has brought it in, and all is resident."""
    loads = [[[1, 0, 0]], *[[[0, 0, 1]]] * 3]
    policy = ExpertPolicy(scheduler="resident_or_cpu", cache="lru", refill=True)
    outcome = replay(trace_of_loads(loads), policy, COSTS, 1, profile_steps=1)
    np.testing.assert_allclose(outcome.seconds, [2 + 4.5, 2 + 1, 2 + 1])
    assert outcome.hit_rate == pytest.approx(2 / 3)


def test_a_refill_never_delays_a_layer():
    """Transfers of 7 s in layers of 6.5 s: the expert stays away."""
    loads = [[[1, 0, 0]], *[[[0, 0, 1]]] * 2]
    policy = ExpertPolicy(scheduler="resident_or_cpu", cache="lru", refill=True)
    slow = replace(COSTS, transfer=7.0)
    outcome = replay(trace_of_loads(loads), policy, slow, 1, profile_steps=1)
    np.testing.assert_allclose(outcome.seconds, [2 + 4.5, 2 + 4.5])
    assert outcome.hit_rate == 0


@settings(max_examples=15)
@given(
    slots=st.integers(1, 16),
    cpu_expert=st.sampled_from([0.5, 3.0, 10.0]),
    transfer=st.sampled_from([0.5, 4.0, 20.0]),
    name=st.sampled_from(sorted(POLICIES)),
)
def test_no_policy_is_faster_than_the_bound(slots, cpu_expert, transfer, name):
    costs = replace(COSTS, cpu_expert=cpu_expert, transfer=transfer)
    outcome = replay(TRACE, POLICIES[name], costs, slots, profile_steps=6)
    limit = bound(TRACE, costs, slots, profile_steps=6)
    assert (outcome.seconds >= limit.seconds - 1e-9).all()
    assert outcome.hit_rate <= limit.hit_rate + 1e-9
    assert outcome.committed.sum() == TRACE.committed[6:].sum()


def test_with_all_experts_resident_every_policy_only_schedules():
    for name, policy in POLICIES.items():
        outcome = replay(TRACE, policy, COSTS, 16, profile_steps=6)
        assert outcome.hit_rate == 1, name


def test_slots_are_never_exceeded_and_swaps_trade_one_for_one():
    for name, policy in POLICIES.items():
        run, transfers = PolicyRun(policy, COSTS, 5, TRACE.loads[:6]), 0
        for step in range(6, TRACE.n_steps):
            for visit in TRACE.visits(step):
                before = run.resident.copy()
                plan = run.run_layer(visit)
                transfers += len(plan.schedule.transferred) + len(plan.swaps)
                before[visit.layer] = plan.resident_after
                for swap in plan.swaps:
                    assert before[swap.layer, swap.victim] and not before[swap.layer, swap.expert]
                    before[swap.layer, [swap.expert, swap.victim]] = True, False
                np.testing.assert_array_equal(run.resident, before, err_msg=name)
                assert (run.resident.sum(axis=1) == 5).all()
        assert transfers > 0 or policy.cache == "static"


@pytest.mark.parametrize(
    ("slots", "profile_steps", "message"),
    [
        (0, 3, "slots is 0; allowed: 1 to 16 experts of a layer"),
        (17, 3, "slots is 17; allowed: 1 to 16 experts of a layer"),
        (4, 0, "profile_steps is 0; allowed: 1 to"),
        (4, TRACE.n_steps, f"profile_steps is {TRACE.n_steps}; allowed: 1 to {TRACE.n_steps - 1}"),
    ],
)
def test_bad_input_is_refused(slots, profile_steps, message):
    for run in (
        lambda: replay(TRACE, POLICIES["lru"], COSTS, slots, profile_steps=profile_steps),
        lambda: bound(TRACE, COSTS, slots, profile_steps=profile_steps),
    ):
        with pytest.raises(ValueError, match=message):
            run()


def test_unknown_names():
    with pytest.raises(ValueError, match="scheduler is 'quickest'; allowed: 'earliest_finish'"):
        ExpertPolicy(scheduler="quickest")
