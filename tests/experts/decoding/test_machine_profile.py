"""Times of a machine are stored, used as costs, and refused for other experts."""

from types import SimpleNamespace

import pytest

from llada_jax.backend.weights import InMemory
from llada_jax.experts.decoding.expert_file import ExpertFile, ExpertShape, write_experts
from llada_jax.experts.decoding.machine_profile import MachineProfile, measure_machine
from tests.checkpoint.folders import GOLDENS, loaded
from tests.drawn_params import drawn_params

SHAPE = ExpertShape(3, 8, 64, 48, "int8")
PROFILE = MachineProfile(
    experts=tuple(SHAPE), rows=4, run={1: 3.0, 2: 4.0, 4: 6.0}, read=5.0, dense=7.0
)


def test_costs_match_the_measurements():
    costs = PROFILE.costs(experts_per_token=2)
    assert (costs.cpu_expert, costs.cpu_row) == (pytest.approx(2.0), pytest.approx(1.0))
    assert (costs.transfer, costs.dense) == (5.0, 7.0)
    assert 3.0 < costs.accelerator < 4.0  # 8 choices of 8 experts: 1.5 rows of each active one


def test_a_profile_is_saved_and_loaded(tmp_path):
    file = SimpleNamespace(shape=SHAPE)
    PROFILE.save(tmp_path / "machine.json")
    assert MachineProfile.load(tmp_path / "machine.json", file) == PROFILE
    other = SimpleNamespace(shape=SHAPE._replace(dtype="int4"))
    with pytest.raises(ValueError, match=r"is of experts \(3, .*'int8'\); allowed: \(3, .*'int4'"):
        MachineProfile.load(tmp_path / "machine.json", other)
    for text in ("{", "[]", "{}", '{"run": {"1": "x"}}'):
        (tmp_path / "machine.json").write_text(text)
        with pytest.raises(ValueError, match=r"machine.json is no profile of a machine: "):
            MachineProfile.load(tmp_path / "machine.json", file)


@pytest.mark.slow
def test_a_measured_profile_has_positive_times(tmp_path):
    config = loaded(GOLDENS / "llada-moe", "float32")[0]
    params = drawn_params(config)
    write_experts(tmp_path / "experts", config, InMemory(params), "int8")
    file = ExpertFile(tmp_path / "experts")
    found = measure_machine(params, config, file, rows=4)
    assert (found.experts, found.rows, [*found.run]) == (tuple(file.shape), 4, [1, 2, 4])
    assert min(found.read, found.dense, *found.run.values()) > 0
