"""Whether a command is a sweep: `-m` or `hydra.mode` says so, and Hydra is asked only then."""

from dataclasses import dataclass
from unittest.mock import patch

import pytest

from experiments.harness.data_only import DataOnlyLoader
from experiments.harness.run import entry_point
from tests.experiments.in_process import run_experiment


@dataclass(frozen=True)
class Settings:
    shape: str


@pytest.fixture
def shapes_of(tmp_path):
    """Runs a command, and returns the setting of each of its runs."""
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


def test_settings_of_a_run_are_composed_once(shapes_of):
    load, calls = DataOnlyLoader.load_configuration, []

    def counted(*given, **options):
        calls.append(options)
        return load(*given, **options)

    with patch.object(DataOnlyLoader, "load_configuration", counted):
        assert shapes_of("+shape=a") == ["a"]
    assert len(calls) == 1


@pytest.mark.parametrize("said", ["-m", "hydra.mode=MULTIRUN"])
def test_a_sweep_runs_each_value(shapes_of, said):
    assert shapes_of(said, "+shape=a,b") == ["a", "b"]
