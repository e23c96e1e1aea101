"""The PyTorch layer says clearly where it cannot run, and reads its command line."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

from experiments.bench import torch_layer
from experiments.bench.torch_layer import BAD_ARGUMENTS, NO_TORCH, TorchLayerConfig, main, read
from experiments.harness.run import REPOSITORY

SMALL = ["width=64", "ffn_width=128", "n_heads=2", "head_dim=32", "cached=8", "seconds=0"]


def has_torch():
    return find_spec("torch") is not None


def test_without_pytorch(monkeypatch, capsys):
    monkeypatch.setattr(torch_layer, "torch", None)
    assert main(SMALL) == NO_TORCH
    out, err = capsys.readouterr()
    assert out == "" and err == f"no PyTorch in {sys.executable}: its layer is not timed\n"


@pytest.mark.skipif(has_torch(), reason="PyTorch is here")
def test_as_a_program_without_pytorch():
    command = [sys.executable, "-m", "experiments.bench.torch_layer", *SMALL]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (NO_TORCH, "")
    assert done.stderr.startswith("no PyTorch in ") and done.stderr.count("\n") == 1


@pytest.mark.skipif(not has_torch(), reason="no PyTorch here")
def test_a_row_for_each_number_of_rows_and_dtype():
    command = [sys.executable, "-m", "experiments.bench.torch_layer", *SMALL, "rows=2,4"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    rows = {row.pop("name"): row for row in json.loads(done.stdout)}
    assert set(rows) == {f"layer/torch/{d}/{n}" for d in ("bf16", "int8") for n in (2, 4)}
    assert all(row.pop("value") > 0 for row in rows.values())
    assert all(row == {"unit": "s", "kind": "measured"} for row in rows.values())


def test_arguments():
    assert read([]) == TorchLayerConfig()
    config = read(["rows=8,16", "dtype=int8", "seconds=0.5", "threads=2"])
    assert config == TorchLayerConfig(rows=(8, 16), dtype=("int8",), seconds=0.5, threads=2)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("colour=red", "colour is no setting; allowed: rows, dtype, seconds"),
        ("dtype=int4", "dtype is int4; allowed: bf16, int8"),
        ("rows=32,0", "rows is 0; allowed: 1 or more"),
        ("threads=-1", "threads is -1; allowed: 0 or more"),
    ],
)
def test_bad_arguments(argument, message, monkeypatch, capsys):
    monkeypatch.setattr(torch_layer, "torch", object())
    assert main([argument]) == BAD_ARGUMENTS
    assert message in capsys.readouterr().err
