"""Every hot path is timed against its baseline, at a tiny shape."""

import pytest

from experiments.bench import hot_paths
from llada_jax.config import ModelConfig

SHAPE = ModelConfig(
    family="llada", vocab_size=256, width=32, n_layers=1, n_heads=1, n_kv_heads=1, head_dim=32,
    ffn_width=32, rope_theta=1e4, norm_eps=1e-5, max_length=128, mask_id=255,
)  # fmt: skip


@pytest.mark.slow
def test_every_path_has_a_ratio_to_its_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_paths, "EXPERTS", 8)
    monkeypatch.setattr(hot_paths, "WIDTH", 32)
    monkeypatch.setattr(hot_paths, "LONG_CANVAS", 64)
    rows = {row.name: row for row in hot_paths.time_hot_paths(SHAPE, repeats=2, seed=0)}
    ratios = {name for name in rows if " vs " in name and "quartile" not in name}
    assert {
        "window/dual vs none",
        "loop/compiled vs host",
        "forward/block vs canvas",
        "first forward/ours vs all scores",
        "sampling/one pass vs float64",
        "revision/tiles vs float32",
        "experts/grouped vs ragged_dot",
    } <= ratios
    assert all(rows[name].value > 0 and rows[name].n == 2 for name in ratios)
