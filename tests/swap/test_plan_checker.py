"""The checker accepts valid plans and finds every kind of planted mistake."""

from collections.abc import Callable

import pytest

from llada_jax.swap.address_space import Budget, Plan, Region, in_slots
from llada_jax.swap.graph import Graph, Operator
from llada_jax.swap.plan_checker import problems
from tests.swap.small_graphs import with_shared_addresses

GRAPH = Graph(
    (
        Operator("a", 4, 3, 2),
        Operator("b", 3, 3, 2, (0,)),
        Operator("c", 4, 3, 2, (1,)),
        Operator("d", 2, 3, 2, (0, 2)),
        Operator("e", 4, 3, 2),
    )
)
BUDGET = Budget(
    session_bytes=33, max_buffers=5, max_buffer_bytes=16, alignment=1, kv_bytes_per_token=1,
    tokens=8, temporary_bytes=15,
)  # fmt: skip
SLOTTED = in_slots(GRAPH, BUDGET, [[0], [1], [2], [4]], 2)
SHARED = with_shared_addresses(GRAPH, BUDGET, [[0], [2], [4]], {0: 0, 2: 1, 4: 0})


def with_weights_at(plan: Plan, index: int, region: Region) -> Plan:
    weights = list(plan.weights)
    weights[index] = region
    return plan._replace(weights=tuple(weights))


def test_valid_plans_pass():
    assert len(SLOTTED.transfers) == 4
    assert problems(GRAPH, BUDGET, SLOTTED) == []
    assert problems(GRAPH, BUDGET, SHARED) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda p: p._replace(order=(1, 0, 2, 3, 4)), "cannot run in the order"),
        (lambda p: p._replace(order=(0, 1, 2, 3)), "cannot run in the order"),
        (lambda p: p._replace(transfers=p.transfers[:2]), "overlap"),
        (lambda p: p._replace(transfers=(*p.transfers, p.transfers[0])), "staged twice"),
        (lambda p: p._replace(transfers=p.transfers[::-1]), "not in the order of use"),
        (
            lambda p: p._replace(transfers=(*(t._replace(slot=0) for t in p.transfers),)),
            "slots do not alternate",
        ),
        (
            lambda p: p._replace(slots=(p.slots[0], p.slots[1]._replace(size=3))),
            "slots differ in size",
        ),
        (lambda p: p._replace(slots=(p.slots[0], Region(30, 4))), "beyond the session"),
        (lambda p: p._replace(slots=(p.slots[0], p.slots[0])), "overlap"),
        (lambda p: p._replace(fixed=Region(0, 7)), "does not hold keys, values"),
        (lambda p: p._replace(buffers=()), "are in no buffer"),
        (lambda p: with_weights_at(p, 0, p.weights[3]), "too little room"),
        (lambda p: with_weights_at(p, 1, p.weights[0]), "outside of its slot"),
    ],
)
def test_a_planted_mistake_is_found(change: Callable[[Plan], Plan], expected: str):
    assert any(expected in problem for problem in problems(GRAPH, BUDGET, change(SLOTTED)))


def test_residents_may_not_be_overwritten():
    plan = SHARED._replace(transfers=SHARED.transfers[1:])
    assert any("a and c of step 0 overlap" in text for text in problems(GRAPH, BUDGET, plan))


def test_a_transfer_may_not_wait_for_an_operator_that_waits_for_it():
    """One transfer has the weights of two operators at the same address."""
    plan = with_shared_addresses(GRAPH, BUDGET, [[0, 2], [4]], {0: 0, 2: 0, 4: 0})
    (problem,) = problems(GRAPH, BUDGET, plan)
    assert problem == "transfer 0 waits for an operator that waits for it"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"session_bytes": 32}, "beyond the session"),
        ({"max_buffers": 4}, "5 buffers; allowed: 4"),
        ({"max_buffer_bytes": 3}, "larger than a buffer may be"),
        ({"alignment": 2}, "is not aligned"),
        ({"tokens": 9}, "does not hold keys, values"),
    ],
)
def test_a_smaller_budget_is_exceeded(settings: dict[str, int], expected: str):
    limits = {"session_bytes": 33, "max_buffers": 5, "max_buffer_bytes": 16, "alignment": 1}
    budget = Budget(
        **{**limits, "kv_bytes_per_token": 1, "tokens": 8, "temporary_bytes": 15, **settings}
    )
    assert any(expected in problem for problem in problems(GRAPH, budget, SLOTTED))
