"""Schedules against all plans of small layers, and against each other on large ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llada_jax.experts.schedule import (
    SCHEDULERS,
    ExpertCosts,
    Link,
    all_on_accelerator,
    earliest_finish,
    fastest,
    resident_or_cpu,
)
from tests.experts.shortest_schedule import shortest_seconds

seconds = st.floats(0.125, 4, width=16)
costs_of_any_machine = st.builds(
    ExpertCosts,
    cpu_expert=seconds,
    cpu_row=seconds,
    cpu_few_row=st.just(np.inf) | seconds,
    cpu_first=st.sampled_from([0.0, 0.5]),
    accelerator=seconds,
    transfer=seconds,
    dense=st.just(0.0),
)


@st.composite
def layers(draw, most):
    loads = draw(st.lists(st.integers(0, 5), min_size=1, max_size=most))
    resident = draw(st.lists(st.booleans(), min_size=len(loads), max_size=len(loads)))
    return np.array(loads), np.array(resident)


def unit_costs(**changes):
    values = {"cpu_expert": 1.0, "cpu_row": 1.0, "cpu_first": 0.0, "accelerator": 1.0,
              "transfer": 3.0, "dense": 0.0}  # fmt: skip
    return ExpertCosts(**{**values, **changes})


@settings(max_examples=40)
@given(layer=layers(4), costs=costs_of_any_machine)
def test_fastest_matches_enumeration(layer, costs):
    assert fastest(*layer, costs).seconds == pytest.approx(shortest_seconds(*layer, costs))


@settings(max_examples=60)
@given(
    layer=layers(4), costs=costs_of_any_machine, free=st.floats(0, 6, width=16),
    arriving=st.none() | st.integers(0, 3),
)  # fmt: skip
def test_fastest_matches_enumeration_on_a_busy_link(layer, costs, free, arriving):
    loads, resident = layer
    link = Link(free, None if arriving is None else arriving % len(loads))
    expected = shortest_seconds(loads, resident, costs, link)
    assert fastest(loads, resident, costs, link).seconds == pytest.approx(expected)


def test_the_cpu_runs_an_expert_that_would_arrive_too_late():
    loads, resident = np.array([1, 1]), np.array([True, True])
    plan = fastest(loads, resident, unit_costs(), Link(5.0, 1))
    assert (plan.accelerator, plan.cpu, plan.seconds) == ([0], [1], 2.0)
    assert fastest(loads, resident, unit_costs(), Link(0.5, 1)).accelerator == [0, 1]


def test_fastest_matches_enumeration_for_six_experts():
    loads, resident = (
        np.array([1, 4, 2, 7, 1, 3]),
        np.array([True, False, True, False, False, True]),
    )
    costs = unit_costs(transfer=2.0, cpu_row=1.5)
    assert fastest(loads, resident, costs).seconds == shortest_seconds(loads, resident, costs)


@settings(max_examples=60)
@given(
    layer=layers(24),
    costs=costs_of_any_machine,
    free=st.sampled_from([0.0, 0.75, 2.0]),
    arrives=st.booleans(),
)
def test_every_scheduler_runs_each_active_expert_once(layer, costs, free, arrives):
    loads, resident = layer
    link = Link(free, int(np.argmax(loads)) if arrives else None)
    for name, scheduler in SCHEDULERS.items():
        plan = scheduler(loads, resident, costs, link)
        assert sorted(plan.cpu + plan.accelerator) == np.flatnonzero(loads).tolist(), name
        missing = {e for e in plan.accelerator if not resident[e] and e != link.arriving}
        assert set(plan.transferred) == missing, name
        assert plan.seconds == pytest.approx(replayed(plan, loads, resident, costs, link)), name
        assert fastest(loads, resident, costs, link).seconds <= plan.seconds + 1e-9, name


def replayed(plan, loads, resident, costs, link):
    """The plan run job by job, in the order it gives."""
    cpu = sum(
        min(costs.cpu_expert + costs.cpu_row * loads[e], costs.cpu_few_row * loads[e])
        for e in plan.cpu
    )
    arrival = {e: link.free + (i + 1) * costs.transfer for i, e in enumerate(plan.transferred)}
    if link.arriving is not None:
        arrival[link.arriving] = link.free
    now = 0.0
    for expert in plan.accelerator:
        now = max(now, arrival.get(expert, 0.0)) + costs.accelerator
    return max(now, cpu + costs.cpu_first if plan.cpu else 0.0)


def test_a_layer_with_transfers_and_stolen_experts():
    """The paper's example: the CPU steals a cached expert, the GPU runs a transferred one."""
    loads = np.array([1, 1, 4, 4, 5, 5])
    resident = np.array([True, True, True, True, False, False])
    plan = earliest_finish(loads, resident, unit_costs(transfer=1.0))
    assert set(plan.transferred) == {4, 5} and set(plan.cpu) <= {0, 1} and plan.cpu
    assert plan.seconds < resident_or_cpu(loads, resident, unit_costs()).seconds


def test_priorities_of_the_timelines():
    loads, resident = (
        np.array([3, 9, 1, 5, 2, 7]),
        np.array([True, False, True, False, False, True]),
    )
    plan = earliest_finish(loads, resident, unit_costs(transfer=1.5))
    assert plan.accelerator[:2] == [5, 0]
    assert plan.cpu[0] == 4 and plan.transferred[0] == 1


def test_schedules_of_the_fixed_rules():
    loads, resident = np.array([2, 3, 0, 1]), np.array([True, False, True, False])
    split = resident_or_cpu(loads, resident, unit_costs())
    assert (split.accelerator, split.cpu, split.seconds) == ([0], [3, 1], 6.0)
    staged = all_on_accelerator(loads, resident, unit_costs())
    assert (staged.cpu, staged.transferred, staged.seconds) == ([], [1, 3], 7.0)


def test_an_empty_layer_takes_no_time():
    for scheduler in SCHEDULERS.values():
        assert scheduler(np.zeros(4, int), np.ones(4, bool), unit_costs(), Link()).seconds == 0


@settings(max_examples=50)
@given(layer=layers(40), costs=costs_of_any_machine)
def test_one_more_resident_expert_never_hurts(layer, costs):
    loads, resident = layer
    more = resident.copy()
    more[np.argmin(resident)] = True
    assert fastest(loads, more, costs).seconds <= fastest(loads, resident, costs).seconds + 1e-9


def test_enumeration_is_limited_to_six_experts():
    with pytest.raises(ValueError, match="7 experts are active; allowed: up to 6"):
        shortest_seconds(np.ones(7, int), np.ones(7, bool), unit_costs())


@pytest.mark.parametrize(
    ("field", "value"), [("accelerator", 0.0), ("transfer", -1.0), ("cpu_first", -0.1)]
)
def test_bad_costs_are_refused(field, value):
    with pytest.raises(ValueError, match=f"{field} is {value}; allowed: "):
        unit_costs(**{field: value})
