"""`python -m experiments.risk`: a table with a bound, held-out items, and another task."""

import json

import pytest

import llada_jax as lj
from experiments import risk as entry
from tests.experiments.in_process import run_experiment

SMALL = [
    "model=tiny", "calibrated_on=word_problems", "shifted=[yes_no]", "alphas=[0.3]",
    "thresholds=[0.5,0.99]", "fit_threshold=0.5", "fit_items=8", "least=2", "items=20",
    "held_out_seeds=[72]",
    "held_out_items=8", "shifted_items=8", "batch=8", "places=8",
]  # fmt: skip


def run(folder, *arguments: str) -> None:
    run_experiment(entry.main, [*SMALL, *arguments, f"hydra.run.dir={folder}"])


@pytest.mark.slow
def test_a_run_calibrates_a_table_and_checks_it(tmp_path):
    run(tmp_path / "run")
    rows = json.loads((tmp_path / "run" / "results.json").read_text())
    values = {row["name"]: row["value"] for row in rows}
    for family in ("fixed", "table"):
        assert values[f"{family}/alpha/0.3/calibration/risk"] <= 0.3
        assert values[f"{family}/alpha/0.3/yes_no/warned"] == 1
    assert (tmp_path / "run" / "risk.png").read_bytes().startswith(b"\x89PNG")
    preset = lj.SamplerConfig.preset(str(tmp_path / "run" / "table_0.3.json"))
    assert len(preset.rule.offsets[0]) == 32  # pyright: ignore


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("calibrated_on=sums", "task is 'sums'; allowed: choices"),
        ("alphas=[]", "alphas is empty; allowed: one or more"),
        ("alphas=[0.01]", "there are 20 items; allowed: 99 or more for alpha 0.01"),
        ("thresholds=[0.9,0.5]", "allowed: ascending, above 0 and below 1"),
        ("fit_threshold=0.7", "fit_threshold is 0.7; allowed: one of"),
        ("held_out_seeds=[71]", "allowed: different ones"),
        ("held_out_seeds=[]", "held_out_seeds is empty; allowed: one or more"),
    ],
)
def test_bad_input_is_named(override, message, tmp_path):
    with pytest.raises(SystemExit, match=message):
        run(tmp_path / "run", override)
    assert not any((tmp_path / "run").iterdir())
