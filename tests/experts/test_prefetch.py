"""Prefetching takes what shortens a coming layer most, and stops where nothing does."""

from functools import partial

import numpy as np

from llada_jax.experts.cache import Swap, make_cache, refills, swaps
from llada_jax.experts.schedule import ExpertCosts, resident_or_cpu
from tests.experts.test_cache import visit

COSTS = ExpertCosts(
    cpu_expert=3.0, cpu_row=1.0, cpu_first=0.0, accelerator=1.0, transfer=4.0, dense=0.0
)
SCHEDULE = partial(resident_or_cpu, costs=COSTS)
CACHE = make_cache("static", np.array([[3.0, 2, 1, 0]] * 3), 0.5)  # 0 is worth most, 3 least


def foreseen(*loads):
    """Gates of the layers ahead that foresee these loads."""
    rows = max(map(sum, loads))
    seen = np.full((len(loads), rows, 1), -1)
    for ahead, each in enumerate(loads):
        taken = np.repeat(np.arange(len(each)), each)
        seen[ahead, : taken.size, 0] = taken
    return seen


def entered(wanted, resident):
    """All swaps, each entered before the next one is asked for."""
    found = []
    for swap in wanted:
        resident[swap.layer, [swap.expert, swap.victim]] = True, False
        found.append(swap)
    return found


def foreseen_swaps(seen, resident, layer=0):
    now = visit(0, [1, 0, 0, 0], layer=layer, foreseen=seen)
    return entered(swaps(now, CACHE, resident, SCHEDULE), resident)


def residents(*experts):
    resident = np.zeros((3, 4), bool)
    for layer, each in enumerate(experts):
        resident[layer, list(each)] = True
    return resident


def test_the_layer_that_gains_most_comes_first():
    """Layer 2 saves 3 + 5 - 1 s with expert 3, layer 1 only 3 + 1 s."""
    found = foreseen_swaps(foreseen([0, 0, 0, 1], [0, 0, 0, 5]), residents([0, 1], [0, 1], [0, 1]))
    assert found == [Swap(2, 3, 1), Swap(1, 3, 1)]


def test_the_most_loaded_missing_expert_comes_first():
    found = foreseen_swaps(foreseen([0, 0, 2, 4]), residents([0, 1], [0, 1], [0, 1]))
    assert found[0] == Swap(1, 3, 1)


def test_what_is_needed_more_is_not_given_up():
    assert foreseen_swaps(foreseen([3, 3, 0, 3]), residents([0, 1], [0, 1], [0, 1])) == []


def test_nothing_beyond_the_last_layer():
    seen = foreseen([0, 0, 0, 1], [0, 0, 0, 5])
    assert foreseen_swaps(seen, residents([0, 1], [0, 1], [0, 1]), layer=2) == []
    assert foreseen_swaps(seen, residents([0, 1], [0, 1], [0, 1]), layer=1) == [Swap(2, 3, 1)]


def test_a_refill_restores_what_the_cache_wants_latest_layer_first():
    resident = residents([0, 2], [2, 3], [0, 1])
    found = entered(refills(1, CACHE, resident), resident)
    assert found == [Swap(1, 0, 3), Swap(1, 1, 2), Swap(0, 1, 2)]
