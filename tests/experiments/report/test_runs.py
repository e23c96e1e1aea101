"""Environments of a run: each one that decoded some of its answers, or the one of `env.json`."""

import json
from pathlib import Path

import pytest

from experiments.report.runs import environment_lines
from llada_jax.evaluation.generations import Generation, GenerationBatch, GenerationStore
from llada_jax.evaluation.task import Item


def environment(commit: str, **packages: str) -> dict:
    versions = {"jax": "1.0", "numpy": "2.0"} | packages
    return {"git_sha": commit * 40, "git_dirty": False, "packages": versions, "processor": "a CPU"}


def answered(folder: Path, *environments: dict | None) -> Path:
    """A run with item i answered in environment i, and last started in `z`"""
    store = GenerationStore.begin(folder / "generations", {})
    for index, told in enumerate(environments):
        generation = Generation(index, Item("Is it?", "#### yes", "yes"), "#### yes", [1], 1, 1)
        store.add(GenerationBatch([generation], 1.0, False, told))
    (folder / "env.json").write_text(json.dumps(environment("z")))
    return folder


def told(folder: Path) -> list[tuple[str, str]]:
    lines = environment_lines(folder)
    assert all(line["run"] == str(folder) for line in lines)
    return [(line["commit"], line["jax"]) for line in lines]


def test_every_environment_is_listed_once(tmp_path):
    old, new = environment("a"), environment("b", jax="1.1")
    assert told(answered(tmp_path, old, old, new)) == [("a" * 10, "1.0"), ("b" * 10, "1.1")]


def test_a_restarted_run_has_the_environments_of_its_answers(tmp_path):
    assert told(answered(tmp_path, environment("a"))) == [("a" * 10, "1.0")]


def test_answers_without_an_environment_use_env_json_or_are_unknown(tmp_path):
    assert told(answered(tmp_path / "old", None)) == [("z" * 10, "1.0")]
    assert told(answered(tmp_path / "mixed", None, environment("b"))) == [
        ("unknown", "unknown"),
        ("b" * 10, "1.0"),
    ]


def test_a_suite_has_the_environments_of_all_cells(tmp_path):
    (tmp_path / "env.json").write_text(json.dumps(environment("z")))
    for name in ("b", "a"):
        answered(tmp_path / "cells" / name, environment(name))
        (tmp_path / "cells" / name / "env.json").unlink()
    assert [commit[0] for commit, _ in told(tmp_path)] == ["a", "b"]
    assert [commit[0] for commit, _ in told(tmp_path / "cells" / "b")] == ["b"]


def test_a_damaged_environment_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"generations is damaged: git_dirty is 'absent'"):
        environment_lines(answered(tmp_path, {}))
