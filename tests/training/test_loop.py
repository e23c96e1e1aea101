"""A killed run resumes and ends like an undisturbed run, wherever it was killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from llada_jax.config import TrainConfig
from llada_jax.training import loop
from llada_jax.training.data import Example
from tests.training import echo

ROOT = Path(__file__).parent.parent.parent

MODEL = echo.MODEL.replace(width=8, head_dim=4, rotary_dims=4, ffn_width=8)
CONFIG = echo.CONFIG.replace(
    seed=5,
    steps=12,
    warmup_steps=2,
    decay_steps=4,
    batch_size=2,
    group_steps=1,
    optimizer="adamw",
    log_every=2,
    checkpoint_every=4,
    evaluate_every=4,
)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run(folder: Path, config: TrainConfig = CONFIG, source=echo.example):
    return loop.train(folder, MODEL, config, source, rows_of_embedding, progress=False)


def rows_of_embedding(params) -> dict[str, float]:
    return {"answer": float(params.embedding.shape[0])}


def die_in_step(folder: Path, step: int) -> None:
    """Killed while the batch of a step (from 0) is drawn."""

    def deadly(index: int) -> Example:
        if index >= step * CONFIG.batch_size:
            die()
        return echo.example(index)

    run(folder, source=deadly)


def die_in_save(folder: Path, step: int) -> None:
    """Killed while a checkpoint is written, before it gets its final name."""
    save = ocp.training.Checkpointer.save

    def deadly(self, at, state):
        if at < step:
            return save(self, at, state)
        for renaming in ("os.rename", "os.replace", "pathlib.Path.rename"):
            mock.patch(renaming, lambda *_: die()).start()
        return save(self, at, state)

    with mock.patch.object(ocp.training.Checkpointer, "save", deadly):
        run(folder)


def die_in_metrics(folder: Path, step: int) -> None:
    """Killed when half a row of metrics has been written."""
    append = loop.atomic.append_text

    def deadly(path, row):
        if json.loads(row)["step"] < step:
            return append(path, row)
        with path.open("a") as file:
            file.write(row[:20])
            file.flush()
            die()

    with mock.patch.object(loop.atomic, "append_text", deadly):
        run(folder)


def die_one_after_the_other(folder: Path, *deaths: tuple[str, int]) -> None:
    """Runs that are killed in forks, which share the process's imports."""
    for how, step in deaths:
        child = os.fork()
        if child == 0:
            globals()[how](folder, step)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, (how, step)


def killed(folder: Path, *deaths: tuple[str, int]) -> None:
    call = f"die_one_after_the_other(t.Path({str(folder)!r}), *{deaths})"
    code = f"from tests.training import test_loop as t; t.{call}"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr


def metrics(folder: Path, whole: bool = True) -> list[dict]:
    """Rows without their seconds, and without an incomplete last row."""
    lines = (folder / loop.METRICS_FILE).read_text().splitlines()
    rows = map(json.loads, lines if whole else lines[:-1])
    return [{k: v for k, v in row.items() if k != "seconds_per_step"} for row in rows]


def assert_same_bits(a, b) -> None:
    for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    return folder, loop.checkpoint_content(run(folder))


@pytest.mark.slow
def test_killed_four_times_it_ends_the_same_bit_for_bit(tmp_path, uninterrupted):
    folder, arrays = uninterrupted
    before_the_first_checkpoint, after_it = ("die_in_step", 3), ("die_in_metrics", 6)
    killed(
        tmp_path, before_the_first_checkpoint, after_it, ("die_in_save", 8), ("die_in_metrics", 8)
    )
    assert [row["step"] for row in metrics(tmp_path, whole=False)] == [2, 4, 6]
    assert (tmp_path / loop.METRICS_FILE).read_text()[-1] != "\n"
    asked = []

    def listening(index: int) -> Example:
        asked.append(index)
        return echo.example(index)

    resumed = run(tmp_path, source=listening)
    assert min(asked) == 4 * CONFIG.batch_size, "it goes on from the checkpoint of step 4"
    assert_same_bits(loop.checkpoint_content(resumed), arrays)
    assert metrics(tmp_path) == metrics(folder)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [loop.CHECKPOINT_FOLDER, loop.METRICS_FILE]
    steps = sorted(path.name for path in (tmp_path / loop.CHECKPOINT_FOLDER).iterdir())
    assert steps == ["12", "8"]


def test_metrics_have_the_step_and_the_rate(uninterrupted):
    rows = metrics(uninterrupted[0])
    assert [row["step"] for row in rows] == [2, 4, 6, 8, 10, 12]
    assert set(rows[0]) == {"step", "learning_rate", "loss", "accuracy", "gradient_norm"}
    assert rows[-1]["learning_rate"] == 0
    assert all(np.isfinite(list(row.values())).all() for row in rows)


def test_a_finished_run_is_not_changed(tmp_path, uninterrupted):
    folder, arrays = uninterrupted
    before = metrics(folder)

    def no_more(index: int) -> Example:
        raise AssertionError(index)

    assert_same_bits(loop.checkpoint_content(run(folder, source=no_more)), arrays)
    assert metrics(folder) == before


@pytest.mark.parametrize(("name", "bad"), [("loss", np.nan), ("gradient_norm", np.inf)])
def test_a_non_finite_step_ends_the_run_and_keeps_the_last_checkpoint(
    tmp_path, uninterrupted, name, bad
):
    make = loop.make_train_step

    def poisoned(*arguments):
        step = make(*arguments)

        def one(state, batch):
            state, found = step(state, batch)
            return state, found | ({name: np.float32(bad)} if state.step == 7 else {})

        return one

    with (
        mock.patch.object(loop, "make_train_step", poisoned),
        pytest.raises(FloatingPointError, match=rf"training stops at step 7: {name} is {bad}; all"),
    ):
        run(tmp_path)
    assert [row["step"] for row in metrics(tmp_path)] == [2, 4, 6]
    assert [path.name for path in (tmp_path / loop.CHECKPOINT_FOLDER).iterdir()] == ["4"]
    assert_same_bits(loop.checkpoint_content(run(tmp_path)), uninterrupted[1])


def test_a_checkpoint_contains_only_arrays(tmp_path):
    save = CONFIG.replace(checkpoint_every=2)
    with (
        mock.patch.object(loop, "_require_finite"),
        pytest.raises(ValueError, match=r"after step 2: embedding has .* that are NaN"),
    ):
        run(tmp_path, save.replace(peak_lr=3e38, warmup_steps=0, clip_norm=1e30))
    assert not any((tmp_path / loop.CHECKPOINT_FOLDER).iterdir())


def test_a_checkpoint_past_the_end_is_an_error(uninterrupted):
    shorter = CONFIG.replace(steps=8)
    with pytest.raises(ValueError, match="steps is 8; allowed: 12 or more"):
        run(uninterrupted[0], shorter)


def test_checks_before_resuming_change_nothing(tmp_path, uninterrupted):
    leftover = tmp_path / "run" / loop.CHECKPOINT_FOLDER / "4.orbax-checkpoint-tmp"
    loop.require_steps(tmp_path / "run", CONFIG)
    assert not any(tmp_path.iterdir())
    leftover.mkdir(parents=True)
    loop.require_steps(tmp_path / "run", CONFIG)
    assert list((tmp_path / "run").rglob("*")) == [leftover.parent, leftover]


def test_evaluations_are_added_to_the_metrics(uninterrupted):
    found = [(row["step"], row.get("answer")) for row in metrics(uninterrupted[0])]
    assert found == [(2, None), (4, 16.0), (6, None), (8, 16.0), (10, None), (12, 16.0)]
