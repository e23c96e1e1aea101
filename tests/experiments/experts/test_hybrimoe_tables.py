"""HybriMoE's desktop: DeepSeek's expert has the published cost, others scale with their weights."""

import numpy as np
import pytest

from experiments.experts.hybrimoe_tables import desktop_costs
from llada_jax.experts.shapes import DEEPSEEK, QWEN2


def test_the_cost_of_a_deepseek_expert_is_the_published_one():
    costs = desktop_costs(DEEPSEEK, "prefill")
    assert costs.accelerator == pytest.approx(0.452e-3)
    assert costs.transfer == pytest.approx(0.4179e-3)
    np.testing.assert_allclose(costs.cpu(np.array([0, 100])), [1.780e-3, 4.698e-3])


def test_other_experts_scale_with_their_weights_except_for_kernel_launches():
    qwen2, deepseek = (desktop_costs(shape, "prefill") for shape in (QWEN2, DEEPSEEK))
    ratio = QWEN2.expert_weights / DEEPSEEK.expert_weights
    assert qwen2.transfer / deepseek.transfer == pytest.approx(ratio)
    assert qwen2.cpu_expert / deepseek.cpu_expert == pytest.approx(ratio)
    more = (QWEN2.expert_weights - DEEPSEEK.expert_weights) / 1.2e12
    assert qwen2.accelerator - deepseek.accelerator == pytest.approx(more)


def test_the_phases_only_differ_in_the_cpu_kernel():
    decode, prefill = (vars(desktop_costs(QWEN2, phase)) for phase in ("decode", "prefill"))
    assert {name for name in decode if decode[name] != prefill[name]} == {"cpu_expert"}
    assert decode["cpu_expert"] == pytest.approx(13.76e6 / 13.6e9, rel=1e-3)
