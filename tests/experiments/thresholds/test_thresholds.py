"""`python -m experiments.thresholds`: one table, what is chosen, a picture, and going on."""

import json
from pathlib import Path

import pytest

import llada_jax as lj
from experiments.evaluate.chosen_samplers import ChosenSamplers
from experiments.thresholds import __main__ as entry
from llada_jax.config import SamplerConfig
from llada_jax.evaluation import harness
from llada_jax.evaluation.graded import Evaluation
from tests.experiments.in_process import run_experiment

SWEEPS = (
    "sweeps=[{name: hasty, sampler: {cache: blockwise, threshold: 0.9},"
    " over: {threshold: [0.0001, 0.9]}},"
    " {name: staged, sampler: {cache: blockwise, accept: staged},"
    " over: {theta_visible: [0.0001], theta_stable: [0.9]}}]"
)
SMALL = [
    "tasks=[yes_no]", "difficulty=0", "items=2", "scored_items=10", "points=0",
    "plain.cache=blockwise", "plain.predict_mask=false", SWEEPS,
]  # fmt: skip
SETTINGS = {
    "plain", "one_at_a_time", "hasty@threshold:0.0001", "hasty@threshold:0.9",
    "staged@theta_visible:0.0001,theta_stable:0.9",
}  # fmt: skip


def run(model: Path, folder: Path, *changes: str) -> tuple[dict[str, dict], str]:
    arguments = [f"model={model}", *SMALL, *changes, f"hydra.run.dir={folder}"]
    printed = run_experiment(entry.main, arguments)
    return {row["name"]: row for row in json.loads((folder / "results.json").read_text())}, printed


@pytest.fixture(scope="module")
def finished(tmp_path_factory, random_model):
    folder = tmp_path_factory.mktemp("thresholds")
    return folder, *run(random_model, folder)


def test_every_setting_has_its_score(finished):
    folder, rows, _ = finished
    for name in SETTINGS:
        generations = Evaluation.load(folder / "cells" / f"{name}-yes_no").generations
        assert rows[f"thresholds/{name}/nfe"]["value"] == sum(g.nfe for g in generations) / 2
    assert rows["thresholds/plain/nfe"]["value"] == 64
    fast, slow = (rows[f"thresholds/hasty@threshold:{t}/nfe"]["value"] for t in (0.0001, 0.9))
    assert fast == 2 and slow == 64, "a model of random weights is never sure"


def test_the_choice_is_printed_and_written(finished, random_model):
    folder, rows, printed = finished
    chosen = ChosenSamplers.load(folder)
    assert chosen.samplers == {
        "hasty": SamplerConfig(cache="blockwise", threshold=0.0001),
        "staged": SamplerConfig(cache="blockwise", accept="staged", theta_visible=0.0001),
    }
    assert (chosen.scored_seed, chosen.scored_items) == (0, 10)
    assert chosen.fingerprint == harness.fingerprint(lj.load(random_model))
    marked = {line.split()[1] for line in printed.splitlines() if line.startswith("> ")}
    assert marked == {"hasty@threshold:0.0001", "staged@theta_visible:0.0001,theta_stable:0.9"}
    share = rows["thresholds/hasty/chosen/threshold:0.0001/forwards"]["value"]
    assert share == pytest.approx(rows["thresholds/hasty@threshold:0.0001/nfe"]["value"] / 64)
    assert (folder / "thresholds.png").read_bytes().startswith(b"\x89PNG")


def test_what_revision_brings_back_is_said(finished):
    _, rows, _ = finished
    matches = {name: rows[f"thresholds/{name}/exact_match"]["value"] for name in SETTINGS}
    prefix = "thresholds/revision/staged@theta_visible:0.0001,theta_stable:0.9"
    lost = matches["one_at_a_time"] - matches["hasty@threshold:0.0001"]
    assert rows[f"{prefix}/threshold_loses"]["value"] == pytest.approx(lost)
    recovered = (
        matches["staged@theta_visible:0.0001,theta_stable:0.9"] - matches["hasty@threshold:0.0001"]
    )
    assert rows[f"{prefix}/recovered"]["value"] == pytest.approx(recovered)
    assert rows[f"{prefix}/forwards"]["value"] > 1, "a token that is not sure is scored again"


def test_what_was_refreshed_is_said_of_decoders_that_refresh(finished):
    folder, rows, printed = finished
    name = "staged@theta_visible:0.0001,theta_stable:0.9"
    ((_, trace),) = Evaluation.load(folder / "cells" / f"{name}-yes_no").store.traces()
    refreshed = rows[f"thresholds/{name}/refreshed"]["value"]
    assert refreshed == trace.refreshed.sum() / 2 > 0
    lines = {line.replace(">", "").split()[0]: line for line in printed.splitlines() if line}
    assert lines[name].split()[-1] == f"{refreshed:.2f}"
    assert "thresholds/hasty@threshold:0.9/refreshed" not in rows


def test_a_finished_sweep_decodes_nothing_again(finished, random_model, monkeypatch):
    folder, rows, _ = finished
    monkeypatch.setattr(harness.Trial, "answers", None)
    assert run(random_model, folder)[0] == rows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("tasks=[]", "tasks is empty; allowed: one or more"),
        ("points=-1", r"points is -1\.0; allowed: 0 or more"),
        ("scored_seed=1000", "seed is 1000; allowed: another one than scored_seed"),
        ("sweeps=[{name: plain, sampler: {}}]", "'plain'] is there twice; allowed: each name once"),
        ("sweeps=[{name: a, sampler: {cache: no}}]", "cache is 'no'; allowed"),
        ("sweeps=[{name: a, sampler: {}, over: {theta: [1]}}]", "theta is no setting; allowed"),
    ],
)
def test_bad_input_is_refused_before_work(change, message, random_model, tmp_path):
    with pytest.raises(SystemExit, match=message):
        run(random_model, tmp_path / "run", change)
    assert not (tmp_path / "run" / "config.yaml").exists()
