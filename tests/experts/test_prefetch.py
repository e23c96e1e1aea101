"""Prefetching takes what shortens a coming layer most, and stops where nothing does."""

import numpy as np

from llada_jax.experts.cache import LeastRecentlyUsed, StaticFrequency
from llada_jax.experts.costs import ExpertCosts
from llada_jax.experts.prefetch import Prefetcher, Swap, denoised_again, gates_ahead
from llada_jax.experts.schedule import resident_or_cpu
from tests.experts.test_cache import visit

COSTS = ExpertCosts(
    cpu_expert=3.0, cpu_row=1.0, cpu_first=0.0, accelerator=1.0, transfer=4.0, dense=0.0
)
USED = np.array([[[3, 2, 1, 0]], [[3, 2, 0, 0]], [[3, 0, 0, 0]]]).repeat(3, axis=1)
CACHE = StaticFrequency(USED)  # of each layer, 0 is worth most, 3 least


def foreseen(*loads):
    """Gates of the layers ahead that foresee these loads."""
    rows = max(map(sum, loads))
    seen = np.full((len(loads), rows, 1), -1)
    for ahead, each in enumerate(loads):
        taken = np.repeat(np.arange(len(each)), each)
        seen[ahead, : taken.size, 0] = taken
    return seen


def swaps(seen, resident, layer=0, most=10, kind="swaps"):
    prefetcher = Prefetcher(gates_ahead, CACHE, resident_or_cpu, COSTS)
    found = []
    now = visit(0, [1, 0, 0, 0], layer=layer, foreseen=seen)
    for swap in getattr(prefetcher, kind)(now, resident):
        resident[swap.layer, [swap.expert, swap.victim]] = True, False
        found.append(swap)
        if len(found) == most:
            break
    return found


def residents(*experts):
    resident = np.zeros((3, 4), bool)
    for layer, each in enumerate(experts):
        resident[layer, list(each)] = True
    return resident


def test_the_layer_that_gains_most_comes_first():
    """Layer 2 saves 3 + 5 - 1 s with expert 3, layer 1 only 3 + 1 s."""
    found = swaps(foreseen([0, 0, 0, 1], [0, 0, 0, 5]), residents([0, 1], [0, 1], [0, 1]))
    assert found == [Swap(2, 3, 1), Swap(1, 3, 1)]


def test_the_most_loaded_missing_expert_comes_first():
    found = swaps(foreseen([0, 0, 2, 4]), residents([0, 1], [0, 1], [0, 1]), most=1)
    assert found == [Swap(1, 3, 1)]


def test_what_is_needed_more_is_not_given_up():
    assert swaps(foreseen([3, 3, 0, 3]), residents([0, 1], [0, 1], [0, 1])) == []


def test_nothing_beyond_the_last_layer():
    seen = foreseen([0, 0, 0, 1], [0, 0, 0, 5])
    assert swaps(seen, residents([0, 1], [0, 1], [0, 1]), layer=2) == []
    assert swaps(seen, residents([0, 1], [0, 1], [0, 1]), layer=1) == [Swap(2, 3, 1)]


def test_a_refill_restores_what_the_cache_wants_latest_layer_first():
    found = swaps(foreseen([0] * 4), residents([0, 2], [2, 3], [0, 1]), layer=1, kind="refills")
    assert found == [Swap(1, 0, 3), Swap(1, 1, 2), Swap(0, 1, 2)]


def test_all_layers_are_ahead_when_a_block_is_denoised_again():
    cache = LeastRecentlyUsed(3, 4)
    forecasts = denoised_again(visit(0, [1, 0, 0, 0], layer=1), cache, 3)
    assert [forecast.layer for forecast in forecasts] == [2, 0, 1]
