"""`experiments.calibrate` makes a loadable profile from measured rows."""

import json
from dataclasses import replace

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import llada_jax as lj
from experiments import calibrate
from experiments.harness.run import REPOSITORY, Run, read_config
from llada_jax.backend.exported.calibration_export import calibration_rows
from llada_jax.phones.calibration.calibrate import CostModel
from llada_jax.phones.calibration.measurements import read_measurements, write_measurements
from llada_jax.phones.calibration.synthetic import draw_measurements
from llada_jax.phones.profile import load_profile


def composed(*overrides: str) -> calibrate.CalibrateConfig:
    with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
        found = compose("calibrate", overrides=list(overrides))
        return read_config(calibrate.CalibrateConfig, found)


def test_a_csv_becomes_a_phone(tmp_path, capsys):
    parent, cost_model = load_profile("SM8750"), CostModel("llada_8b", "vendor", "tuned")
    table = list(draw_measurements(parent, cost_model, calibration_rows()[:16], 0))
    write_measurements(tmp_path / "phone.csv", table)
    config = composed(f"measurements={tmp_path / 'phone.csv'}", "name=mine")
    calibrate.calibrate_phone(config, Run(tmp_path / "run", OmegaConf.create({})))
    found = {row["name"]: row for row in json.loads((tmp_path / "run/results.json").read_text())}
    assert any(name.startswith("identified/npu.vendor") for name in found)
    assert any(name.startswith("correlation/") for name in found)
    assert found["held_out/in_band"]["n"] == 3
    kept = read_measurements(tmp_path / "run" / "measured.csv")
    assert sum(each.held_out for each in kept) == 3
    assert [replace(each, held_out=False) for each in kept] == table
    assert lj.phone(tmp_path / "run" / "mine.yaml").profile.soc == "mine"
    assert "mine.yaml is the phone's profile" in capsys.readouterr().out


def test_drawn_phones_are_a_table(tmp_path, monkeypatch):
    monkeypatch.setattr(calibrate, "COUNTS", (0, 16))
    run = Run(tmp_path, OmegaConf.create({}))
    calibrate.calibrate_phone(composed("synthetic=1"), run)
    found = {r["name"]: r["value"] for r in json.loads((tmp_path / "results.json").read_text())}
    assert found["drawn/16_rows/median_error"] < found["drawn/0_rows/median_error"]
    assert found["drawn/16_rows/in_band"] >= 80


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((), "measurements is None and synthetic 0; allowed: a file or folder"),
        (("synthetic=2", "measurements=a.csv"), "not both"),
        (("synthetic=2", "hold_every=1"), "hold_every is 1; allowed: 0"),
        (("synthetic=2", "name=../x"), r"name is '\.\./x'; allowed: up to 100 letters"),
    ],
)
def test_bad_settings_are_named(overrides, message):
    with pytest.raises(ValueError, match=message):
        composed(*overrides)
