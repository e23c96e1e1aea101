"""Steady stalls against simulated steps and examples by hand, and the lower bound by examples.

`test_planners.py` tests that no plan is below the bound.
"""

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from llada_jax.swap.address_space import PlanError, in_slots
from llada_jax.swap.graph import Graph
from llada_jax.swap.planners import PLANNERS, planner
from llada_jax.swap.stall_times import last_users, least_step_ns, staged_bytes, stall_of, unfold
from tests.swap.small_graphs import budgets, chain, graphs, one_buffer, with_shared_addresses

LONG = 2 * 60
"""Number of steps that is a multiple of the periods from 1 to 6 steps."""


@settings(max_examples=40)
@given(graphs(), budgets(), st.sampled_from(sorted(PLANNERS)))
def test_many_simulated_steps_have_the_steady_stall(graph, budget, name):
    try:
        plan = PLANNERS[name](graph, budget)
    except PlanError:
        assume(False)
    events = unfold(graph, plan, 3 * LONG).operators
    ends = [event.end for event in events[len(graph) - 1 :: len(graph)]]
    assert ends[-1] - ends[-1 - LONG] == LONG * (graph.compute_ns + stall_of(graph, plan))


def test_transfers_as_long_as_the_compute_hide_in_two_slots():
    """Each transfer runs during the operator before it, which is impossible with one slot."""
    graph = chain([1] * 4, [5] * 4, [5] * 4)
    groups = [[0], [1], [2], [3]]
    two = in_slots(graph, one_buffer(2), groups, 2)
    one = in_slots(graph, one_buffer(1), groups, 1)
    assert stall_of(graph, two) == 0
    assert stall_of(graph, one) == 20


def test_staged_weights_are_in_use_from_their_transfer_to_their_operator_s_end():
    graph = chain([1] * 4, [5] * 4, [8] * 4)
    plan = in_slots(graph, one_buffer(2), [[0], [1], [2], [3]], 2)
    in_use = staged_bytes(graph, plan, 1)
    # Transfers start at 0, 8, 16 and 24; operators end at 13, 21, 29 and 37.
    assert in_use == [(0, 1), (8, 2), (13, 1), (16, 2), (21, 1), (24, 2), (29, 1), (37, 0)]


@settings(max_examples=20)
@given(graphs(), budgets(), st.sampled_from(sorted(PLANNERS)))
def test_staged_weights_never_exceed_the_room_of_the_session(graph, budget, name):
    try:
        plan = PLANNERS[name](graph, budget)
    except PlanError:
        assume(False)
    room = budget.session_bytes - plan.fixed.size - plan.resident_bytes(graph)
    sizes = [size for _, size in staged_bytes(graph, plan, 3)]
    assert all(0 <= size <= room for size in sizes) and sizes[-1:] in ([], [0])


def test_transfers_longer_than_the_compute_determine_the_step():
    graph = chain([1] * 4, [5] * 4, [8] * 4)
    plan = in_slots(graph, one_buffer(2), [[0], [1], [2], [3]], 2)
    assert stall_of(graph, plan) == 4 * 8 - 4 * 5


def test_slots_change_roles_if_their_number_does_not_divide_the_transfers():
    """The second transfer is as long as two operators, so one cannot hide it."""
    graph = chain([1] * 3, [2, 2, 1], [1, 4, 1])
    plan = in_slots(graph, one_buffer(2), [[0], [1], [2]], 2)
    assert [transfer.slot for transfer in plan.transfers] == [0, 1, 0]
    assert stall_of(graph, plan) == 2
    starts = [event.start for event in unfold(graph, plan, 3).transfers if event.index == 1]
    assert starts == [1, 1 + 4 + 2 + 1, 8 + 7]


def test_groups_that_fit_into_the_slots_are_resident():
    graph = chain([2, 1, 2], [1, 1, 1], [9, 9, 9])
    plan = in_slots(graph, one_buffer(5), [[0], [2]], 2)
    assert plan.transfers == () and stall_of(graph, plan) == 0


def test_a_group_is_one_mapping_and_waits_until_its_region_is_free():
    graph = chain([1, 1, 2, 4], [3, 3, 3, 3], [2, 2, 2, 0])
    graph = type(graph)(graph.operators, map_ns=10)
    plan = with_shared_addresses(graph, one_buffer(6), [[0, 1], [2]], {0: 0, 1: 1, 2: 0})
    (first, second) = unfold(graph, plan, 1).transfers
    assert first[2:] == (0, 14)
    assert second[2:] == (14 + 6, 14 + 6 + 12)


def test_last_users_of_overlapping_regions():
    """The third region overlaps the end of the first and the start of the second."""
    regions = {0: (0, 4), 1: (4, 4), 2: (2, 4), 3: (20, 1)}
    assert last_users(regions, 5) == {0: 2 - 5, 1: 2 - 5, 2: 1, 3: 3 - 5}


def test_a_region_between_disjoint_users_depends_on_the_earlier_one():
    regions = {0: (0, 8), 1: (0, 2), 2: (4, 2)}
    assert last_users(regions, 3) == {0: 2 - 3, 1: 0, 2: 0}


def test_the_bound_is_the_compute_time_if_everything_fits():
    graph = chain([4, 4], [10, 20], [99, 99])
    assert least_step_ns(graph, one_buffer(8)) == 30


def test_the_bound_is_the_transfer_time_if_transfers_are_slow():
    """Four of eight equal operators fit. Five are staged, since they need a part of the room."""
    graph = chain([1] * 8, [1] * 8, [100] * 8)
    least = least_step_ns(graph, one_buffer(4))
    assert 490 <= least <= 500
    plan = planner("steady")(graph, one_buffer(4))
    assert least <= graph.compute_ns + stall_of(graph, plan) <= 1.3 * least


def test_the_bound_counts_mappings_without_copies():
    """A room for half of the weights is filled twice per step."""
    graph = Graph(chain([1] * 8, [1] * 8, [0] * 8).operators, map_ns=1000)
    assert least_step_ns(graph, one_buffer(4)) >= 1990


def test_temporaries_reduce_the_room_in_the_bound():
    """With one byte less, only one operator's weights fit next to the temporaries."""
    graph = chain([4, 4], [10, 10], [50, 50])
    assert least_step_ns(graph, one_buffer(14, temporary_bytes=6)) == 20
    assert least_step_ns(graph, one_buffer(13, temporary_bytes=6)) >= 50
