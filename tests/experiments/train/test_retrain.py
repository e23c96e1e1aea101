"""Training again with the commands on a bundled model's card reproduces its log."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.harness.run import REPOSITORY
from llada_jax.checkpoint import bundled_names, model_path
from llada_jax.text import TOKENIZER_FILES
from llada_jax.training.loop import read_metrics
from tests.experiments.retraining import Compared, again, first_steps, recipe, stated_logs
from tests.experiments.train.test_train import TINY
from tests.model_cards import stated_trainings

pytestmark = pytest.mark.slow
FIRST_STEPS = 300
LOSS, ACCURACY = 0.05, 0.02
"""Tolerances (relative loss, absolute accuracy) for the same batches on other kernels and
processors. On the original processor nothing differs."""


def goes_alike(rows: list[Compared]) -> bool:
    for then, now in rows:
        print(f"step {then['step']}: loss {now['loss']:.4f} now, {then['loss']:.4f} then")
    return bool(rows) and all(
        now["loss"] == pytest.approx(then["loss"], rel=LOSS)
        and now["accuracy"] == pytest.approx(then["accuracy"], abs=ACCURACY)
        and now["learning_rate"] == pytest.approx(then["learning_rate"], rel=1e-4)
        for then, now in rows
    )


def trainings():
    """The trainings of every bundled model and of its parents, each once."""
    seen = []
    for name in bundled_names():
        folder = model_path(name)
        stated = zip(stated_trainings(folder), stated_logs(folder), strict=True)
        for place, (training, log) in enumerate(stated):
            if training in seen:
                continue
            seen.append(training)
            yield pytest.param(folder, training, log, id=f"{name}-{'parent' if place else 'own'}")


@pytest.mark.parametrize(("folder", "training", "log"), list(trainings()))
def test_the_first_steps_reproduce_the_log(folder, training, log, tmp_path):
    if training.arguments is None:
        pytest.skip("it was trained by commands that are none of today's")
    if training.outdated:
        pytest.skip(f"it was trained on items of other versions: {training.outdated}")
    config = recipe(training.arguments)
    if training.parent:
        parent = bundled_as_of(training.commit, training.parent, tmp_path / "parent")
        config = replace(config, parent=str(parent))
    assert goes_alike(first_steps(folder, config, log, FIRST_STEPS, tmp_path / "run"))


def bundled_as_of(commit: str, name: str, folder: Path) -> Path:
    """Writes a model as it was bundled at a commit. Skips the test if git has no such folder, or
    if the history here is too short."""
    folder_then = (model_path("tiny").parent / name).relative_to(REPOSITORY).as_posix()
    source = f"{commit}:{folder_then}"
    listed = git("ls-tree", "--name-only", source)
    if listed.returncode != 0:
        pytest.skip(f"git has no {source}")
    folder.mkdir()
    for file in listed.stdout.decode().split():
        (folder / file).write_bytes(git("show", f"{source}/{file}").stdout)
    return folder


def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True)


def test_other_data_is_detected(tmp_path):
    config, model = recipe(TINY), tmp_path / "model"
    model.mkdir()
    for name in TOKENIZER_FILES:
        shutil.copy(model_path("tiny") / name, model)
    again(model, config, 4, tmp_path / "then")
    then = read_metrics(tmp_path / "then")
    assert goes_alike(first_steps(model, config, then, 4, tmp_path / "now"))
    other = replace(config, data=replace(config.data, seed=5))
    assert not goes_alike(first_steps(model, other, then, 4, tmp_path / "other"))
