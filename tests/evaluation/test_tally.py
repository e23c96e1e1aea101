"""Scores of generations: what is asked again does not count again."""

from llada_jax.evaluation.generations import Generation
from llada_jax.evaluation.metrics import wilson_interval
from llada_jax.evaluation.tally import Tally, joined, tally
from llada_jax.evaluation.task import Item


def generation(index: int, question: str) -> Generation:
    return Generation(index, Item(question, "", ""), "", [], length=10 + index, nfe=1 + index)


def test_the_first_item_that_asks_a_question_counts():
    asked = [generation(2, "a"), generation(0, "a"), generation(1, "b"), generation(3, "b")]
    found = tally(asked, {0: True, 1: False, 2: False, 3: True})
    assert found == Tally(right=(True, False), forwards=(1, 2), tokens=(10, 11), repeated=2)
    assert (found.items, found.exact_match, found.nfe) == (4, 0.5, 1.5)
    assert found.interval == wilson_interval(1, 2)


def test_tasks_are_joined_question_by_question():
    one, other = Tally((True,), (2,), (9,), repeated=3), Tally((False, False), (4, 6), (8, 7))
    both = joined([one, other])
    assert both == Tally((True, False, False), (2, 4, 6), (9, 8, 7), repeated=3)
    assert both.items == 6
