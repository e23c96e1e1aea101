"""Accept rules on hand-made and on random candidates."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.observe import even_quota, linear_masks
from llada_jax.sampler.rules.rule import RuleState, ranks
from llada_jax.types import Scores
from tests.sampler.blocks import commits, observed

POSITIONS = 24
ranked = jax.jit(ranks)


def padded(values):
    """Returns one row of a length that all tests have, so that operations compile once."""
    row = np.zeros((1, POSITIONS), np.asarray(values).dtype)
    row[0, : len(values)] = values
    return row


def accepted(confidence, is_open=None, entropy=None, due=1, random=None, **settings):
    is_open = padded([True] * len(confidence) if is_open is None else is_open)
    confidence = padded(np.float32(confidence))
    zeros = np.zeros_like(confidence)
    config = SamplerConfig.from_flat(gen_length=64, block_length=64, steps=64, **settings)
    scores = Scores(
        zeros.astype(np.int32),
        jnp.asarray(confidence),
        jnp.asarray(zeros if entropy is None else padded(np.float32(entropy))),
        jnp.asarray(zeros),
    )
    random = jnp.asarray(zeros if random is None else padded(np.float32(random)))
    seen = observed(scores, jnp.asarray(is_open), jnp.asarray([due], jnp.int32), config, random)
    return np.flatnonzero(commits(seen, config)[0]).tolist()


def test_quota_takes_the_best():
    assert accepted([0.1, 0.9, 0.5, 0.7], due=2) == [1, 3]
    assert accepted([0.1, 0.9, 0.5], is_open=[True, False, True], due=2) == [0, 2]
    assert accepted([0.1, 0.9], due=0) == []


def test_ties():
    assert accepted([0.5, 0.5, 0.5], due=2) == [0, 1]


def test_threshold():
    half = dict(threshold=0.5)
    assert accepted([0.5, 0.4, 0.6], **half) == [0, 2]
    assert accepted([0.5, 0.4, 0.6], strict_threshold=True, **half) == [2]
    assert accepted([0.1, 0.4, 0.3], **half) == [1], "the best is always taken"
    assert accepted([0.1, 0.4, 0.3], due=2, forced_progress="quota", **half) == [1, 2]
    assert accepted([0.9, 0.9], is_open=[False, False], **half) == []


def test_confident_and_near_masks_come_first():
    settings = dict(accept="entropy_distance", max_entropy=0.5, distance_penalty=0.1)
    assert accepted([0.5] * 4, entropy=[0.4, 0.6, 0.1, 0.3], **settings) == [0, 2]
    assert accepted([0.5] * 3, entropy=[0.9, 0.7, 2.0], **settings) == [1], "the best of both"


def test_the_smallest_entropies_are_committed_up_to_a_sum():
    settings = dict(accept="entropy_bound", entropy_bound=0.5)
    assert accepted([0.5] * 4, entropy=[0.3, 0.1, 0.2, 0.05], **settings) == [1, 2, 3]
    assert accepted([0.5] * 2, entropy=[0.5, 0.6], **settings) == [0], "one is always taken"
    assert accepted([0.5] * 2, is_open=[False, True], entropy=[0.1, 0.9], **settings) == [1]


def test_path_planning_masks_what_the_model_is_least_sure_of():
    config = SamplerConfig.preset("p2")
    masked = jnp.asarray(padded([True, True, True, False, False]))
    confidence = jnp.asarray(padded(np.float32([0.1, 0.9, 0.5, 0.2, 0.8])))
    nothing = jnp.zeros_like(confidence)
    scores = Scores(nothing.astype(jnp.int32), confidence, nothing, nothing)
    seen = observed(scores, masked, jnp.asarray([1], jnp.int32), config)  # 2 masks are left
    seen = replace(seen, committed=jnp.asarray(padded([False, False, False, True, True])))
    decision, _ = config.rule.decide(seen, RuleState())
    assert np.flatnonzero(decision.commit[0]).tolist() == [1, 2]
    assert decision.remask is not None
    assert np.flatnonzero(seen.committed & decision.remask).tolist() == [3]


def test_masks_that_are_left_are_rounded_as_open_dcoder_rounds_them():
    """In float32, 56 times 1 - 25/56 is less than 31."""
    left = linear_masks(jnp.full(56, 56), jnp.arange(56), 56)
    assert left.tolist() == [55 - step - (step == 24) for step in range(56)]


def test_random_ranks_by_random_numbers():
    assert accepted([0.9, 0.1], random=[0.2, 0.8], remasking="random") == [1]


@given(
    confidence=st.lists(st.floats(0, 1, width=32, allow_subnormal=False), min_size=1, max_size=24),
    data=st.data(),
)
def test_ranks_equal_a_stable_sort(confidence, data):
    is_open = data.draw(st.lists(st.booleans(), min_size=len(confidence), max_size=len(confidence)))
    found = np.asarray(ranked(padded(np.float32(confidence)), padded(is_open)))[0]
    candidates = [i for i, value in enumerate(is_open) if value]
    best_first = sorted(candidates, key=lambda i: (-np.float32(confidence[i]), i))
    assert [found[i] for i in best_first] == list(range(len(best_first)))


@given(masks=st.integers(0, 200), steps=st.integers(1, 200))
def test_quota_spreads_all_masks(masks, steps):
    due = even_quota(np.full(steps, masks), np.arange(steps), steps)
    assert due.sum() == masks
    assert due.max() - due.min() <= 1
    assert (np.diff(due) <= 0).all()


def test_a_sweep_over_the_bound_is_one_configuration():
    low, high = (SamplerConfig.from_flat(threshold=value) for value in (0.3, 0.9))
    assert jax.tree.structure(low) == jax.tree.structure(high)
    assert jax.tree.leaves(low) == [0.3] and jax.tree.leaves(high) == [0.9]
