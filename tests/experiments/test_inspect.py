"""`python -m experiments.inspect` describes a checkpoint on the screen and in the run's folder."""

import json

import llada_jax as lj
from experiments import inspect as entry
from tests.checkpoint.folders import GOLDENS
from tests.experiments.in_process import run_experiment


def test_it_prints_and_keeps_the_description(tmp_path):
    folder = GOLDENS / "fast-dllm-v2"
    printed = run_experiment(entry.main, [f"model={folder}", f"hydra.run.dir={tmp_path}"])
    told = str(lj.describe(folder))
    look = "look at it: python -m experiments.report 'runs=["
    assert printed.startswith(f"{told}\n\n{look}")
    assert (tmp_path / "description.txt").read_text() == told + "\n"
    rows = {
        row["name"]: row["value"] for row in json.loads((tmp_path / "results.json").read_text())
    }
    assert rows == {"parameters": 180032, "bytes": 720128}


def test_unknown_keys_are_ignored_on_the_command_line(tmp_path):
    config = json.loads((GOLDENS / "dream" / "config.json").read_text()) | {"new": 1, "other": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    arguments = [f"model={tmp_path}", "ignore_keys=[new,other]", f"hydra.run.dir={tmp_path}/run"]
    assert "ignored     new, other" in run_experiment(entry.main, arguments)
