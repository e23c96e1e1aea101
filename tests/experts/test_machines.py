"""Costs from profiles, and budgets from costs, by arithmetic on the published numbers."""

import pytest

from llada_jax.experts.budget import expert_tensors, slots_at_ratio, slots_within
from llada_jax.experts.machines import DESKTOP, PHONES, SM8750
from llada_jax.experts.shapes import DEEPSEEK, LLADA2_MINI, LLADA_MOE, MIXTRAL, QWEN2, MoEShape


def test_sizes_of_published_models():
    """DeepSeek 4.33 MB, Mixtral 88.1 MB, Qwen2 13.76 MB a 4-bit expert; 15.3 and 6.44 billion."""
    sizes = [DESKTOP.expert_bytes(shape) / 1e6 for shape in (DEEPSEEK, MIXTRAL, QWEN2)]
    assert sizes == pytest.approx([4.33, 88.1, 13.76], rel=2e-3)
    for shape, billions in [(LLADA2_MINI, 15.3), (LLADA_MOE, 6.44)]:
        assert shape.n_layers * shape.n_experts * shape.expert_weights / 1e9 == pytest.approx(
            billions, rel=1e-3
        )


def test_desktop_costs():
    deepseek = DESKTOP.costs(DEEPSEEK)
    assert deepseek.transfer == pytest.approx(0.4179e-3, rel=0.01)
    qwen2 = DESKTOP.costs(QWEN2)
    assert qwen2.accelerator == pytest.approx(13.76e6 / 600e9 + 0.15e-3, rel=2e-3)


def test_the_phone_is_that_of_llada_cpp():
    """Its body of 6.98 billion weights: 351 ms a tile (NPU), 736 + 109.5 ms a row (CPU)."""
    body = MoEShape(name="llada_8b", n_layers=1, n_experts=1, experts_per_token=1, width=1,
                    expert_width=6_980_000_000 // 3, dense_weights=0)  # fmt: skip
    costs = SM8750.costs(body)
    assert costs.accelerator == pytest.approx(0.351, rel=0.01)
    assert costs.cpu_expert == pytest.approx(0.736, rel=0.01)
    assert costs.cpu_row == pytest.approx(0.1095, rel=0.01)


def test_every_number_names_its_source_and_how_it_was_had():
    for machine in (DESKTOP, *PHONES.values()):
        for figure in machine.figures().values():
            assert figure.value > 0 and len(figure.source) > 5
            assert figure.tag in ("measured", "derived", "inferred", "fitted")
    fitted = [name for name, figure in DESKTOP.figures().items() if figure.tag == "fitted"]
    assert fitted == ["cpu_bandwidth"]
    assert not any(f.tag == "fitted" for m in PHONES.values() for f in m.figures().values())


def test_budgets():
    size = SM8750.expert_bytes(LLADA_MOE)
    assert slots_at_ratio(0.25, LLADA_MOE, SM8750).per_layer == 16
    assert slots_within(17 * 16 * size - 1, LLADA_MOE, SM8750).per_layer == 16
    assert slots_within(10**12, LLADA_MOE, SM8750).per_layer == 64
    with pytest.raises(ValueError, match=f"budget is {size} bytes; allowed: {16 * size} or more"):
        slots_within(size, LLADA_MOE, SM8750)
    with pytest.raises(ValueError, match="cache ratio is 0; allowed: above 0, up to 1"):
        slots_at_ratio(0, LLADA_MOE, SM8750)


def test_tensors_fill_the_model():
    tensors = expert_tensors(LLADA_MOE, SM8750)
    assert len({tensor.name for tensor in tensors}) == 16 * 64
    assert sum(tensor.bytes for tensor in tensors) == pytest.approx(6.44e9 * 0.5625, rel=2e-3)


def test_impossible_shapes():
    with pytest.raises(ValueError, match="experts_per_token of odd is 9; allowed: 1 to n_experts"):
        MoEShape(name="odd", n_layers=1, n_experts=8, experts_per_token=9, width=1, expert_width=1,
                 dense_weights=0)  # fmt: skip
