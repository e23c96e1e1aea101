"""Costs of experts on phones follow from the profiles in llada_jax/phones/profiles."""

import numpy as np
import pytest

from llada_jax.experts.shapes import LLADA2_MINI, LLADA_MOE
from llada_jax.phones.expert_costs import expert_bytes, expert_costs
from llada_jax.phones.profile import load_profile


@pytest.mark.parametrize("soc", ["SM8750", "SM8850"])
def test_costs_follow_from_the_profile(soc):
    """Computed by hand, for kernels that unpack before they multiply; `down` is unpacked faster."""
    phone = load_profile(soc)
    costs = expert_costs(phone, LLADA2_MINI)
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
    phone = load_profile("SM8750")
    costs = expert_costs(phone, LLADA_MOE, "vendor", "tuned")
    from_memory = expert_bytes(LLADA_MOE) * 1e-9 / phone.memory.dram_gbps
    assert costs.cpu(np.arange(1, 33)).min() >= from_memory


def test_unknown_kernels():
    with pytest.raises(ValueError, match="kernels is 'fast'; allowed: "):
        expert_costs(load_profile("SM8750"), LLADA_MOE, npu="fast")
    with pytest.raises(ValueError, match="cpu is 'fast'; allowed: "):
        expert_costs(load_profile("SM8750"), LLADA_MOE, cpu="fast")
