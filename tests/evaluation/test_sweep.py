"""Sweeps: which combinations they have, and which items settings are chosen by."""

from dataclasses import fields

import pytest
from omegaconf import OmegaConf

from experiments.harness.run import read_config
from llada_jax.config import SamplerConfig
from llada_jax.evaluation.sweep import Axes
from llada_jax.evaluation.tally import Tally
from llada_jax.evaluation.task import Item, Task, ValidationItems
from llada_jax.evaluation.tasks import load_task


def test_a_score_is_a_mean_over_items():
    mixed = Tally((True, False, True, True), (1, 2, 3, 4), (10, 10, 20, 20))
    assert (mixed.exact_match, mixed.nfe, mixed.tpf) == (0.75, 2.5, 6)
    low, high = mixed.interval
    assert 0 < low < 0.75 < high < 1


def test_a_sweep_has_every_combination_that_makes_sense():
    axes = Axes(theta_visible=(0.5, 0.9), theta_stable=(0.8, 0.9), end_steps=(1,))
    assert list(axes.combinations()) == [
        {"theta_visible": 0.5, "theta_stable": 0.8, "end_steps": 1},
        {"theta_visible": 0.5, "theta_stable": 0.9, "end_steps": 1},
        {"theta_visible": 0.9, "theta_stable": 0.9, "end_steps": 1},
    ]
    assert list(Axes().combinations()) == [{}]


def test_every_setting_that_no_task_sets_can_be_swept():
    names = SamplerConfig.setting_types().keys()
    assert {each.name for each in fields(Axes)} == names - {"gen_length", "steps"}
    axes = read_config(
        Axes, OmegaConf.create({"refresh": ["rows", "none"], "row_budget": [None, 64]})
    )
    found = {(each["refresh"], each["row_budget"]) for each in axes.combinations()}
    assert found == {("rows", None), ("rows", 64), ("none", None), ("none", 64)}


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"steps": [8]}, "steps is no setting; allowed: block_length, "),
        ({"remasking": ["tokens"]}, r"remasking\[0\] is 'tokens'; allowed: 'low"),
    ],
)
def test_bad_axes_are_named(over, message):
    with pytest.raises(ValueError, match=message):
        read_config(Axes, OmegaConf.create(over))


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
