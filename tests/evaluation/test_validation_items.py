"""Which items settings are chosen by, and what a tally counts."""

import pytest

from llada_jax.evaluation.tally import Tally
from llada_jax.evaluation.task import Item, Task, ValidationItems
from llada_jax.evaluation.tasks import load_task


def test_a_score_is_a_mean_over_items():
    mixed = Tally((True, False, True, True), (1, 2, 3, 4), (10, 10, 20, 20))
    assert (mixed.exact_match, mixed.nfe, mixed.tpf) == (0.75, 2.5, 6)
    low, high = mixed.interval
    assert 0 < low < 0.75 < high < 1


def validation(**changes) -> ValidationItems:
    values = {
        "task": load_task("yes_no"), "seed": 7, "count": 5, "scored_seed": 3, "scored_items": 20,
    }  # fmt: skip
    return ValidationItems(**{**values, **changes})


def one_of_fifty(rng, difficulty, owns):
    return Item(question=str(rng.randrange(50)), answer="", target="")


def test_validation_items_are_test_items_that_are_not_scored():
    task = Task(
        name="few", about="", draw=one_of_fifty, difficulties={0: ""}, default_difficulty=0,
        gen_length=64,
    )  # fmt: skip
    scored = {task.item(3, place, "test").question for place in range(20)}
    drawn = [task.item(7, place, "test") for place in range(200)]
    left = [item for item in drawn if item.question not in scored]
    assert len(left) < len(drawn)
    items = validation(task=task)
    assert items.item(20) == left[20], "in any order"
    assert [items.item(place) for place in range(len(left))] == left
    assert items.settings["without"] == {"seed": 3, "items": 20}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scored_seed": 7}, "seed is 7; allowed: another one than scored_seed"),
        ({"scored_items": 0}, "scored_items is 0; allowed: 1 or more"),
        ({"count": 0}, "items is 0; allowed: 1 or more"),
        ({"difficulty": 9}, "difficulty of yes_no is 9"),
    ],
)
def test_bad_items_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        validation(**changes)
