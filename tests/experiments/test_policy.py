"""`python -m experiments.policy`: scores before and after, their difference, a line per step."""

import json
from dataclasses import replace

import pytest

import llada_jax as lj
from experiments import policy as entry
from tests.experiments.in_process import run_experiment

SMALL = [
    "steps=1", "questions=2", "answers=3", "items=4", "grpo.canvases=8", "sampler.block_length=8",
]  # fmt: skip


@pytest.fixture
def run(random_model, tmp_path, monkeypatch):
    """A random model is never right, so here an answer is right if its length is even."""
    task = replace(
        entry.load_task("word_problems"),
        gen_length=8,
        verify=lambda item, text: len(text) % 2 == 0,
    )
    monkeypatch.setattr(entry, "load_task", lambda name: task)

    def run(*others: str) -> dict[str, dict]:
        asked = [f"model={random_model}", *SMALL, *others, f"hydra.run.dir={tmp_path / 'run'}"]
        run_experiment(entry.main, asked)
        rows = json.loads((tmp_path / "run" / "results.json").read_text())
        return {row["name"]: row for row in rows}

    return run


@pytest.mark.parametrize("estimate", ["exact", pytest.param("masked", marks=pytest.mark.slow)])
def test_the_folder_contains_both_scores_and_their_difference(run, tmp_path, estimate, monkeypatch):
    scored, evaluate = [], lj.evaluate

    def watched(model, *arguments, **settings):
        scored.append(model.params.embedding)
        return evaluate(model, *arguments, **settings)

    monkeypatch.setattr(entry.lj, "evaluate", watched)
    rows = run(f"estimate={estimate}")
    before, after = rows["before/exact_match"], rows["after/exact_match"]
    difference = rows["after/against/before/difference"]
    assert before["n"] == after["n"] == difference["n"] == difference["items"] == 4
    assert difference["value"] == after["value"] - before["value"]
    low, high = difference["interval"]
    assert -1 <= low < high <= 1
    assert 0 < rows["after/against/before/p_value"]["value"] <= 1
    (step,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert step["step"] == 1 and 0 < step["reward"] < 1 and step["taught"] > 0
    assert (scored[0] != scored[1]).any()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("answers=0", "answers is 0; allowed: 1 or more"),
        ("estimate=guess", "estimate is 'guess'; allowed: 'exact', 'masked'"),
        ("model=nowhere", "no model at 'nowhere'"),
    ],
)
def test_bad_input_leaves_nothing(run, tmp_path, override, message):
    with pytest.raises(SystemExit, match=message):
        run(override)
    assert not any((tmp_path / "run").iterdir())
