"""Batches are divided by their places, whoever else there is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llada_jax.evaluation.generations import ALONE, Worker


@given(st.integers(1, 9), st.integers(0, 20))
def test_each_batch_is_of_one_worker(count, before):
    workers = [Worker(rank=rank, count=count) for rank in range(count)]
    for batch in range(20):
        assert sum(each.takes(batch) for each in workers) == 1
        assert sum(each.after(before).takes(batch) for each in workers) == 1
    # Batches of a second store go on with the rank after that of the first one's last.
    following = [each.after(before).takes(0) for each in workers]
    assert following == [each.takes(before) for each in workers]


def test_one_worker_takes_all():
    assert ALONE.is_alone and all(ALONE.takes(batch) for batch in range(9))
    assert not Worker(rank=0, count=2).is_alone


@pytest.mark.parametrize("rank", [-1, 3, 7])
def test_a_rank_outside_of_the_count_is_an_error(rank):
    with pytest.raises(ValueError, match=rf"worker\.rank is {rank} of .*count=3; allowed: 0 to 2"):
        Worker(rank=rank, count=3)
