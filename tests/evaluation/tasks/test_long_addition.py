"""Long addition: carries, and long chains of carries."""

import re
from itertools import islice

import pytest

from llada_jax.evaluation.tasks.long_addition import DIGITS, TASK, carries


@pytest.mark.parametrize(
    ("a", "b", "expected"), [(95, 7, "11"), (1234, 1111, "0000"), (999, 1, "111"), (5, 5, "1")]
)
def test_carries_of_each_column(a, b, expected):
    assert carries(a, b) == expected


@pytest.mark.parametrize("difficulty", TASK.difficulties)
def test_carries_and_sums_are_right(difficulty):
    chains = []
    for item in islice(TASK.items(3, "train", difficulty=difficulty), 200):
        a, b = map(int, item.question.split("\n")[1:])
        assert len(str(a)) == len(str(b)) == DIGITS[difficulty]
        told, total = item.answer.split("\n#### ")
        carry = 0
        for place in range(1, DIGITS[difficulty] + 1):
            column = a // 10 ** (place - 1) % 10 + b // 10 ** (place - 1) % 10 + carry
            carry = column // 10
            assert told[-place] == str(carry)
            assert total[-place] == str(column % 10)
        assert int(total) == a + b
        chains += map(len, re.findall("1+", told))
    assert max(chains) >= DIGITS[difficulty] // 2


def test_only_the_complete_sum_is_accepted():
    item = TASK.item(0, 0, "test")
    assert TASK.verify(item, f"#### {item.target}")
    assert not TASK.verify(item, f"#### {int(item.target) + 10}")


def test_a_pair_is_in_one_split_in_either_order():
    pairs = {
        split: {
            tuple(sorted(map(int, item.question.split("\n")[1:])))
            for item in islice(TASK.items(4, split), 400)
        }
        for split in ("train", "test")
    }
    assert pairs["train"].isdisjoint(pairs["test"])
