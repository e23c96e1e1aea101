"""The verb writes an engine and its test bench, and refuses impossible hardware."""

import json
import shutil

import pytest
from hydra import compose, initialize_config_dir

from experiments.engine_verilog import EngineVerilogConfig, engine_verilog
from experiments.harness.run import REPOSITORY, Run, read_config


def run(folder, *overrides) -> dict[str, float]:
    with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
        config = compose("engine_verilog", [*overrides])
    engine_verilog(read_config(EngineVerilogConfig, config), Run(folder, config))
    rows = json.loads((folder / "results.json").read_text())
    return {row["name"]: row["value"] for row in rows}


def test_it_writes_an_engine_that_passes_its_bench(tmp_path):
    rows = run(tmp_path, "batch=1", "vocab=20", "mode=edge")
    assert (tmp_path / "engine.v").read_text().startswith("module engine(input clk, ")
    assert rows["verilog/lines"] > 1_000
    if shutil.which("iverilog"):
        assert rows["verilog/bench_passes"] == 1


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("mode=one_pass", "S_EXP_FP is not in hardware"),
        ("k=5", r"k is 5; allowed: 0 to rows \(4\)"),
        ("rows=9", r"rows is 9; allowed: up to vlen \(8\)"),
    ],
)
def test_bad_input(override, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        run(tmp_path, override)
    assert not list(tmp_path.iterdir())
