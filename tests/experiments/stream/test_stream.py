"""`python -m experiments.stream`: the same tokens in less memory, and what that costs."""

import json

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

from experiments.harness.run import REPOSITORY, Run, read_config
from experiments.stream import __main__ as stream
from experiments.stream.streamed_share import ShareOutcome
from llada_jax.backend.layer_file import PAGE, StoredLayer
from llada_jax.swap.stall_times import stall_of


def composed(*overrides: str):
    with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
        return compose("stream", [*overrides])


def streamed(tmp_path, *overrides: str) -> dict:
    config = composed(*overrides)
    stream.stream(read_config(stream.StreamConfig, config), Run(tmp_path, config))
    return {row["name"]: row for row in json.loads((tmp_path / "results.json").read_text())}


def test_a_shape_with_random_weights_is_streamed(tmp_path):
    shape = ["architecture=tiny", "+architecture.mask_id=511", "architecture.n_layers=4"]
    rows = streamed(tmp_path, *shape, "shares=[0,1]")
    for share in ("0", "1"):
        assert rows[f"stream/{share}/same_tokens"]["value"] == 1
        memory = rows[f"stream/{share}/memory"]
        assert memory["value"] == memory["reference"]
        if (peak := rows.get(f"stream/{share}/peak")) is not None:
            # Pages of an allocator hide half a megabyte; test_streamed_memory measures more.
            assert peak["value"] >= 0 and peak["reference"] == memory["value"]
    assert 1.9 < rows["stream/1/memory"]["value"] / rows["stream/0/memory"]["value"] < 2.1
    assert {path.name for path in tmp_path.iterdir()} == {
        "results.json", "metrics.jsonl", "config.yaml", "env.json"
    }  # fmt: skip


def test_a_peak_that_could_not_be_restarted_says_so(tmp_path, monkeypatch):
    ran = ShareOutcome(np.zeros(8), 1.0, [0.0] * 8, 10_000_000, 90_000_000, with_compilation=True)
    monkeypatch.setattr(stream, "in_own_process", lambda *_, **__: ran)
    config = read_config(stream.StreamConfig, composed())
    stored = tuple(StoredLayer(index * PAGE, PAGE, ()) for index in range(6))
    times = stream.ForwardTimes([2e-3] * 6, 1e-3, [5e-3] * 6)
    rows = stream._one_share(config, stored, tmp_path, times, ran.tokens, 0.5)
    peak = {row.name: row for row in rows}["stream/0.5/peak"]
    assert (peak.value, peak.reference) == (90, 10)
    assert peak.unit == "MB more, compilation included"


def test_a_plan_is_made_for_what_was_measured():
    config = read_config(stream.StreamConfig, composed())
    stored = tuple(StoredLayer(index * PAGE, PAGE, ()) for index in range(6))
    times = stream.ForwardTimes([2e-3] * 6, 1e-3, [5e-3] * 6)
    graph, plan = stream.plan_for(config, stored, times, share=0)
    assert graph.compute_ns == 13_000_000
    assert stall_of(graph, plan) == 6 * 5_000_000 - graph.compute_ns
    graph, plan = stream.plan_for(config, stored, times, share=1)
    assert plan.transfers == ()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("shares=[]", "shares is empty; allowed: at least one"),
        ("shares=[0.5,2]", "share is 2.0; allowed: 0 to 1"),
        ("planner=best", "planner is 'best'; allowed: 'greedy', 'steady'"),
    ],
)
def test_bad_input_leaves_no_files(override, message, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        streamed(tmp_path, override)
    assert not list(tmp_path.iterdir())
