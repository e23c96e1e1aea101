"""Sampling's share on a GPU, by arithmetic: what a body reads or multiplies, and what 70 % asks."""

import pytest

from experiments.sampling_engine.__main__ import GpuBody, bodies, share_rows


def test_a_body_is_bound_by_its_weights_or_its_rows():
    body = GpuBody(weights=2 * 10**9, vocab=1000)
    assert body.ms(1) == body.ms(2) == pytest.approx(2 * 2 / 768 * 1e3)
    assert body.ms(10**4) == pytest.approx(2 * 2e9 * 1e4 / 155e12 * 1e3)


def test_sizes_of_the_papers_models():
    weights = [body.weights / 1e9 for body in bodies().values()]
    assert weights == pytest.approx([7.5, 1.4], rel=0.05)  # without the embedding


def test_shares_are_of_a_step_and_70_percent_asks_for_a_slower_sampler():
    rows = {row.name: row.value for row in share_rows()}
    name = "gpu_share/llada_moe/unfused_float64"
    assert 0.2 < rows[f"{name}/peak"] < 0.3
    slower, peak = rows[f"{name}/slower_for_70_percent"], rows[f"{name}/peak"]
    assert slower * peak / (slower * peak + 1 - peak) == pytest.approx(0.7)
