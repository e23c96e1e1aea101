"""`python -m experiments.evaluate suite=decoding`: one table of many decoders on many tasks."""

import json
from pathlib import Path

import pytest

from experiments import cell
from experiments import evaluate as entry
from llada_jax.evaluation.generations import GenerationStore
from tests.experiments.in_process import run_experiment

TASKS = {"word_problems": 1, "yes_no": 1}
SUITE = [
    "suite=decoding",
    "suite.tasks=[word_problems,yes_no]",
    "suite.decoders=[{name: llada, sampler: {threshold: 0.9}},"
    " {name: hasty, sampler: {threshold: 0.1, cache: blockwise}}]",
    "model=tiny",
    "task.items=4",
    "task.seed=5",
    "batch_size=2",
]


def run(folder: Path, *changes: str) -> dict[str, dict]:
    run_experiment(entry.main, [*SUITE, *changes, f"hydra.run.dir={folder}"])
    return {row["name"]: row for row in json.loads((folder / "results.json").read_text())}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, dict[str, dict]]:
    folder = tmp_path_factory.mktemp("suite")
    return folder, run(folder)


def test_a_decoders_score_is_over_the_items_of_all_tasks(finished):
    folder, rows = finished
    for name in ("llada", "hasty"):
        parts = [
            GenerationStore.load(folder / "cells" / f"{name}-{task}" / "generations")
            for task in TASKS
        ]
        generations = [each for part in parts for each in part.generations()]
        assert len(generations) == rows[f"decoding/{name}/exact_match"]["n"] == 8
        nfe = sum(each.nfe for each in generations)
        assert rows[f"decoding/{name}/nfe"]["value"] == nfe / 8
        tokens = sum(each.length for each in generations)
        assert rows[f"decoding/{name}/tpf"]["value"] == pytest.approx(tokens / nfe)
        by_task = [rows[f"decoding/{name}/{task}/exact_match"]["value"] for task in TASKS]
        assert rows[f"decoding/{name}/exact_match"]["value"] == sum(by_task) / 2
    assert rows["decoding/hasty/nfe"]["value"] < rows["decoding/llada/nfe"]["value"]


def test_the_first_decoder_is_the_baseline_of_the_others(finished):
    _, rows = finished
    values = [rows[f"decoding/{name}/exact_match"]["value"] for name in ("llada", "hasty")]
    difference = rows["decoding/hasty/against/llada/difference"]
    assert difference["value"] == pytest.approx(values[1] - values[0])
    low, high = difference["interval"]
    assert low <= difference["value"] <= high
    assert 0 < rows["decoding/hasty/against/llada/p_value"]["value"] <= 1
    assert not any("llada/against" in name for name in rows)


def test_a_finished_suite_decodes_nothing_again(finished, monkeypatch):
    folder, rows = finished
    monkeypatch.setattr(cell, "answer_items", None)
    assert run(folder) == rows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("suite.tasks=[chess]", "chess"),
        ("suite.tasks=[]", "tasks is empty; allowed: one or more"),
        ("suite.decoders=[]", "decoders is empty; allowed: one or more"),
        ("suite.decoders=[{name: a, sampler: {}}, {name: a, sampler: {}}]", "each name once"),
        ("suite.decoders=[{name: a, sampler: {cache: none2}}]", "cache is 'none2'"),
        ("rescore=outputs/nowhere", "has no generations"),
    ],
)
def test_bad_suites_are_refused_before_work(change, message, tmp_path):
    with pytest.raises(SystemExit, match=message):
        run(tmp_path / "run", change)
    assert not (tmp_path / "run" / "config.yaml").exists()
