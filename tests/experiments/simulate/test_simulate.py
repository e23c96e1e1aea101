"""`experiments.simulate`: its output, and the input that it refuses."""

import json
from types import SimpleNamespace

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import llada_jax as lj
from experiments.harness.run import REPOSITORY, Run, read_config
from experiments.simulate import __main__ as simulate
from llada_jax.phones.published_tasks import PublishedTasks
from llada_jax.phones.system import System
from llada_jax.phones.workload import blockwise
from tests.phones.small import PHONE, SHAPE

SOURCE = "published statistics (arXiv 2606.13740, Figures 5 and 8)"


def composed(*overrides: str) -> simulate.SimulateConfig:
    with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
        return read_config(simulate.SimulateConfig, compose("simulate", overrides=list(overrides)))


def simulated(folder, monkeypatch, runs, *changes):
    """The result rows of `experiments.simulate` on one phone, as means of `runs` runs."""
    monkeypatch.setattr(simulate, "PublishedTasks", lambda graphs: PublishedTasks(graphs, runs))
    config = composed("phones=[SM8750]", *changes)
    simulate.simulate_run(config, Run(folder, OmegaConf.create({})))
    return json.loads((folder / "results.json").read_text())


def test_a_run_without_a_trace_names_its_source(tmp_path, capsys, monkeypatch):
    rows = simulated(tmp_path, monkeypatch, 1, "drawn_forwards=2")
    assert {row["trace_source"] for row in rows if row["kind"] == "modelled"} == {SOURCE}
    values = {row["name"]: row["value"] for row in rows}
    parts = sum(value for name, value in values.items() if "/part/" in name)
    assert parts == pytest.approx(values["SM8750/latency"])
    assert (tmp_path / "timeline_SM8750.perfetto-trace").stat().st_size > 1_000
    assert (tmp_path / "timeline_SM8750.png").exists()
    printed = capsys.readouterr().out
    assert "SM8750/latency" in printed and f"traces: {SOURCE}" in printed


def test_the_headline_is_the_mean_of_several_runs(tmp_path, monkeypatch):
    changes = ("pictures=false", "tokens=32", "system.scores_on=npu")
    rows = {row["name"]: row for row in simulated(tmp_path, monkeypatch, 3, *changes)}
    mean, of_runs = rows["SM8750/latency"], rows["SM8750/latency/of_runs"]
    assert mean["n"] == of_runs["n"] == 3 and mean["value"] == of_runs["value"]
    assert mean["interval"][0] < mean["value"] < mean["interval"][1]
    shown = rows["SM8750/latency/of_the_run_below"]["value"]
    parts = sum(row["value"] for name, row in rows.items() if "/part/" in name)
    assert parts == pytest.approx(shown) and shown != mean["value"]


def test_a_timeline_s_colours_are_in_its_legend(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(simulate, "save", lambda picture, path: drawn.append(picture))
    found = lj.phone("SM8750").time(blockwise(64, 32), "llada_8b")
    simulate.draw_timeline(found.timeline(0, 2), "two forwards", tmp_path / "none.png")
    ((axes,), (legend,)) = drawn[0].axes, drawn[0].legends
    used = {tuple(color) for bars in axes.collections for color in bars.get_facecolors()}
    explained = {patch.get_facecolor() for patch in legend.legend_handles}
    assert used <= explained and len(used) == 6
    assert [text.get_text() for text in legend.get_texts() if text.get_text()] == [
        "shades: one task, the next"
    ]


def test_a_run_with_a_planner_reports_its_plan(tmp_path, monkeypatch):
    changes = ("drawn_forwards=2", "tokens=32", "planner=steady")
    rows = simulated(tmp_path, monkeypatch, 1, *changes)
    values = {row["name"].removeprefix("SM8750/"): row["value"] for row in rows}
    parts = sum(value for name, value in values.items() if name.startswith("part/"))
    assert parts == pytest.approx(values["latency"])
    assert values["plan/stall"] == 0 < values["plan/transfers"]
    assert 2000 < values["plan/resident"] < 3200
    trace = (tmp_path / "timeline_SM8750.perfetto-trace").read_bytes()
    assert b"the plan's own steps" in trace


@pytest.mark.parametrize(("runtime", "varies"), [("swap", True), ("delayed", False)])
def test_the_counters_of_a_trace_include_resident_weights(runtime, varies):
    phone, config = lj.phone("SM8750", runtime=runtime), composed("tokens=32")
    found = phone.time(blockwise(64, 32), config.shape)
    counters = simulate.counters_of(phone, found, config)
    resident = phone.timer(config.shape, found.workload.canvas).transfers.resident_mib
    rest = found.footprint.cache + found.footprint.temporaries
    assert resident is not None
    assert counters.mapped_mib == (rest + resident if varies else found.footprint.total)
    assert counters.mapped_mib < phone.profile.memory.address_space_mib


def test_a_mixture_reports_its_experts_per_layer(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(simulate, "workloads_of", lambda config, model: (blockwise(8, 32),))
    changes = ("phones=[SM8750]", "shape=tiny_moe", "pictures=false")
    simulate.simulate_run(composed(*changes), Run(tmp_path / "run", OmegaConf.create({})))
    rows = json.loads((tmp_path / "run" / "results.json").read_text())
    found = {row["name"].removeprefix("SM8750/"): row["value"] for row in rows}
    assert "assumed" in rows[0]["trace_source"]
    assert "of 8 experts a layer and forward: experts" in capsys.readouterr().out
    assert 2 < found["experts_per_layer"] <= 8 and found["weights"] > 0


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("phones=[]", "phones is empty"),
        ("quant=int3", "quant is 'int3'; allowed"),
        ("planner=best", "planner is 'best'; allowed"),
        ("system.runtime=x", "system: runtime is|system.runtime"),
    ],
)
def test_bad_settings_are_named(override, message):
    with pytest.raises(ValueError, match=message):
        composed(override)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"phones": ("SM1",)}, "phone is 'SM1'; allowed: SM8550, SM8650, SM8750, SM8850"),
        ({"shape": "llada_80b"}, "shape is 'llada_80b'; allowed: .*llada_8b"),
        ({"system": System(runtime="none")}, "SM8750: runtime is 'none'.* in 3,200 MiB; allowed"),
        ({"system": SimpleNamespace(kernels="x")}, "kernels is 'x'; allowed: hexkl, llada_cpp"),
    ],
)
def test_unknown_names_are_reported_before_a_folder_appears(
    tmp_path, monkeypatch, changes, message
):
    monkeypatch.setattr(simulate, "workloads_of", lambda config, model: (blockwise(64, 128),))
    config = SimpleNamespace(**{**vars(simulate.SimulateConfig()), **changes})
    with pytest.raises(ValueError, match=message):
        simulate.simulate_run(config, Run(tmp_path / "run", OmegaConf.create({})))
    assert not (tmp_path / "run").exists()


def rows_of(system: System) -> dict[str, float]:
    phone, workload = lj.Phone(PHONE, system), blockwise(8, 32)
    rows = simulate.on_phone(phone, [workload], phone.time(workload, SHAPE), SHAPE)
    return {row.name.removeprefix("SM8750/"): row.value for row in rows}


def test_a_head_on_the_npu_costs_time_and_memory():
    rows, on_cpu = rows_of(System(scores_on="npu")), rows_of(System())
    assert rows["part/scores"] > 0 and "part/scores" not in on_cpu
    assert rows["must_be_mapped"] > on_cpu["must_be_mapped"]
