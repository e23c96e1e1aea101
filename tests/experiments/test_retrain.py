"""Training again by the command on a bundled model's card goes as its log says."""

import shutil
from dataclasses import replace

import pytest

from llada_jax.checkpoint import bundled_folder, bundled_names
from llada_jax.training.export import LOG_FILE, TOKENIZER_FILES
from llada_jax.training.loop import METRICS_FILE
from tests.experiments.retraining import Compared, again, first_steps, recipe
from tests.experiments.test_train import TINY
from tests.model_cards import outdated_tasks, training_arguments

pytestmark = pytest.mark.slow
FIRST_STEPS = 150
LOSS, ACCURACY = 0.05, 0.02
"""What other kernels and processors may make of the same batches (relative, and absolute); on the
processor of then nothing differs."""


def goes_alike(rows: list[Compared]) -> bool:
    for then, now in rows:
        print(f"step {then['step']}: loss {now['loss']:.4f} now, {then['loss']:.4f} then")
    return bool(rows) and all(
        now["loss"] == pytest.approx(then["loss"], rel=LOSS)
        and now["accuracy"] == pytest.approx(then["accuracy"], abs=ACCURACY)
        and now["learning_rate"] == pytest.approx(then["learning_rate"], rel=1e-4)
        for then, now in rows
    )


@pytest.mark.parametrize("name", bundled_names())
def test_the_first_steps_go_as_they_went(name, tmp_path):
    folder = bundled_folder(name)
    arguments = training_arguments(folder)
    if arguments is None:
        pytest.skip(f"{name} was trained by commands that are none of today's")
    if outdated := outdated_tasks(folder):
        pytest.skip(f"{name} was trained on items of other versions: {outdated}")
    assert goes_alike(first_steps(folder, recipe(arguments), FIRST_STEPS, tmp_path))


def test_other_data_is_noticed(tmp_path):
    config, model = recipe(TINY), tmp_path / "model"
    model.mkdir()
    for name in TOKENIZER_FILES:
        shutil.copy(bundled_folder("tiny") / name, model)
    again(model, config, 4, tmp_path / "then")
    shutil.copy(tmp_path / "then" / METRICS_FILE, model / LOG_FILE)
    assert goes_alike(first_steps(model, config, 4, tmp_path / "now"))
    other = replace(config, data=replace(config.data, seed=5))
    assert not goes_alike(first_steps(model, other, 4, tmp_path / "other"))
