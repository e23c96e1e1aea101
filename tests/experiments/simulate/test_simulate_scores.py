"""`experiments.simulate` with the head elsewhere: all places are compared, bad ones are named."""

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

import llada_jax as lj
from experiments.harness.run import Run
from experiments.simulate import __main__ as simulate
from llada_jax.phone.system import System
from llada_jax.phone.workload import blockwise
from llada_jax.sampling_engine.attached import AttachedConfig, AttachedEngine
from tests.phone.small import PHONE, SHAPE


def rows_of(system: System) -> dict[str, float]:
    engine, workload = AttachedEngine(AttachedConfig(), SHAPE.vocab_size), blockwise(8, 32)
    phone = lj.Phone(PHONE, system)
    found = phone.time(workload, SHAPE, engine=engine)
    rows = simulate.on_phone(phone, [workload], found, SHAPE, engine)
    return {row.name.removeprefix("SM8750/"): row.value for row in rows}


def test_a_head_elsewhere_is_compared_with_all_places():
    rows, on_cpu = rows_of(System(scores_on="sampling_engine")), rows_of(System())
    places = {name: rows.pop(f"scores_on/{name}/latency") for name in ("cpu", "npu")}
    assert rows.pop("scores_on/sampling_engine/latency") == rows["latency"]
    assert places["cpu"] == on_cpu["latency"]
    assert rows["part/scores"] > 0 and "part/scores" not in on_cpu
    assert rows["must_be_mapped"] > on_cpu["must_be_mapped"]
    assert not any(name.startswith("scores_on/") for name in on_cpu)


def test_rows_that_the_engine_cannot_hold_are_named_before_a_folder_appears(tmp_path, monkeypatch):
    monkeypatch.setattr(simulate, "workloads_of", lambda config, model: (blockwise(8, 32),))
    config = SimpleNamespace(
        **{
            **vars(simulate.SimulateConfig()),
            "system": System(scores_on="sampling_engine"),
            "sampling_engine": AttachedConfig(vlen=16),
        }
    )
    with pytest.raises(ValueError, match=r"rows is 32; allowed: up to vlen \(16\)"):
        simulate.simulate_run(config, Run(tmp_path / "run", OmegaConf.create({})))  # pyright: ignore
    assert not (tmp_path / "run").exists()
