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
    assert rows["sums/oracle/curve/2"] == rows["sums/oracle/forwards"]
    assert (tmp_path / "run" / "oracle.png").read_bytes().startswith(b"\x89PNG")


def test_the_curve_gives_up_the_longest_schedules_first():
    def schedule(upper, n_blocks):
        return SimpleNamespace(upper=upper, blocks=(None,) * n_blocks)

    forwards = entry.frontier([schedule(5, 1), schedule(2, 1), schedule(2, 1)], "upper")
    assert forwards == [1, 4 / 3, 5 / 3, 3]


def test_stored_rows_are_drawn_without_decoding():
    pytest.importorskip("matplotlib")
    values = {"a/oracle/forwards": 2.0, "b/oracle/forwards": 3.0}
    for bound in ("curve", "curve_lower"):
        values |= {f"a/oracle/{bound}/{k}": 1 + k / 2 for k in range(3)}
    # Only b has the rule `one`; a rule has the same marker in every panel.
    for name in ("a/threshold 0.9", "a/threshold 0.5", "a/two", "b/one", "b/two"):
        values |= {f"{name}/forwards": 4.0, f"{name}/equal": 0.5}
    a, b, legend = entry.figure_of(values).axes
    assert (a.get_title(), b.get_title()) == ("a", "b")
    lines = [{line.get_label(): line for line in axes.lines} for axes in (a, b)]
    assert lines[0]["oracle, best schedule found"].get_xydata().tolist() == [
        [1, 0], [1.5, 0.5], [2, 1]
    ]  # fmt: skip
    assert len(lines[0]["thresholds"].get_xdata()) == 2 and "one" not in lines[0]
    assert lines[0]["two"].get_marker() == lines[1]["two"].get_marker()
    assert lines[1]["one"].get_marker() != lines[1]["two"].get_marker()
    shown = {text.get_text() for text in legend.get_legend().get_texts()}
    assert shown >= {"thresholds", "one", "two", "oracle, lower bound"}


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
