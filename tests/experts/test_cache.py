"""Cache policies and prefetching: rules on small examples; none beats the best of all caches."""

from functools import cache, partial
from itertools import combinations
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llada_jax.experts.cache import (
    CacheName,
    IntervalRefresh,
    LeastRecentlyUsed,
    MinusRecentScore,
    Swap,
    make_cache,
    refills,
    swaps,
)
from llada_jax.experts.policy_run import ExpertPolicy, replay
from llada_jax.experts.routing import Visit
from llada_jax.experts.schedule import ExpertCosts, resident_or_cpu
from tests.experts.traces import small_trace, trace_of_loads

CACHES = get_args(CacheName)
COSTS = ExpertCosts(
    cpu_expert=1.0, cpu_row=1.0, cpu_first=0.0, accelerator=1.0, transfer=1.0, dense=0.0
)


def hits_of(trace, name, slots, profile_steps):
    """Hits of a cache that loads its misses, with initially empty slots."""
    policy = ExpertPolicy(scheduler="all_on_accelerator", cache=name)
    return replay(trace, policy, COSTS, slots, profile_steps=profile_steps, empty=True).hit_rate


def nothing(n_layers: int, n_experts: int) -> np.ndarray:
    """The initial state of caches that learn."""
    return np.zeros((n_layers, n_experts))


def visit(step, loads, scores=None, layer=0, **changes):
    """A visit of rows that take one expert each."""
    loads = np.asarray(loads)
    shown = {
        "step": step,
        "layer": layer,
        "loads": loads,
        "scores": np.asarray(loads if scores is None else scores, float),
        "foreseen": np.full((0, loads.sum(), 1), -1),
        "new_block": False,
    }
    return Visit(**{**shown, **changes})


def test_minus_recent_score_adds_the_best_scores_and_lets_the_others_decay():
    policy = MinusRecentScore(nothing(1, 5), alpha=0.5)
    policy.observe(visit(0, [1, 0, 0, 0, 0], scores=[0.5, 0.3, 0.1, 0.06, 0.04]))
    np.testing.assert_allclose(policy.worth[0], [0.25, 0.15, 0, 0, 0])
    policy.observe(visit(1, [0, 0, 1, 0, 0], scores=[0.1, 0.3, 0.5, 0.06, 0.04]))
    np.testing.assert_allclose(policy.worth[0], [0.125, 0.225, 0.25, 0, 0])


def test_least_recently_used_orders_by_step_and_load():
    recent = LeastRecentlyUsed(nothing(1, 3))
    for step, loads in enumerate([[3, 0, 1], [1, 0, 0], [0, 1, 2]]):
        recent.observe(visit(step, loads))
    assert np.argsort(recent.worth[0]).tolist() == [0, 1, 2]


def test_a_static_cache_does_not_learn():
    policy = make_cache("static", np.array([[1.0, 0, 2]]), 0.5)
    policy.observe(visit(0, [0, 9, 0]))
    np.testing.assert_array_equal(policy.worth[0], [1, 0, 2])


def test_interval_refresh_takes_every_fourth_step_after_the_first_block():
    policy = IntervalRefresh(nothing(1, 8))
    held = []
    for step in range(8):
        policy.observe(visit(step, np.eye(8, dtype=int)[step], new_block=step in (0, 2)))
        held.append(int(np.argmax(policy.worth[0])))
    assert held == [0, 1, 2, 2, 2, 2, 6, 6]


@st.composite
def single_layers(draw):
    steps = draw(st.integers(2, 5))
    rows = st.lists(st.integers(0, 1), min_size=4, max_size=4).filter(any)
    return np.array([[draw(rows)] for _ in range(steps)])


@settings(max_examples=40)
@given(loads=single_layers(), slots=st.integers(1, 3))
def test_no_cache_beats_the_bound_on_hits(loads, slots):
    trace = trace_of_loads(loads)
    best_possible = most_hits(loads[:, 0] > 0, slots) / (loads[1:] > 0).sum()  # the first all miss
    for name in CACHES:
        assert hits_of(trace, name, slots, 1) <= best_possible + 1e-9


def most_hits(used, slots):
    """Hits of the best possible cache among those that only load misses."""

    @cache
    def hits_from(step, resident):
        if step == len(used):
            return 0
        active = frozenset(np.flatnonzero(used[step]).tolist())
        present = sorted(resident | active)
        kept = min(slots, len(present))
        following = (frozenset(each) for each in combinations(present, kept))
        return len(active & resident) + max(hits_from(step + 1, each) for each in following)

    return hits_from(0, frozenset())


def test_with_all_slots_every_use_after_the_first_hits():
    trace = small_trace()
    for name in CACHES:
        used = trace.loads > 0
        new = used & (used.cumsum(axis=0) == 1)
        expected = 1 - new[5:].sum() / used[5:].sum()
        assert hits_of(trace, name, 16, 5) == pytest.approx(expected), name


def test_visits_match_the_trace():
    trace = small_trace()
    first = int(np.flatnonzero(trace.begins_block)[1])
    seen = trace.visits(first)
    assert [each.layer for each in seen] == [0, 1, 2, 3] and seen[0].new_block
    np.testing.assert_array_equal(seen[2].loads, trace.loads[first, 2])
    assert not trace.visits(first + 1)[0].new_block


def test_bad_input_is_refused():
    trace = small_trace()
    with pytest.raises(ValueError, match=f"profile_steps is {trace.n_steps}; allowed: 1 to"):
        hits_of(trace, "lru", 4, trace.n_steps)
    with pytest.raises(ValueError, match="cache is 'fifo'; allowed: 'mrs'"):
        hits_of(trace, "fifo", 4, 5)
    with pytest.raises(ValueError, match="alpha is 0; allowed: above 0, up to 1"):
        MinusRecentScore(nothing(1, 2), alpha=0)


PREFETCH_COSTS = ExpertCosts(
    cpu_expert=3.0, cpu_row=1.0, cpu_first=0.0, accelerator=1.0, transfer=4.0, dense=0.0
)
SCHEDULE = partial(resident_or_cpu, costs=PREFETCH_COSTS)
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
    """All swaps, each applied before the next one is requested."""
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


def test_no_swap_evicts_a_more_needed_expert():
    assert foreseen_swaps(foreseen([3, 3, 0, 3]), residents([0, 1], [0, 1], [0, 1])) == []


def test_no_predictions_after_the_last_layer():
    seen = foreseen([0, 0, 0, 1], [0, 0, 0, 5])
    assert foreseen_swaps(seen, residents([0, 1], [0, 1], [0, 1]), layer=2) == []
    assert foreseen_swaps(seen, residents([0, 1], [0, 1], [0, 1]), layer=1) == [Swap(2, 3, 1)]


def test_refills_begin_with_the_latest_layer():
    resident = residents([0, 2], [2, 3], [0, 1])
    found = entered(refills(1, CACHE, resident), resident)
    assert found == [Swap(1, 0, 3), Swap(1, 1, 2), Swap(0, 1, 2)]
