"""A run: its settings, sweeps, and its folder, which is empty until the run begins."""

import json
from dataclasses import dataclass, field
from typing import Literal
from unittest.mock import patch

import pytest
from omegaconf import OmegaConf

from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point, read_config
from llada_jax.config import require
from tests.experiments.in_process import run_experiment

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


def test_rows_about_another_model_keep_its_fingerprint(run):
    run.begin()
    run.fingerprint = "one"
    run.finish([ROW, ResultRow("steps", 3, "steps", fingerprint="other")])
    rows = json.loads((run.folder / "results.json").read_text())
    assert [row["fingerprint"] for row in rows] == ["one", "other"]


def test_nan_in_json_is_an_error(run):
    run.begin()
    with pytest.raises(ValueError, match="not JSON compliant"):
        run.record({"loss": float("nan")})


def test_a_second_run_in_the_folder_starts_anew(run):
    run.begin()
    run.record({"step": 0})
    run.finish([ROW])
    second = Run(run.folder, OmegaConf.create({"seed": 4, "again": 4}))
    second.require_same_experiment()
    second.begin()
    assert not (run.folder / "results.json").exists()
    second.record({"step": 7})
    assert (run.folder / "metrics.jsonl").read_text() == '{"step": 7}\n'


def test_the_folder_of_another_experiment_is_refused(run):
    run.begin()
    other = Run(run.folder, OmegaConf.create({"seed": 3, "runs": []}))
    with pytest.raises(ValueError, match=r"of another experiment.* again are none of seed, runs;"):
        other.require_same_experiment()


@pytest.mark.parametrize("content", [b"a: [", b"- 1", b"\xff", b"a: !!bool x", b"a: 1\na: 2"])
def test_damaged_settings_of_a_folder_are_named(run, content):
    run.begin()
    (run.folder / "config.yaml").write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.yaml is (damaged|no YAML)"):
        run.require_same_experiment()


@dataclass(frozen=True)
class Settings:
    shape: str


@pytest.fixture
def shapes_of(tmp_path):
    """Runs a command, and returns the setting of each run."""
    (tmp_path / "asked_mode.yaml").write_text("")

    def shapes(*arguments):
        found = []

        def note(config, run):
            found.append(config.shape)
            run.begin()

        folders = [f"hydra.run.dir={tmp_path}/run", f"hydra.sweep.dir={tmp_path}/sweep"]
        with patch("experiments.harness.run.CONF", tmp_path):
            run_experiment(entry_point("asked_mode", note, Settings), [*arguments, *folders])
        return found

    return shapes


@pytest.mark.parametrize("said", ["-m", "hydra.mode=MULTIRUN"])
def test_a_sweep_runs_each_value(shapes_of, said):
    assert shapes_of(said, "+shape=a,b") == ["a", "b"]


@dataclass(frozen=True, kw_only=True)
class Wheel:
    spokes: int
    radius: float = 1.0

    def __post_init__(self):
        require(self.spokes > 0, f"spokes is {self.spokes}; allowed: 1 or more")


@dataclass(frozen=True, kw_only=True)
class Bicycle:
    colour: Literal["red", "green"]
    front: Wheel
    back: Wheel | None = None
    name: str | None = None
    electric: bool = False
    spare: Wheel = field(default_factory=lambda: Wheel(spokes=1))


def read(**values):
    values = {"colour": "red", "front": {"spokes": 8}, **values}
    return read_config(Bicycle, OmegaConf.create(values))


def test_sections_become_dataclasses():
    bicycle = read(back={"spokes": 9, "radius": 2}, name="Ann", electric=True)
    assert bicycle == Bicycle(
        colour="red",
        front=Wheel(spokes=8),
        back=Wheel(spokes=9, radius=2.0),
        name="Ann",
        electric=True,
    )
    assert bicycle.back is not None and type(bicycle.back.radius) is float
    assert read(back=None, name=None) == read()


def test_interpolations_are_resolved():
    assert read(back={"spokes": "${front.spokes}"}).back == Wheel(spokes=8)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"color": "red"}, r"^color is no setting; allowed: colour, front, back, name, electric"),
        (
            {"front": {"spoke": 8}},
            r"^front\.spoke is no setting; allowed: spokes, radius \(did you mean spokes\?\)$",
        ),
        ({"back": {"radius": 1.0}}, r"^back\.spokes is missing$"),
        ({"front": 8}, r"^front is 8; allowed: a section of settings$"),
        ({"front": None}, r"^front is None; allowed: a section"),
        ({"front": {"spokes": 8.5}}, r"^front\.spokes is 8\.5; allowed: a whole number$"),
        ({"front": {"spokes": True}}, r"^front\.spokes is True; allowed: a whole number$"),
        ({"front": {"spokes": 8, "radius": "wide"}}, r"^front\.radius is 'wide'; allowed: a num"),
        ({"electric": 1}, r"^electric is 1; allowed: true or false$"),
        ({"name": 7}, r"^name is 7; allowed: text$"),
        ({"colour": "blue"}, r"^colour is 'blue'; allowed: 'red', 'green'$"),
        ({"front": {"spokes": 0}}, r"^front: spokes is 0; allowed: 1 or more$"),
    ],
)
def test_errors_name_the_key_and_what_is_allowed(values, message):
    with pytest.raises(ValueError, match=message):
        read(**values)
