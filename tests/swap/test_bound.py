"""The lower bound where it is known what it should be; that nobody beats it is tested with the
planners."""

from llada_jax.swap.bound import least_step_ns
from llada_jax.swap.graph import Graph
from llada_jax.swap.planners import planner
from llada_jax.swap.stall_times import stall_of
from tests.swap.small_graphs import chain, one_buffer


def test_compute_alone_where_all_fits():
    graph = chain([4, 4], [10, 20], [99, 99])
    assert least_step_ns(graph, one_buffer(8)) == 30


def test_transfers_set_the_pace_where_they_are_slow():
    """Of eight equal operators four fit: five are staged, since one of the places is for them."""
    graph = chain([1] * 8, [1] * 8, [100] * 8)
    least = least_step_ns(graph, one_buffer(4))
    assert 490 <= least <= 500
    plan = planner("steady")(graph, one_buffer(4))
    assert least <= graph.compute_ns + stall_of(graph, plan) <= 1.3 * least


def test_mappings_count_where_bytes_cost_nothing():
    """A place for half of the weights is filled twice a step."""
    graph = Graph(chain([1] * 8, [1] * 8, [0] * 8).operators, map_ns=1000)
    assert least_step_ns(graph, one_buffer(4)) >= 1990


def test_temporaries_count():
    """Beside temporaries only one operator's weights fit, and the other's are staged."""
    graph = chain([4, 4], [10, 10], [50, 50])
    assert least_step_ns(graph, one_buffer(14, temporary_bytes=6)) == 20
    assert least_step_ns(graph, one_buffer(13, temporary_bytes=6)) >= 50
