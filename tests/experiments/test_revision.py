"""`python -m experiments.revision`: ways to revise against a threshold of each task."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from experiments import revision as entry
from tests.experiments.in_process import run_experiment

SMALL = [
    "model=tiny", "tasks=[{name: long_addition, choice_items: 4, items: 4, new: true}]",
    "thresholds=[0.5,0.9]",
    "ways=[{name: staged, commits_at: 0.5, sampler: {accept: staged, theta_visible: 0.5}}]",
]  # fmt: skip


def run(folder, *arguments: str) -> None:
    run_experiment(entry.main, [*SMALL, *arguments, f"hydra.run.dir={folder}"])


@pytest.mark.slow
def test_a_run_compares_and_predicts(tmp_path):
    run(tmp_path / "run")
    rows = json.loads((tmp_path / "run" / "results.json").read_text())
    values = {row["name"]: row["value"] for row in rows}
    assert values["long_addition/staged/baseline"] in (0.5, 0.9)
    for name in ("equal_strict", "predicted"):
        assert values[f"long_addition/staged/{name}/row_forwards"] > 0
    assert "prediction/new/right" in values
    assert values["all/staged/equal_strict/row_forwards"] > 0  # here the only task is all tasks
    assert values["all/0.9/strict_match"] == values["long_addition/test/0.9/strict_match"]
    assert (tmp_path / "run" / "revision.png").read_bytes().startswith(b"\x89PNG")


def test_the_predicted_cost_is_that_of_a_threshold_with_as_few_wrong_answers():
    # of ten answers the thresholds leave 4, 2 and 0 wrong for 10, 20 and 40 rows
    equal = entry.cost_of_wrong_share(0.1, [0.4, 0.2, 0.0], [10, 20, 40])
    assert equal == pytest.approx(30)
    assert entry.cost_of_wrong_share(0.3, [0.4, 0.4, 0.2], [10, 20, 40]) == pytest.approx(25)
    assert np.isfinite(entry.cost_of_wrong_share(0.0, [0.4, 0.2, 0.1], [10, 20, 40]))


def test_predictions_are_compared_with_the_costs_of_known_tasks():
    def point(new, measured, predicted, width=0.0):
        task = SimpleNamespace(new=new)
        interval = (measured - width, measured + width)
        return entry.Point(task, "way", measured, interval, predicted, [])

    points = [point(False, 0.5, 0.6), point(True, 2.0, 1.5), point(True, 0.9, 1.1, width=0.2)]
    rows = {row.name: row.value for row in entry._prediction_rows(points)}
    assert rows["prediction/known/right"] == rows["prediction/new/clear/right"] == 1
    assert rows["prediction/new/right"] == 0.5
    assert rows["prediction/new/as_known/clear/right"] == 0  # it costs half on the known task
    assert rows["prediction/new/as_threshold/right"] == 0.5  # "no gain" is right where it costs 2
    assert rows["prediction/known/error"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("tasks=[]", "tasks is empty; allowed: one or more"),
        ("tasks.0.name=sums", "task is 'sums'; allowed: choices"),
        ("tasks.0.items=0", "items is 0; allowed: 1 or more"),
        ("thresholds=[0.9]", "allowed: two or more, ascending"),
        ("ways.0.commits_at=0.7", "commits_at of staged is 0.7; allowed: one of"),
        ("choice_seed=3405", "seed is 3405; allowed: another one than scored_seed"),
    ],
)
def test_bad_input_is_named(override, message, tmp_path):
    with pytest.raises(SystemExit, match=message):
        run(tmp_path / "run", override)
    assert not any((tmp_path / "run").iterdir())
