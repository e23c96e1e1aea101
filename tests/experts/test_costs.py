"""Sizes and costs, by arithmetic on the published numbers."""

import pytest

from llada_jax.experts.machines import DESKTOP
from llada_jax.experts.shapes import DEEPSEEK, LLADA2_MINI, LLADA_MOE, MIXTRAL, QWEN2, MoEShape


def test_sizes_of_published_models():
    """DeepSeek 4.33 MB, Mixtral 88.1 MB, Qwen2 13.76 MB a 4-bit expert; 15.3 and 6.44 billion."""
    each = DESKTOP.bytes_per_weight.value / 1e6
    sizes = [each * shape.expert_weights for shape in (DEEPSEEK, MIXTRAL, QWEN2)]
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


def test_every_number_names_its_source_and_how_it_was_had():
    for figure in DESKTOP.figures().values():
        assert figure.value > 0 and len(figure.source) > 5
        assert figure.tag in ("measured", "derived", "inferred", "fitted")
    fitted = [name for name, figure in DESKTOP.figures().items() if figure.tag == "fitted"]
    assert fitted == ["cpu_bandwidth"]


def test_impossible_shapes():
    with pytest.raises(ValueError, match="experts_per_token of odd is 9; allowed: 1 to n_experts"):
        MoEShape(name="odd", n_layers=1, n_experts=8, experts_per_token=9, width=1, expert_width=1,
                 dense_weights=0)  # fmt: skip
