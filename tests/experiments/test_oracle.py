"""`python -m experiments.oracle`: gaps of decoders, kinds of tokens, the oracle's curve."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from experiments import oracle as entry
from tests.experiments.in_process import run_experiment

REGIME = (
    "regimes=[{name: sums, task: long_addition, difficulty: 0, items: 2, block_length: 8, "
    "gen_length: 16}]"
)
SAMPLERS = "samplers=[{name: threshold 0.9, sampler: {threshold: 0.9}}]"


def run(folder, *arguments: str) -> dict[str, Any]:
    run_experiment(entry.main, [REGIME, SAMPLERS, *arguments, f"hydra.run.dir={folder}"])
    rows = json.loads((folder / "results.json").read_text())
    return {row["name"]: row["value"] for row in rows}


@pytest.mark.slow
def test_no_decoder_with_the_same_answers_beats_the_oracle(tmp_path):
    rows = run(tmp_path / "run", "model=tiny")
    assert rows["sums/oracle/forwards_lower"] <= rows["sums/oracle/forwards"]
    assert rows.get("sums/threshold 0.9/gap_if_equal", 1) >= 1
    assert (tmp_path / "run" / "oracle.png").read_bytes().startswith(b"\x89PNG")


def test_the_curve_gives_up_the_longest_schedules_first():
    def schedule(upper, n_blocks):
        return SimpleNamespace(upper=upper, blocks=(None,) * n_blocks)

    forwards, share = entry.frontier([schedule(5, 1), schedule(2, 1), schedule(2, 1)], "upper")
    assert share.tolist() == [0, 1 / 3, 2 / 3, 1]
    assert forwards.tolist() == [1, 4 / 3, 5 / 3, 3]


@pytest.mark.parametrize(
    ("text", "kind"),
    [(" 12", "numbers"), ("red", "words"), ("=", "signs"), (" ", "signs"), ("", "ends")],
)
def test_tokens_have_a_kind(text, kind):
    assert entry.kind_of(text) == kind


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("regimes=[]", "regimes is empty; allowed: one or more"),
        ("regimes.0.task=sums", "task is 'sums'; allowed: choices"),
        ("regimes.0.items=0", "items is 0; allowed: 1 or more"),
        ("samplers=[{name: nothing}]", "'nothing'; allowed: "),
    ],
)
def test_bad_input_is_named(override, message, tmp_path):
    with pytest.raises(SystemExit, match=message):
        run(tmp_path / "run", override)
    assert not any((tmp_path / "run").iterdir())
