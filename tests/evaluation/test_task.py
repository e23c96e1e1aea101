"""Properties of every task: splits, determinism, discovery, and verifiers."""

from itertools import islice

import pytest

from llada_jax.evaluation.task import (
    Item,
    Task,
    ValidationItems,
    ends_in_target,
    final_answer,
    split_of,
)
from llada_jax.evaluation.tasks import load_task, task_names

COUNT = 300


@pytest.fixture(params=task_names())
def task(request) -> Task:
    return load_task(request.param)


def test_a_module_with_TASK_is_registered(task):
    assert task.name in task_names()
    assert task.default_difficulty in task.difficulties


def test_an_unknown_task_error_lists_the_tasks():
    with pytest.raises(ValueError, match=r"task is 'sums'; allowed: .*word_problems"):
        load_task("sums")


def test_items_are_pure_functions_of_their_index(task):
    first = list(islice(task.items(3, "train"), 20))
    assert first == [task.item(3, index, "train") for index in range(20)]
    assert first != list(islice(task.items(4, "train"), 20))
    assert first[0] == task.item(3, 0, "train", difficulty=task.default_difficulty)


def test_no_question_is_in_both_splits(task):
    for difficulty in task.difficulties:
        count = COUNT if difficulty < 2 else 40
        train, test = (
            {item.question for item in islice(task.items(5, split, difficulty=difficulty), count)}
            for split in ("train", "test")
        )
        assert train.isdisjoint(test)


def test_worked_answers_pass_and_other_texts_fail(task):
    items = list(islice(task.items(6, "test"), 50))
    for item in items:
        assert task.verify(item, item.answer)
        assert not task.verify(item, "")
        assert not task.verify(item, item.question)


def test_worked_answers_are_right_in_every_word_and_damaged_ones_are_not(task):
    for difficulty in task.difficulties:
        for item in islice(task.items(6, "test", difficulty=difficulty), 20):
            assert task.strict(item, item.answer) and task.strict(item, item.answer + "\n")
            before, mark, after = item.answer.rpartition("####")
            damaged = [f"{before[1:]}{mark}{after}", f"x {item.answer}", f"{item.answer}\nmore"]
            damaged += [f"{before.replace('=', '==')}{mark}{after}"] if "=" in before else []
            damaged += [f"{before.replace(' ', '', 1)}{mark}{after}"] if " " in before else []
            assert not any(task.strict(item, text) for text in damaged if text != item.answer)


def test_lettered_targets_name_a_choice(task):
    for item in islice(task.items(7, "train"), 50):
        if item.choices:
            assert len(item.choices) == 4
            assert item.target in "ABCD"


def test_drills_are_many_decisions_of_the_training_split(task):
    if task.drill is None:
        with pytest.raises(ValueError, match=f"{task.name} has no drill"):
            task.item(1, 0, "train", drill=True)
        return
    drills = [task.item(8, index, "train", drill=True) for index in range(50)]
    assert drills == [task.item(8, index, "train", drill=True) for index in range(50)]
    assert sum(len(drill.target.split()) for drill in drills) > 100
    for drill in drills:
        assert drill.answer.endswith(drill.target)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "dev"}, "split is 'dev'; allowed: 'train', 'test'"),
        ({"difficulty": 9}, "is 9; allowed: 0, 1"),
        ({"index": -1}, "index is -1; allowed: 0 or more"),
    ],
)
def test_bad_arguments_are_named(task, arguments, message):
    with pytest.raises(ValueError, match=message):
        task.item(**{"seed": 0, "index": 0, "split": "train", **arguments})


def test_the_test_split_is_one_key_in_sixteen():
    share = sum(split_of(str(number)) == "test" for number in range(16_000)) / 16_000
    assert 0.055 < share < 0.07


@pytest.mark.parametrize(
    ("text", "answer"),
    [("so\n#### yes", "yes"), ("#### a\n#### b \nend", "b"), ("yes", ""), ("####", "")],
)
def test_the_final_answer_follows_the_last_mark(text, answer):
    assert final_answer(text) == answer


def test_case_and_a_final_full_stop_are_ignored():
    item = Item("", "", "yes")
    assert all(ends_in_target(item, f"#### {text}") for text in ("yes", "Yes.", " yes "))
    assert not any(ends_in_target(item, text) for text in ("#### no", "yes", "#### yes and no"))


def validation(**changes) -> ValidationItems:
    values = {
        "task": load_task("yes_no"), "seed": 7, "count": 5, "scored_seed": 3, "scored_items": 20,
    }  # fmt: skip
    return ValidationItems(**{**values, **changes})


def one_of_fifty(rng, difficulty, owns):
    return Item(question=str(rng.randrange(50)), answer="", target="")


def test_validation_items_exclude_scored_items():
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
