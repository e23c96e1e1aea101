"""The engine in Verilog passes its test bench, if Icarus Verilog is installed."""

import shutil
import subprocess

import pytest

from llada_jax.sampling_engine.hdl.verilog import verilog_files
from llada_jax.sampling_engine.sampling import Sampling
from tests.sampling_engine.hdl.cases import prepared

needs_icarus = pytest.mark.skipif(shutil.which("iverilog") is None, reason="needs iverilog")


def bench(folder, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).write_text(text)
    subprocess.run(
        ["iverilog", "-g2005", "-o", "bench", "engine.v", "bench.v"], cwd=folder, check=True
    )
    done = subprocess.run(["./bench"], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


@needs_icarus
@pytest.mark.parametrize(("vlen", "mode"), [(8, "edge"), (16, "performance")])
def test_the_bench_passes(tmp_path, vlen, mode):
    files = verilog_files(*prepared(Sampling(batch=2, rows=3, vocab=40, mode=mode), vlen))
    assert bench(tmp_path, files).startswith("PASS")


@needs_icarus
def test_the_bench_detects_a_fault(tmp_path):
    files = verilog_files(*prepared(Sampling(batch=1, rows=3, vocab=20), 8))
    adder = files["engine.v"].index(" - ")
    files["engine.v"] = files["engine.v"][:adder] + " + " + files["engine.v"][adder + 3 :]
    assert "FAIL" in bench(tmp_path, files)


def test_programs_not_in_hardware_are_refused():
    one_pass = Sampling(batch=1, rows=3, vocab=20, mode="one_pass")
    with pytest.raises(ValueError, match="S_EXP_FP is not in hardware"):
        verilog_files(*prepared(one_pass, 8))
