"""`python -m experiments.reliability`: the counted tokens, and the content of the folder."""

import json

import numpy as np
import pytest

import llada_jax as lj
from experiments import reliability as entry
from tests.experiments.in_process import run_experiment

SMALL = ["tasks=[countdown,yes_no]", "items=6", "batch_size=3", "bins=5"]


def run(folder, *arguments: str) -> dict[str, dict]:
    run_experiment(entry.main, [*SMALL, *arguments, f"hydra.run.dir={folder}"])
    rows = json.loads((folder / "results.json").read_text())
    return {row["name"]: row for row in rows}


@pytest.mark.slow
def test_the_folder_contains_errors_bins_and_a_picture(tmp_path, random_model):
    rows = run(tmp_path / "run", f"model={random_model}")
    assert set(rows) == {
        f"{task}/{canvas}/expected_calibration_error"
        for task in ("countdown", "yes_no", "all")
        for canvas in ("whole", "block")
    }
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    for line in map(json.loads, lines):
        n = rows[f"{line['name']}/expected_calibration_error"]["n"]
        assert sum(line["counts"]) == n > 0
    assert (tmp_path / "run" / "reliability.png").read_bytes().startswith(b"\x89PNG")


def test_only_masked_tokens_of_answers_count(random_model, monkeypatch):
    model = lj.load(random_model)
    seen = []
    corrupt = entry.corrupt

    def watched(key, batch, *arguments):
        corruption = corrupt(key, batch, *arguments)
        seen.append((np.asarray(batch.tokens), np.asarray(corruption.masked)))
        return corruption

    monkeypatch.setattr(entry, "corrupt", watched)
    config = entry.ReliabilityConfig(
        model="", tasks=("countdown",), items=6, batch_size=3, seed=1, block_length=32, bins=5
    )
    found = entry._predictions(model, entry.load_task("countdown"), 0.0, config)
    counted = sum(int((masked & (tokens != model.config.eos_id)).sum()) for tokens, masked in seen)
    assert len(found.confidence) == len(found.right) == counted > 0
    assert sum(int(masked.sum()) for _, masked in seen) > counted


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("tasks=[]", "tasks is empty; allowed: one or more"),
        ("tasks=[sums]", "task is 'sums'; allowed: choices"),
        ("bins=0", "bins is 0; allowed: 1 or more"),
        ("model=nowhere", "no model at 'nowhere'"),
    ],
)
def test_bad_input_is_named(override, message, tmp_path, random_model):
    with pytest.raises(SystemExit, match=message):
        run(tmp_path / "run", f"model={random_model}", override)
    assert not any((tmp_path / "run").iterdir())
