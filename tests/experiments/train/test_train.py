"""`python -m experiments.train`: configuration, run folder, exported model."""

import json
import re
import shutil
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import llada_jax as lj
from experiments.harness.run import REPOSITORY, read_config
from experiments.train import __main__ as entry
from experiments.train.curriculum import TaskShare
from llada_jax.evaluation.tasks import load_task
from llada_jax.training.loop import read_metrics
from llada_jax.training.objectives import Masked, SelfFill
from tests.experiments.in_process import run_experiment
from tests.experiments.retraining import recipe, stated_logs
from tests.model_cards import outdated_tasks, stated_scores, stated_trainings

TINY = [
    "train.steps=4",
    "train.start=random",
    "train.warmup_steps=1",
    "train.decay_steps=2",
    "train.batch_size=2",
    "train.log_every=2",
    "train.length_multiple=256",
    "train.group_steps=1",
    "train.checkpoint_every=2",
    "model.width=16",
    "model.n_layers=1",
    "model.n_heads=4",
    "model.n_kv_heads=4",
    "model.head_dim=4",
    "model.ffn_width=16",
    "tokenizer.vocab_size=400",
    "data.tasks=[{name: countdown, difficulties: [0]}]",
    "data.stages=[{steps: 1, retell_share: 1.0}, "
    "{steps: 1, drill_share: 0.5, drills: [{name: choices}]}]",
    "score.items=3",
    "score.batch_size=3",
    "score.probe_items=3",
    "train.evaluate_every=4",
]

SCORES = [("countdown", "llada"), ("countdown", "blockwise")]
"""Tasks and samplers for scoring a run at its end."""


def composed(*overrides: str):
    with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
        return compose("train", overrides=list(overrides))


def test_the_shipped_configuration_is_valid():
    run = read_config(entry.RunConfig, composed())
    assert run.model.family == "llada"
    for task in (load_task(share.name) for share in run.data.tasks):
        plain = lj.SamplerConfig.from_flat(gen_length=task.gen_length, steps=task.gen_length)
        assert run.score.samplers(task) == {
            "llada": plain,
            "blockwise": plain.replace(cache="blockwise"),
        }
        assert run.train.max_gen_length >= task.gen_length


def test_long_answers_are_scored_on_fewer_items():
    score = read_config(entry.RunConfig, composed("score.items=50", "score.long_items=20")).score
    found = {name: score.items_of(load_task(name)) for name in ("word_problems", "inventory")}
    assert found == {"word_problems": 50, "inventory": 20}
    few = read_config(entry.RunConfig, composed("score.items=5", "score.long_items=20")).score
    assert few.items_of(load_task("inventory")) == 5


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("train", "copying"),
        ("train_moe", "random"),
        ("train_all", "copying"),
        ("train_varied", "copying"),
        ("train_varied_more", "copying"),
    ],
)
def test_every_recipe_is_valid(name, start):
    with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
        assert read_config(entry.RunConfig, compose(name)).train.start == start


def test_an_unknown_objective_is_refused():
    assert read_config(entry.RunConfig, composed()).objective == Masked()
    assert read_config(entry.RunConfig, composed("objective=self_fill")).objective == SelfFill()
    with pytest.raises(ValueError, match="objective is 'rl'; allowed: masked, self_fill"):
        read_config(entry.RunConfig, composed("objective=rl"))


def test_a_shape_without_room_for_copying_heads_is_refused_before_the_run():
    with pytest.raises(ValueError, match="n_heads is 4 and n_kv_heads 4; allowed here: the same"):
        read_config(entry.RunConfig, composed("architecture@model=tiny"))


def test_overrides_reach_the_configuration():
    overrides = (
        "train.seed=7",
        "train.clip_norm=0.5",
        "data.tasks=[{name: word_problems, weight: 2}]",
    )
    run = read_config(entry.RunConfig, composed(*overrides))
    assert (run.train.seed, run.train.clip_norm) == (7, 0.5)
    assert run.data.tasks == (TaskShare(name="word_problems", weight=2.0),)


@pytest.mark.parametrize(
    "override", ["+train.speed=3", "+model.colour=red", "+data.split=test", "+extra.key=1"]
)
def test_unknown_keys_are_errors(override):
    with pytest.raises(ValueError, match=r"speed|colour|split|extra"):
        read_config(entry.RunConfig, composed(override))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.steps=soon", "soon"),
        ("train.optimizer=sgd", "optimizer is 'sgd'; allowed: 'adamw', 'muon'"),
        ("data.tasks=[{name: sums}]", r"task is 'sums'; allowed: choices, countdown"),
        ("data.tasks=[]", "tasks is empty; allowed: one or more"),
        (
            "data.tasks=[{name: yes_no, difficulties: [9]}]",
            "difficulty of yes_no is 9; allowed: 0, 1, 2",
        ),
        ("model.head_dim=4", r"\['head_dim', 'rotary_dims'\] of the configuration have no key"),
        ("score.items=0", "items is 0; allowed: 1 or more"),
        ("score.block_length=48", "gen_length is 128; allowed: a multiple"),
    ],
)
def test_bad_values_are_errors_before_the_run(override, message):
    with pytest.raises(ValueError, match=message):
        read_config(entry.RunConfig, composed(override))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, str]:
    """The folder of a run, and its output."""
    folder = tmp_path_factory.mktemp("train") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry, "TOKENIZER_TEXTS", 400)  # instead of 20,000, which take seconds
        return folder, run_experiment(entry.main, [*TINY, f"hydra.run.dir={folder}"])


def test_a_run_leaves_its_settings_and_its_scores(finished):
    folder, printed = finished
    assert "exact_match" in printed
    assert OmegaConf.load(folder / "config.yaml").train.steps == 4
    assert json.loads((folder / "env.json").read_text())["packages"]["jax"]
    rows = json.loads((folder / "results.json").read_text())
    assert [(row["name"], row["kind"], row["n"]) for row in rows] == [
        (f"{task}/{sampler}/exact_match", "measured", 3) for task, sampler in SCORES
    ]


def test_a_run_leaves_a_model_that_loads(finished):
    folder = finished[0] / "model"
    model = lj.load(folder)
    assert model.tokenizer is not None
    assert model.config.mask_id == model.tokenizer.mask_id
    hf = json.loads((folder / "config.json").read_text())
    for key in ("mask_token_id", "eos_token_id", "pad_token_id", "eot_token_id"):
        assert isinstance(hf[key], int)
    log = (folder / "training_log.jsonl").read_text().splitlines()
    assert json.loads(log[-1])["step"] == 4
    assert 0 <= json.loads(log[-1])["countdown/exact_match"] <= 1


def test_the_card_has_the_commands_to_repeat_the_training(finished):
    folder = finished[0] / "model"
    card = (folder / "README.md").read_text()
    assert "python -m experiments.train train.steps=4" in card and "Start: random weights" in card
    assert not re.search(r"\{[a-z_.]+\}", card)  # nothing left to fill in
    assert "Exact match by step, of 3 items of seed 3" in card
    assert re.search(r"\| step \| countdown \|", card)
    [training] = stated_trainings(folder)
    assert recipe(training.arguments) == read_config(entry.RunConfig, composed(*TINY))
    assert not outdated_tasks(folder)
    assert [(each.task, each.name) for each in stated_scores(folder)] == SCORES
    assert {each.items for each in stated_scores(folder)} == {3}


@pytest.mark.slow
def test_a_run_is_resumed_in_a_child_process(finished, tmp_path):
    """The child has its parent's tokenizer, and its card has the commands of both trainings."""
    parent, folder = finished[0] / "model", tmp_path / "child"
    own = f"parent={parent}", "objective=self_fill", f"hydra.run.dir={folder}"
    run_experiment(entry.main, [*TINY, *own])
    assert 0 <= read_metrics(folder)[-1]["repaired"] <= 1
    tokenizer = (folder / "model" / "tokenizer.json").read_bytes()
    assert tokenizer == (parent / "tokenizer.json").read_bytes()
    card = (folder / "model" / "README.md").read_text()
    assert f"Start: the parameters of `{parent}`" in card
    assert "half of each batch shows the model's own predictions in place of masks" in card
    assert card.count("python -m experiments.train") == 2
    assert card.count("Start: random weights") == 1
    own, before = stated_logs(folder / "model")
    assert [row["step"] for row in own] == [row["step"] for row in read_metrics(folder)]
    assert [before] == stated_logs(parent)
    assert stated_trainings(folder / "model")[1:] == stated_trainings(parent)


def test_a_child_has_its_parents_shape(finished, tmp_path):
    with pytest.raises(SystemExit, match=r"model\.ffn_width is 8; allowed: 16, as of "):
        run_experiment(
            entry.main,
            [*TINY, "model.ffn_width=8", f"parent={finished[0]}/model",
             f"hydra.run.dir={tmp_path}/child"],
        )  # fmt: skip
    assert not (tmp_path / "child" / "metrics.jsonl").exists()


def test_fewer_steps_than_a_folder_has_are_refused(finished):
    folder, _ = finished

    def content():
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    before = content()
    with pytest.raises(SystemExit, match="steps is 3; allowed: 4 or more, where the last checkp"):
        run_experiment(entry.main, [*TINY, "train.steps=3", f"hydra.run.dir={folder}"])
    assert content() == before


def test_another_rate_than_a_folder_has_is_refused(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    before = (folder / "config.yaml").read_bytes()
    with pytest.raises(SystemExit, match=r"train\.peak_lr is 0\.002 there and 0\.1 here"):
        run_experiment(entry.main, [*TINY, "train.peak_lr=0.1", f"hydra.run.dir={folder}"])
    assert (folder / "config.yaml").read_bytes() == before
    assert (folder / "results.json").exists()
