"""Policies on stored routing: its statistics next to published ones, and rows of every cell."""

import json

import pytest
from hydra import compose, initialize_config_dir

from experiments.experts.__main__ import ExpertsConfig, experts
from experiments.experts.policies_on_phones import STORED, RoutingConfig, statistics_of
from experiments.harness.run import REPOSITORY, Run, read_config
from llada_jax.experts.routing import RoutingTrace


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
