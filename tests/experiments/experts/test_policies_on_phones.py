"""Costs of experts on phones follow from the profiles in llada_jax/phones/profiles. Policies on
stored routing: its statistics next to published ones, and rows of every cell."""

import json

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

from experiments.experts.__main__ import ExpertsConfig, experts
from experiments.experts.policies_on_phones import (
    STORED,
    RoutingConfig,
    expert_bytes,
    phone_costs,
    statistics_of,
)
from experiments.harness.run import REPOSITORY, Run, read_config
from llada_jax.experts.routing import RoutingTrace
from llada_jax.experts.shapes import LLADA2_MINI, LLADA_MOE
from llada_jax.phones.profile import load_profile


@pytest.mark.parametrize("soc", ["SM8750", "SM8850"])
def test_costs_follow_from_the_profile(soc):
    """Computed by hand, for kernels that unpack before they multiply; `down` is unpacked faster."""
    phone, costs = load_profile(soc), phone_costs(soc, LLADA2_MINI)
    npu, cpu = phone.kernels("llada_cpp"), phone.cpu_kernels("plain")
    billions = 3 * 2048 * 512 / 1e9
    unpacking = billions * (2 / npu.dequant_gweights + 1 / npu.fast_dequant_gweights) / 3
    products = billions * 2 * 32 / npu.matrix_tops / 1e3
    assert costs.accelerator == pytest.approx(unpacking + products + 10e-6)
    assert costs.transfer == pytest.approx(billions * 18 / 32 / phone.mapping.copy_gbps, rel=1e-6)
    assert costs.dense > npu.layer_overhead_us * 1e-6
    few, many = costs.cpu(np.array([1, 32]))
    assert few == pytest.approx(billions / cpu.gemv_gweights)
    assert many == pytest.approx(
        billions / cpu.unpack_gweights + 32 * billions * 2e-3 / cpu.gemm_tops
    )


def test_no_cpu_reads_faster_than_the_memory():
    phone, costs = load_profile("SM8750"), phone_costs("SM8750", LLADA_MOE, "vendor", "tuned")
    from_memory = expert_bytes(LLADA_MOE) * 1e-9 / phone.memory.dram_gbps
    assert costs.cpu(np.arange(1, 33)).min() >= from_memory


def test_unknown_kernels():
    with pytest.raises(ValueError, match="kernels is 'fast'; allowed: "):
        phone_costs("SM8750", LLADA_MOE, npu="fast")
    with pytest.raises(ValueError, match="cpu is 'fast'; allowed: "):
        phone_costs("SM8750", LLADA_MOE, cpu="fast")


def test_statistics_of_stored_routing_are_near_published_ones():
    assert {path.stem for path in STORED.iterdir()} == set(RoutingConfig().tasks)
    trace = RoutingTrace.load(STORED / "yes_no.npz")
    rows = {row.name.removeprefix("here/"): row for row in statistics_of(trace, "here")}
    assert abs(rows["similarity_1"].error) < 0.01 and abs(rows["similarity_5"].error) < 0.05
    assert rows["reuse/token_stays"].value > rows["reuse/token_changes"].value + 0.1
    gates = [rows[f"gate/{ahead}"].value for ahead in (1, 2, 3)]
    assert gates == sorted(gates, reverse=True) and 2.5 < rows["imbalance"].value < 6.5


@pytest.mark.slow
def test_cells_of_recorded_and_drawn_routing(tmp_path):
    small = ["parts=[routing]", "routing.tasks=[choices]"]
    with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
        config = compose("experts", small)
    experts(read_config(ExpertsConfig, config), Run(tmp_path, config))
    rows = {row["name"]: row for row in json.loads((tmp_path / "results.json").read_text())}
    for name in ("recorded/choices", "drawn/llada_moe"):
        bound = rows[f"{name}/50/bound/tokens_per_second"]["value"]
        assert 0 < rows[f"{name}/50/lru/tokens_per_second"]["value"] <= bound


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"answers": 1}, "answers is 1; allowed: 2 or more"),
        ({"tasks": ("poems",)}, "task is 'poems'; allowed: "),
    ],
)
def test_bad_input(settings, message):
    with pytest.raises(ValueError, match=message):
        RoutingConfig(**settings)
