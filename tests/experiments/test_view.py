"""`python -m experiments.view`, on a synthetic trace."""

import json

import pytest

from experiments.view import ViewConfig, _replay, main
from tests.experiments.in_process import run_experiment
from tests.sampler.drawn_trace import drawn_trace


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "one"
    folder.mkdir()
    drawn_trace(forwards=8, block_length=8).save(folder / "trace.npz")
    return folder


def test_a_run_becomes_a_page(run_folder, tmp_path):
    arguments = [f"run={run_folder}", f"beside={run_folder}/trace.npz", "phones=[]"]
    printed = run_experiment(main, [*arguments, "browser=false", f"hydra.run.dir={tmp_path}"])
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.yaml", "env.json", "results.json", "page.html", "canvas.svg",
    }  # fmt: skip
    assert "\nopen " in printed and printed.endswith("page.html\n")
    rows = {
        row["name"]: row["value"] for row in json.loads((tmp_path / "results.json").read_text())
    }
    size = (tmp_path / "page.html").stat().st_size
    assert rows == {"run/forwards": 8, "beside/forwards": 8, "page": size}
    assert '"title":"one"' in (tmp_path / "page.html").read_text()


def test_a_missing_trace_or_phone_is_reported(run_folder, tmp_path):
    with pytest.raises(ValueError, match=r"has no trace.npz; allowed: the folder of a run that"):
        _replay(str(tmp_path), ViewConfig(run="none"))
    with pytest.raises(ValueError, match="SM1"):
        ViewConfig(run=str(run_folder), phones=("SM1",))
