"""Scores of generations: what is asked again does not count again."""

from llada_jax.evaluation.generations import Generation
from llada_jax.evaluation.metrics import wilson_interval
from llada_jax.evaluation.tally import Tally, joined, tally
from llada_jax.evaluation.task import Item


def generation(index: int, question: str) -> Generation:
    return Generation(index, Item(question, "", ""), "", [], length=10 + index, nfe=1 + index)


def test_the_first_item_that_asks_a_question_counts():
    asked = [generation(2, "a"), generation(0, "a"), generation(1, "b"), generation(3, "b")]
    rows = {0: 40, 1: 60, 2: 70, 3: 80}
    found = tally(asked, {0: True, 1: False, 2: False, 3: True}, block_length=10, rows=rows)
    assert found == Tally((True, False), (1, 2), (10, 11), (1, 2), (40, 60), repeated=2)
    assert (found.forwards_per_block, found.row_forwards) == (1, 50)
    assert (found.items, found.exact_match, found.nfe) == (4, 0.5, 1.5)
    assert found.interval == wilson_interval(1, 2)


def test_tasks_are_joined_question_by_question():
    one = Tally((True,), (2,), (9,), (1,), (32,), repeated=3)
    other = Tally((False, False), (4, 6), (8, 7), (1, 2), (64, 96))
    both = joined([one, other])
    assert both == Tally((True, False, False), (2, 4, 6), (9, 8, 7), (1, 1, 2), (32, 64, 96), 3)
    assert both.items == 6


def test_a_score_is_a_mean_over_items():
    mixed = Tally((True, False, True, True), (1, 2, 3, 4), (10, 10, 20, 20))
    assert (mixed.exact_match, mixed.nfe, mixed.tpf) == (0.75, 2.5, 6)
    low, high = mixed.interval
    assert 0 < low < 0.75 < high < 1
