"""A training resumes with the settings that it was started with, or names the differences."""

import re
from dataclasses import asdict, replace

import pytest

from experiments.train import curriculum
from experiments.train.curriculum import MixtureConfig, Stage, TaskShare
from experiments.train.resume import TRAINING, Training
from llada_jax.config import TrainConfig
from llada_jax.evaluation.tasks import load_task

DATA = MixtureConfig(
    tasks=(TaskShare(name="word_problems"),),
    stages=(
        Stage(steps=5, retell_share=0.5),
        Stage(steps=5, drill_share=0.5, drills=(TaskShare(name="choices"),)),
    ),
)
TRAIN = TrainConfig(steps=2000)


def training(train: TrainConfig = TRAIN, data: MixtureConfig = DATA, **sections) -> Training:
    config = {"train": asdict(train), "data": asdict(data), "score": {"items": 5}}
    config["versions"] = data.versions
    return Training.of(config | sections, f"train steps={train.steps}")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / TRAINING).write_text(training().as_json())
    return tmp_path


def test_a_prolonged_run_keeps_both_commands(folder):
    longer = TRAIN.replace(steps=3000, decay_steps=500, log_every=1, checkpoint_every=9,
                           keep_checkpoints=1, evaluate_every=7)  # fmt: skip
    found = training(longer, score={"items": 9}).resumed(folder)
    assert found.commands == ["train steps=2000", "train steps=3000"]
    (folder / TRAINING).write_text(found.as_json())
    assert training().resumed(folder).commands == found.commands


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (training(TRAIN.replace(peak_lr=0.1)), "train.peak_lr is 0.003 there and 0.1 here"),
        (training(TRAIN.replace(batch_size=8)), "train.batch_size is 32 there and 8 here"),
        (
            training(data=replace(DATA, stages=(Stage(steps=5), DATA.stages[1]))),
            "data.stages[0].retell_share is 0.5 there and 0.0 here",
        ),
        (training(tokenizer={"source": "tiny"}), "tokenizer is None there and {'source': 'tiny'}"),
    ],
)
def test_other_settings_are_refused_by_name(folder, changed, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        changed.resumed(folder)


def test_another_version_of_a_task_is_refused_even_if_it_is_only_drilled(folder, monkeypatch):
    def newer(name):
        task = load_task(name)
        return replace(task, version=task.version + (name == "choices"))

    monkeypatch.setattr(curriculum, "load_task", newer)
    version = load_task("choices").version
    message = f"versions.choices is {version} there and {version + 1} here"
    with pytest.raises(ValueError, match=re.escape(message)):
        training().resumed(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1}'])
def test_a_damaged_file_is_named(folder, text):
    (folder / TRAINING).write_text(text)
    with pytest.raises(ValueError, match=r"training\.json"):
        training().resumed(folder)


def test_a_new_folder_has_nothing_to_resume(tmp_path):
    assert training().resumed(tmp_path) == training()


def test_checkpoints_of_an_unknown_training_are_refused(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ValueError, match=r"has checkpoints without training\.json"):
        training().resumed(tmp_path)
