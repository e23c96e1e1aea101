"""A share's process takes the memory of its plan, measured at its peak."""

from pathlib import Path

import pytest

from experiments.harness.own_process import FREED_AT_ONCE, in_own_process
from experiments.harness.random_weights import RandomWeights
from experiments.stream import __main__ as stream
from experiments.stream.streamed_share import StreamConfig, run_share
from llada_jax.backend.layer_file import write_layers
from llada_jax.build.streaming import staging_of
from llada_jax.config import ModelConfig, SamplerConfig

SHAPE = ModelConfig(
    family="llada", vocab_size=512, width=1024, n_layers=8, n_heads=8, n_kv_heads=8, head_dim=128,
    ffn_width=4096, rope_theta=1e4, norm_eps=1e-5, max_length=128, mask_id=511,
)  # fmt: skip
SAMPLER = SamplerConfig(gen_length=4, block_length=4, steps=4, cache="blockwise")
LAYER = 4 * 1024**2 + 3 * 1024 * 4096
"""Bytes, without scales: all eight are well above what a forward of these rows needs itself."""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_the_measured_peak_grows_with_the_share(tmp_path):
    path = tmp_path / "layers.bin"
    stored = write_layers(path, SHAPE, RandomWeights(SHAPE, "int8")).layers
    times = stream.ForwardTimes([1e-3] * 8, 1e-3, [1e-3] * 8)
    config = StreamConfig(architecture=SHAPE, sampler=SAMPLER)
    found = []
    for share in (0.0, 0.4, 1.0):
        _, plan = stream.plan_for(config, stored, times, share)
        found.append(
            in_own_process(
                run_share, config, path, stored, staging_of(plan), environment=FREED_AT_ONCE
            )
        )
    counted = [ran.layer_bytes / LAYER for ran in found]
    assert counted == pytest.approx([2, 5, 8], rel=0.01)
    peaks = [ran.peak_bytes / LAYER for ran in found if ran.peak_bytes is not None]
    print("layers at the peak:", peaks)
    assert not any(ran.with_compilation for ran in found)
    for peak, layers in zip(peaks, counted, strict=True):
        assert layers < peak < layers + 1.5
    tokens = [ran.tokens.tolist() for ran in found]
    assert tokens[0] == tokens[1] == tokens[2]
