"""The PyTorch layer says clearly where it cannot run."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from experiments.bench import torch_layer
from experiments.bench.torch_layer import NO_TORCH, main, time_layers
from experiments.harness.run import REPOSITORY

HAS_TORCH = find_spec("torch") is not None


def test_without_pytorch(monkeypatch, capsys):
    monkeypatch.setattr(torch_layer, "torch", None)
    assert main("2,4") == NO_TORCH
    out, err = capsys.readouterr()
    assert out == "" and err == f"no PyTorch in {sys.executable}: its layer is not timed\n"


@pytest.mark.skipif(HAS_TORCH, reason="PyTorch is here")
def test_as_a_program_without_pytorch():
    command = [sys.executable, "-m", "experiments.bench.torch_layer", "2,4"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (NO_TORCH, "")
    assert done.stderr.startswith("no PyTorch in ") and done.stderr.count("\n") == 1


@pytest.mark.skipif(not HAS_TORCH, reason="no PyTorch here")
def test_a_time_for_each_number_of_rows_and_dtype(monkeypatch):
    small = {"WIDTH": 64, "FFN_WIDTH": 128, "N_HEADS": 2, "HEAD_DIM": 32, "CACHED": 8}
    for name, size in small.items():
        monkeypatch.setattr(torch_layer, name, size)
    times = time_layers([2, 4], seconds=0)
    assert set(times) == {f"{dtype}/{rows}" for dtype in ("bf16", "int8") for rows in (2, 4)}
    assert min(times.values()) > 0
