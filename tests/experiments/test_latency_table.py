"""`python -m experiments.latency_table`: a table, and how a sampler is told of it."""

import json

import pytest

from experiments import latency_table as entry
from tests.experiments.harness.test_conf import composed
from tests.experiments.in_process import run_experiment

ON_PHONE = ["shape=tiny", "rows=[32,64]", "canvas=96"]


def test_what_it_prints_is_understood_by_experiments_that_decode(tmp_path):
    printed = run_experiment(entry.main, [*ON_PHONE, f"hydra.run.dir={tmp_path}"])
    overrides = (tmp_path / "overrides.txt").read_text().split()
    assert printed.splitlines()[-3].split() == overrides
    rows = json.loads((tmp_path / "results.json").read_text())
    assert {row["kind"] for row in rows} == {"modelled"}
    values = {row["name"]: row["value"] for row in rows}
    for experiment in ("generate", "evaluate"):
        told = composed(experiment, "sampler=llada_cpp", *overrides).sampler
        sampler = getattr(told, "config", told)
        assert sampler.latency_table.rows == (32, 64)
        expected = [values["latency_table/rows32"], values["latency_table/rows64"]]
        assert sampler.latency_table.ms == pytest.approx(expected, rel=1e-3)
        assert sampler.row_budget == values["row_budget"]


def test_measured_here_it_has_no_budget(random_model, tmp_path):
    run_experiment(entry.main, [
        "phone=null", f"model={random_model}", "rows=[4,8]", "canvas=16", "repeats=1",
        f"hydra.run.dir={tmp_path}",
    ])  # fmt: skip
    rows = json.loads((tmp_path / "results.json").read_text())
    assert [(row["name"], row["kind"]) for row in rows] == [
        ("latency_table/rows4", "measured"), ("latency_table/rows8", "measured")
    ]  # fmt: skip
    assert "row_budget" not in (tmp_path / "overrides.txt").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("rows=[64,32]", r"rows is \[64, 32\]; allowed: ascending"),
        ("rows=[32,128]", r"rows is \[32, 128\]; allowed: up to the phone's canvas \(96\)"),
        ("phone=SM1", "phone is 'SM1'; allowed: SM8550"),
        ("shape=huge", "shape is 'huge'; allowed"),
        ("backend=qnn", "backend is 'qnn'; allowed: 'xla', 'litert'"),
        ("system.runtime=none", "runtime is 'none', which maps all at once"),
    ],
)
def test_bad_input_is_refused_before_work(change, message, tmp_path):
    shape = [] if change.startswith("system") else ["shape=tiny"]
    arguments = [*shape, *ON_PHONE[1:], change, f"hydra.run.dir={tmp_path / 'run'}"]
    with pytest.raises(SystemExit, match=message):
        run_experiment(entry.main, arguments)
    assert not (tmp_path / "run" / "config.yaml").exists()
