"""`python -m experiments.policy`: scores before and after, their differences, a line per step."""

import json
from dataclasses import replace

import numpy as np
import pytest

import llada_jax as lj
from experiments import policy as entry
from llada_jax.evaluation.tasks import load_task
from tests.experiments.in_process import run_experiment

SMALL = [
    "steps=1", "questions=2", "answers=3", "items=4", "grpo.canvases=8", "sampler.block_length=8",
]  # fmt: skip


@pytest.fixture
def run(random_model, tmp_path, monkeypatch):
    """A random model is never right, so here an answer is right if its length is even, and in every
    word if it is a multiple of 4."""
    task = replace(
        entry.load_task("word_problems"),
        gen_length=8,
        verify=lambda item, text: len(text) % 2 == 0,
        strict=lambda item, text: len(text) % 4 == 0,
    )
    monkeypatch.setattr(entry, "load_task", lambda name: task)

    def run(*others: str) -> dict[str, dict]:
        asked = [f"model={random_model}", *SMALL, *others, f"hydra.run.dir={tmp_path / 'run'}"]
        run_experiment(entry.main, asked)
        rows = json.loads((tmp_path / "run" / "results.json").read_text())
        return {row["name"]: row for row in rows}

    return run


@pytest.mark.parametrize("estimate", ["exact", pytest.param("masked", marks=pytest.mark.slow)])
def test_the_folder_contains_the_scores_their_differences_and_the_model(
    run, tmp_path, estimate, monkeypatch
):
    scored, evaluate = [], lj.evaluate

    def watched(model, *arguments, **settings):
        scored.append(model.params.embedding)
        return evaluate(model, *arguments, **settings)

    monkeypatch.setattr(entry.lj, "evaluate", watched)
    rows = run(f"estimate={estimate}")
    for score, name in (("exact_match", ""), ("strict_match", "strict/")):
        before, after = rows[f"before/{score}"], rows[f"after/{score}"]
        difference = rows[f"after/against/before/{name}difference"]
        assert before["n"] == after["n"] == difference["n"] == difference["items"] == 4
        assert difference["value"] == after["value"] - before["value"]
        low, high = difference["interval"]
        assert -1 <= low < high <= 1
        assert 0 < rows[f"after/against/before/{name}p_value"]["value"] <= 1
    (step,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert step["step"] == 1 and step["nfe"] >= 1 and step["taught"] > 0
    assert 0 <= step["strict_match"] <= step["exact_match"] < 1
    assert (scored[0] != scored[1]).any()
    stored = lj.load(tmp_path / "run" / "model").params.embedding
    np.testing.assert_allclose(stored, scored[1], rtol=2**-8)


def test_an_answer_is_right_in_every_word_only_if_it_is_right():
    task = replace(load_task("countdown"), verify=lambda _, text: "y" in text)
    task = replace(task, strict=lambda _, text: "s" in text)
    texts = ["ys", "y", "s", ""]
    scores = entry.scores_of(task, [task.item(0, 0, "train")] * 4, texts)
    assert scores["exact_match"].tolist() == [1, 1, 0, 0]
    assert scores["strict_match"].tolist() == [1, 0, 0, 0]
    without = entry.scores_of(replace(task, strict=None), [task.item(0, 0, "train")] * 4, texts)
    assert without.keys() == {"exact_match"}


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
