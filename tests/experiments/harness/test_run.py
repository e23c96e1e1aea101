"""A run folder: empty until something happened, whole afterwards."""

import json

import pytest
from omegaconf import OmegaConf

from experiments.harness.results import ResultRow
from experiments.harness.run import Run

ROW = ResultRow(name="steps", value=2, unit="steps")


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "run", OmegaConf.create({"seed": 3, "again": "${seed}"}))


def test_a_folder_is_made_when_the_run_begins(run):
    assert not run.folder.exists()
    run.begin()
    assert sorted(path.name for path in run.folder.iterdir()) == ["config.yaml", "env.json"]
    assert (run.folder / "config.yaml").read_text() == "seed: 3\nagain: 3\n"


def test_metrics_and_results(run, capsys):
    run.begin()
    run.record({"step": 0, "loss": 1.5})
    run.record({"step": 1, "loss": None})
    run.finish([ROW])
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 0, "loss": 1.5},
        {"step": 1, "loss": None},
    ]
    assert json.loads((run.folder / "results.json").read_text()) == [ROW.as_dict()]
    assert not list(run.folder.glob(".*"))
    assert capsys.readouterr().out.splitlines()[1].split() == ["steps", "2", "steps", "measured"]


def test_what_json_cannot_say_is_an_error(run):
    run.begin()
    with pytest.raises(ValueError, match="not JSON compliant"):
        run.record({"loss": float("nan")})


def test_a_second_run_in_the_folder_starts_anew(run):
    run.begin()
    run.record({"step": 0})
    run.finish([ROW])
    second = Run(run.folder, OmegaConf.create({"seed": 4, "again": 4}))
    second.require_own_folder()
    second.begin()
    assert not (run.folder / "results.json").exists()
    second.record({"step": 7})
    assert (run.folder / "metrics.jsonl").read_text() == '{"step": 7}\n'


def test_the_folder_of_another_experiment_is_refused(run):
    run.begin()
    other = Run(run.folder, OmegaConf.create({"seed": 3, "runs": []}))
    with pytest.raises(ValueError, match=r"of another experiment.* again are none of seed, runs;"):
        other.require_own_folder()


@pytest.mark.parametrize("content", [b"a: [", b"- 1", b"\xff"])
def test_damaged_settings_of_a_folder_are_named(run, content):
    run.begin()
    (run.folder / "config.yaml").write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.yaml is damaged"):
        run.require_own_folder()
