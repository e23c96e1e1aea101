"""Sizes, by arithmetic on the published numbers."""

import pytest

from llada_jax.experts.shapes import DEEPSEEK, LLADA2_MINI, LLADA_MOE, MIXTRAL, QWEN2, MoEShape
from tests.experts.traces import SMALL


def test_sizes_of_published_models():
    """DeepSeek 4.33 MB, Mixtral 88.1 MB, Qwen2 13.76 MB a 4-bit expert; 15.3 and 6.44 billion."""
    sizes = [0.5 / 1e6 * shape.expert_weights for shape in (DEEPSEEK, MIXTRAL, QWEN2)]
    assert sizes == pytest.approx([4.33, 88.1, 13.76], rel=2e-3)
    for shape, billions in [(LLADA2_MINI, 15.3), (LLADA_MOE, 6.44)]:
        assert shape.n_layers * shape.n_experts * shape.expert_weights / 1e9 == pytest.approx(
            billions, rel=1e-3
        )


def test_bad_shapes_are_refused():
    with pytest.raises(ValueError, match="experts_per_token is 9; allowed: 1 to 8"):
        MoEShape(name="odd", n_layers=1, n_experts=8, experts_per_token=9, width=1, expert_width=1,
                 dense_weights=0)  # fmt: skip


def test_ratios():
    assert [SMALL.slots_at(ratio) for ratio in (1 / 16, 0.25, 0.75, 1)] == [1, 4, 12, 16]


@pytest.mark.parametrize("ratio", [0, 0.05, 1.5, float("nan")])
def test_a_ratio_below_one_expert_or_beyond_all(ratio):
    with pytest.raises(ValueError, match=rf"cache ratio is {ratio}; allowed: 0\.0625 \(one expert"):
        SMALL.slots_at(ratio)
