"""`python -m experiments.plan`: table, rows and picture."""

import json

import pytest
from hydra import compose, initialize_config_dir

from experiments.harness.run import REPOSITORY, Run
from experiments.harness.schema import read_config
from experiments.plan import __main__ as plan
from experiments.plan import plan_config
from llada_jax.lowered import Lowered, LoweredWeight, Operation, TensorType

SMALL = [
    "architecture.width=64", "architecture.ffn_width=128", "architecture.n_layers=3",
    "architecture.n_heads=2", "architecture.n_kv_heads=2", "architecture.head_dim=32",
    "tokens=0", "session_mib=1", "weight_bits=128", "greedy_slot_mib=null", "steps=3",
]  # fmt: skip


def composed(name: str, *overrides: str):
    with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
        return compose(name, [*overrides])


def planned(tmp_path, *overrides: str) -> dict:
    config = composed("plan", *overrides)
    plan.plan(read_config(plan_config.PlanConfig, config), Run(tmp_path, config))
    return {row["name"]: row for row in json.loads((tmp_path / "results.json").read_text())}


def test_planners_side_by_side(tmp_path, capsys):
    gaps = ["gap_sessions_mib=[1,2]", "gap_step_shares=[0.1]"]
    rows = planned(tmp_path, *SMALL, *gaps, "figure=false")
    steps = {
        name: rows[f"plan/copy/{name}/step"]["value"] for name in ("paging", "greedy", "steady")
    }
    assert rows["plan/copy/bound/step"]["value"] <= steps["steady"] <= steps["greedy"]
    assert steps["greedy"] <= steps["paging"]
    assert rows["plan/copy/paging/resident"]["value"] == 0
    assert all(row["kind"] == "modelled" for name, row in rows.items() if "planning" not in name)
    gap = rows["plan/copy/gap/1MiB/compute0.1/steady"]["value"]
    assert 0 <= gap <= rows["plan/copy/gap/1MiB/compute0.1/greedy"]["value"]
    assert rows["plan/copy/gap/2MiB/compute0.1/none"]["value"] == 0
    printed = capsys.readouterr().out
    assert "none: no plan, the weights need" in printed and "(bound)" in printed
    assert "arXiv 2606.13740" in printed


def test_the_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra plots")
    planned(tmp_path, *SMALL, "planners=[greedy,steady]", "path=immediate")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in tmp_path.iterdir()} == {
        "plan.png", "results.json", "metrics.jsonl", "config.yaml", "env.json"
    }  # fmt: skip


def lowered(weight: str = "second") -> Lowered:
    row = TensorType((4, 8), "f32")
    product = Operation("dot_general", "", (row,), (row,), contraction=32, weight="first")
    norm = Operation("multiply", "", (row,), (row,), weight=weight)
    return Lowered(
        "step",
        b"",
        {"first": LoweredWeight((8, 32), 4, 32), "second": LoweredWeight((8,), 32)},
        {},
        {},
        (product, Operation("add", "", (row, row), (row,)), norm),
    )


def test_a_lowered_step_is_planned_as_it_is(tmp_path):
    graph = plan_config.graph_of(lowered(), step_ns=1000)
    first, second = graph.operators
    assert (first.name, first.weight_bytes, first.compute_ns) == ("first", 128 + 8 * 2, 1000)
    assert (second.weight_bytes, second.compute_ns, second.depends) == (32, 0, (0,))
    assert first.temporary_bytes == 4 * 8 * 2
    lowered().save(tmp_path / "step.json")
    rows = planned(
        tmp_path / "run", f"lowered={tmp_path / 'step.json'}", "figure=false",
    )  # fmt: skip
    assert rows["plan/copy/none/stall"]["value"] == 0


def test_a_weight_with_two_users_is_refused():
    with pytest.raises(ValueError, match="step uses first twice; allowed: once"):
        plan_config.graph_of(lowered("first"), step_ns=1)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("planners=[best]", "planner is 'best'; allowed: 'none', 'paging', 'greedy', 'steady'"),
        ("planners=[]", "planners is empty; allowed: at least one"),
        ("phone=SM1", "phone is 'SM1'; allowed: SM8550, SM8650, SM8750, SM8850"),
        ("path=fast", "path is 'fast'; allowed: 'immediate', 'copy', 'delayed'"),
        ("session_mib=20", "no planner finds a plan: .* take 110,886,912 bytes in 2 buffers"),
        ("session_mib=-1", "session_bytes is -1048576; allowed: above 0"),
        ("step_ms=0", "step_ms is 0.0; allowed: above 0"),
        ("greedy_slot_mib=0", "slot_bytes is 0; allowed: above 0"),
        ("rows=0", "rows is 0; allowed: above 0"),
        ("gap_step_shares=[0]", "gap_step_shares has 0.0; allowed: above 0"),
    ],
)
def test_bad_input_leaves_no_files(override, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        planned(tmp_path, override)
    assert not list(tmp_path.iterdir())
