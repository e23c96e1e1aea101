"""The oracle's schedules: optima known by hand, a recursion over all subsets, rules as a bound."""

from itertools import combinations

import jax.numpy as jnp
import numpy as np
import pytest

import llada_jax as lj
from llada_jax.api.schedule import best_schedule, fewest_forwards
from llada_jax.testing import TOY, empty_cache, forward_rows, toy_logits


def schedule_of(right, size, **options):
    """Searches a block in which a set predicts `right(set)`; one position a forward is possible."""

    def predicted_right(sets):
        return np.array([np.isin(np.arange(size), list(right(_set(row)))) for row in sets])

    order, required = np.arange(1, size + 1), np.ones(size, bool)
    return fewest_forwards(predicted_right, order, required, **options)


def _set(row):
    return frozenset(np.flatnonzero(row).tolist())


@pytest.mark.parametrize(
    ("right", "optimum", "greedy"),
    [
        (lambda done: range(4), 1, 1),  # independent
        (lambda done: [len(done)], 4, 4),  # a chain
        (lambda done: [0, 1] if not done else range(4), 2, 2),
        # Committing 0 and 1 together spoils the rest for a while; 1 alone finishes.
        (lambda done: [0, 1] if not done else range(4) if done == {1} else [max(done) + 1], 2, 3),
    ],
)
def test_optima_known_by_hand(right, optimum, greedy):
    found = schedule_of(right, 4)
    assert (found.lower, found.upper, found.greedy) == (optimum, optimum, greedy)
    assert sorted(set(found.forwards)) == list(range(1, optimum + 1))


@pytest.mark.parametrize("seed", range(4))
def test_it_equals_a_recursion_over_all_subsets(seed):
    size, rng = 5, np.random.default_rng(seed)
    table = rng.random((1 << size, size)) < 0.4

    def right(done):
        return np.flatnonzero(table[sum(1 << i for i in done)] | (np.arange(size) == len(done)))

    best = {frozenset(range(size)): 0}
    for count in range(size - 1, -1, -1):
        for done in map(frozenset, combinations(range(size), count)):
            new = [i for i in right(done) if i not in done]
            after = [best[done | {*some}] for k in range(1, len(new) + 1)
                     for some in combinations(new, k)]  # fmt: skip
            best[done] = 1 + min(after, default=99)
    found = schedule_of(right, size)
    assert found.lower == found.upper == best[frozenset()]


def test_bounds_hold_if_the_sets_are_too_many():
    def right(done):  # the optimum is 3, of which two forwards are proven
        return range(8) if not done else [8] if len(done) < 9 else range(10)

    exact, bounded = schedule_of(right, 10), schedule_of(right, 10, max_states=20)
    assert exact.lower == exact.upper == 3
    assert (bounded.lower, bounded.upper) == (2, 3)


def test_the_beam_drops_sets_that_get_stuck():
    right = {frozenset(): [0, 1, 2], frozenset([0, 1]): [3], frozenset([0, 1, 3]): [2]}
    found = schedule_of(lambda done: right.get(done, []), 4, beam=1, max_states=1)
    assert (found.greedy, found.upper) == (None, 3)


def test_positions_after_the_end_may_stay_masked():
    found = fewest_forwards(
        lambda sets: np.tile([True, True, False], (len(sets), 1)),
        np.array([1, 2, 0]),
        np.array([True, True, False]),
    )
    assert found.upper == 1 and found.forwards.tolist() == [1, 1, 0]


def logits(salt, hidden):
    """Depends on one bit of the context: the toy's own hash changes with every commit."""
    return toy_logits(salt, hidden.at[..., 0].set(hidden[..., 0] // 505))


@pytest.fixture(scope="module")
def toy():
    functions = {"forward_rows": forward_rows, "logits": logits, "empty_cache": empty_cache}
    return lj.Model.custom(TOY, jnp.int32(1), **functions)


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["blockwise", "none"])
def test_no_rule_with_the_sequential_answer_needs_fewer_forwards(toy, cache):
    prompt = [3, 1, 4, 1, 5]
    config = lj.SamplerConfig.from_flat(gen_length=12, block_length=6, cache=cache)
    found = best_schedule(toy, prompt, config, batch_size=16)
    assert found.is_exact and found.upper < found.sequential
    equal = 0
    for threshold in (0.15, 0.18, 0.21, 0.24, 1.0):
        result = lj.generate(toy, [prompt], config.replace(threshold=threshold))
        if np.array_equal(result.generated[0], found.tokens):
            equal += 1
            assert result.nfe[0] >= found.upper
    assert equal


@pytest.mark.parametrize("cache", ["blockwise", pytest.param("none", marks=pytest.mark.slow)])
def test_the_schedule_decodes_the_sequential_answer(toy, cache):
    prompt = [9, 2]
    config = lj.SamplerConfig.from_flat(gen_length=12, block_length=6, cache=cache)
    found = best_schedule(toy, prompt, config, batch_size=16)
    plan = tuple(np.concatenate([block.forwards for block in found.blocks]).tolist())
    result = lj.generate(toy, [prompt], config.replace(rule=Scripted(plan=plan)))
    assert np.array_equal(result.generated[0], found.tokens)
    assert result.nfe[0] == found.upper
    assert found.n_required == 12  # without an early stop


@lj.rule
class Scripted:
    """Commits each position in a given forward of its block."""

    plan: tuple[int, ...] = ()

    def decide(self, seen, state):
        plan = jnp.array(self.plan)[(seen.position - 2) % len(self.plan)]
        return lj.Decision(commit=seen.masked & (plan == seen.step[:, None] + 1)), state


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.5}, "temperature is 0.5; allowed: 0"),
        ({"cache": "blockwise", "window": "multi_block", "threshold": 0.9}, "allowed: WholeCanvas"),
        ({"block_length": 64, "gen_length": 64}, "block_length is 64; allowed: 1 to 62"),
    ],
)
def test_settings_that_have_no_oracle_are_named(toy, settings, message):
    with pytest.raises(ValueError, match=message):
        best_schedule(toy, [1], lj.SamplerConfig.from_flat(**settings))
