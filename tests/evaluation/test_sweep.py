"""Sweeps: which settings they have, in which order, which is chosen, what revision makes good."""

from dataclasses import fields
from itertools import pairwise

import jax
import pytest
from omegaconf import OmegaConf

from experiments.harness.run import read_config
from llada_jax.config import LatencyTable, SamplerConfig
from llada_jax.evaluation.items import ValidationItems
from llada_jax.evaluation.sweep import (
    Axes,
    Found,
    Setting,
    Sweep,
    by_program,
    fewest_forwards,
    revisions,
)
from llada_jax.evaluation.tally import Tally
from llada_jax.evaluation.task import Item, Task
from llada_jax.evaluation.tasks import load_task

BLOCKWISE = SamplerConfig(cache="blockwise", threshold=0.9)
STAGED = SamplerConfig(cache="blockwise", accept="staged")


def scored(right: int, forwards: int, n: int = 100) -> Tally:
    return Tally((True,) * right + (False,) * (n - right), (forwards,) * n, (2 * forwards,) * n)


def found(sampler: SamplerConfig, right: int, forwards: int) -> Found:
    return Found(Setting("any", f"{right}", sampler), scored(right, forwards))


def test_a_score_is_a_mean_over_items():
    mixed = Tally((True, False, True, True), (1, 2, 3, 4), (10, 10, 20, 20))
    assert (mixed.exact_match, mixed.nfe, mixed.tpf) == (0.75, 2.5, 6)
    low, high = mixed.interval
    assert 0 < low < 0.75 < high < 1


def test_a_sweep_has_every_combination_that_makes_sense():
    axes = Axes(theta_visible=(0.5, 0.9), theta_stable=(0.8, 0.9), end_steps=(1,))
    settings = Sweep(name="staged", sampler=STAGED, over=axes).settings
    assert [setting.name for setting in settings] == [
        "staged@theta_visible:0.5,theta_stable:0.8,end_steps:1",
        "staged@theta_visible:0.5,theta_stable:0.9,end_steps:1",
        "staged@theta_visible:0.9,theta_stable:0.9,end_steps:1",
    ]
    assert settings[0].sampler == STAGED.replace(theta_visible=0.5, theta_stable=0.8, end_steps=1)
    assert Sweep(name="one", sampler=STAGED).settings == [Setting("one", "", STAGED)]


def test_every_setting_that_no_task_sets_can_be_swept():
    names = SamplerConfig.setting_types().keys()
    assert {each.name for each in fields(Axes)} == names - {"gen_length", "steps"}
    section = {
        "name": "refresh",
        "sampler": {"cache": "blockwise", "window": "multi_block", "accept": "staged"},
        "over": {"refresh": ["rows", "none"], "row_budget": [None, 64]},
    }
    settings = read_config(Sweep, OmegaConf.create(section)).settings
    found = {(each.sampler.refresh, each.sampler.row_budget) for each in settings}
    assert found == {("rows", None), ("rows", 64), ("none", None), ("none", 64)}
    with pytest.raises(ValueError, match=r"over\.steps is no setting; allowed: block_length, "):
        read_config(Sweep, OmegaConf.create(section | {"over": {"steps": [8]}}))


def test_sweeps_are_read_from_files():
    section = {
        "name": "drafts",
        "sampler": {"cache": "blockwise", "window": "multi_block", "threshold": 0.9},
        "over": {"lookahead_trigger": [0, 4], "draft_threshold": [None, 1]},
    }
    sweep = read_config(Sweep, OmegaConf.create(section))
    assert len(sweep.settings) == 4
    assert sweep.settings[-1].sampler.draft_threshold == 1.0
    with pytest.raises(ValueError, match=r"over\.remasking\[0\] is 'tokens'; allowed: 'low"):
        read_config(Sweep, OmegaConf.create(
            section | {"over": {"remasking": ["tokens"]}}
        ))  # fmt: skip
    with pytest.raises(ValueError, match="sweep 'none' is empty"):
        Sweep(name="none", sampler=STAGED, over=Axes(theta_visible=(1.0,), theta_stable=(0.9,)))


def test_settings_of_one_program_follow_each_other():
    sweeps = [
        Sweep(name="rows", sampler=STAGED, over=Axes(refresh_rows=(1, 4))),
        Sweep(name="theta", sampler=STAGED, over=Axes(theta_visible=(0.5, 0.6))),
        Sweep(name="rows_again", sampler=STAGED, over=Axes(refresh_rows=(1, 4))),
    ]
    ordered = by_program(setting for sweep in sweeps for setting in sweep.settings)
    programs = [jax.tree.structure(setting.sampler) for setting in ordered]
    changes = sum(one != other for one, other in pairwise(programs))
    assert len(ordered) == 6 and changes == len(set(programs)) - 1 == 1


def test_the_fewest_forwards_within_the_loss_are_chosen():
    settings = [found(STAGED, 95, 40), found(STAGED, 94, 30), found(STAGED, 93, 9)]
    assert fewest_forwards(settings, scored(95, 64), points=1) == settings[1]
    assert fewest_forwards(settings, scored(95, 64), points=0) == settings[0]
    assert fewest_forwards(settings, scored(98, 64), points=2) is None
    equal = [found(STAGED, 94, 30), found(STAGED, 96, 30)]
    assert fewest_forwards(equal, scored(95, 64), points=1) == equal[1]


def test_revision_is_compared_with_the_same_threshold_and_with_as_many_forwards():
    hasty = [
        found(BLOCKWISE.replace(threshold=0.5), 60, 10),
        found(BLOCKWISE.replace(threshold=0.9), 80, 20),
    ]
    staged = found(STAGED.replace(theta_visible=0.5), 84, 15)
    sliding = found(STAGED.replace(theta_visible=0.5, window="multi_block"), 84, 15)
    (pair,) = revisions([*hasty, staged, sliding], scored(90, 64))
    assert (pair.staged, pair.hasty) == (staged, hasty[0])
    assert pair.lost == pytest.approx(0.30)
    assert pair.recovered == pytest.approx(0.24)
    assert pair.forwards == 1.5
    assert pair.beyond == pytest.approx(0.84 - 0.70)
    (slow,) = revisions([*hasty, found(STAGED.replace(theta_visible=0.5), 84, 21)], scored(90, 64))
    assert slow.beyond is None


@pytest.mark.parametrize(
    "changes",
    [
        {"lookahead_trigger": 2},
        {"latency_table": LatencyTable(rows=(32, 64), ms=(1.0, 2.0))},
        {"row_budget": 64},
        {"block_length": 16},
        {"eos_early_stop": True},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_revision_is_compared_within_one_window(changes):
    window = {"window": "multi_block"}
    hasty = [
        found(BLOCKWISE.replace(threshold=0.7, **window, **changes), 70, 10),
        found(BLOCKWISE.replace(threshold=0.7, **window), 60, 10),
    ]
    revised = STAGED.replace(theta_visible=0.7, refresh_rows=1, rescore="token")
    (pair,) = revisions([*hasty, found(revised.replace(**window), 84, 15)], scored(90, 64))
    assert pair.hasty == hasty[1], "and rules of its own do not keep it from being compared"
    changed = found(revised.replace(**window, **changes), 84, 15)
    assert [each.hasty for each in revisions([*hasty, changed], scored(90, 64))] == hasty[:1]


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
