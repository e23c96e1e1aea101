"""Training on a mesh: a checkpoint of four devices resumes on two or one with equal results."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from llada_jax.model.mesh import mesh
from llada_jax.training.loop import place_state
from llada_jax.training.state import create_state
from tests.training.devices import CONFIG, MODEL

ROOT = Path(__file__).parents[2]


def run(devices: int, *cases: dict) -> list[dict]:
    settings = {"JAX_NUM_CPU_DEVICES": str(devices), "PYTHONPATH": str(ROOT)}
    script = [sys.executable, str(ROOT / "tests/training/devices.py"), json.dumps(cases)]
    done = subprocess.run(
        script, capture_output=True, text=True, timeout=300, env={**os.environ, **settings}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_two_devices_resume_the_checkpoint_of_four(tmp_path, optimizer):
    whole, half = (
        {"folder": str(tmp_path / name), "optimizer": optimizer} for name in ("whole", "half")
    )
    alone, saved = run(4, {**whole, "steps": 6, "mesh": None}, {**half, "steps": 3, "mesh": (2, 2)})
    assert saved["rows_on_a_device"] == MODEL.ffn_width // 2
    (gone_on,) = run(2, {**half, "steps": 6, "mesh": (2, 1)})
    assert gone_on["rows_on_a_device"] == MODEL.ffn_width
    assert len(gone_on["losses"]) == 6
    np.testing.assert_allclose(gone_on["losses"], alone["losses"], rtol=1e-4)
    np.testing.assert_allclose(gone_on["sums"], alone["sums"], rtol=1e-3)


@pytest.mark.slow
def test_batches_are_the_same_on_every_mesh(tmp_path):
    cases = [
        {"folder": str(tmp_path / str(number)), "steps": 3, "mesh": mesh}
        for number, mesh in enumerate([(1, 1), (4, 1), (1, 4), (2, 2)])
    ]
    found = run(4, *cases)
    assert len({each["batches"] for each in found}) == 1
    for each in found[1:]:
        np.testing.assert_allclose(each["losses"], found[0]["losses"], rtol=1e-4)


def test_a_batch_that_does_not_fill_the_groups_is_an_error():
    one, state = mesh(), create_state(MODEL, CONFIG)
    placed: Any = place_state(state, MODEL, CONFIG, one).params
    assert placed.embedding.sharding.mesh == one
    for axes, message in [
        ({"data": 3, "model": 1, "expert": 1}, "batch_size is 4 on a mesh of data=3; allowed: a m"),
        ({"data": 1, "model": 8, "expert": 1}, r"mesh\.model is 8; allowed: 1, 2, 4"),
    ]:
        with pytest.raises(ValueError, match=message):
            place_state(state, MODEL, CONFIG, SimpleNamespace(shape=axes))
