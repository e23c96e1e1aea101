"""`python -m experiments.plan`: table, rows and picture."""

import json

import pytest
from hydra import compose, initialize_config_dir
from matplotlib.colors import to_rgba

from experiments import plan
from experiments.harness.run import REPOSITORY, Run, read_config

SMALL = [
    "architecture.width=64", "architecture.ffn_width=128", "architecture.n_layers=3",
    "architecture.n_heads=2", "architecture.n_kv_heads=2", "architecture.head_dim=32",
    "tokens=0", "session_mib=1", "weight_bits=128", "greedy_slot_mib=null",
]  # fmt: skip


def composed(name: str, *overrides: str):
    with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
        return compose(name, [*overrides])


def planned(tmp_path, *overrides: str) -> dict:
    config = composed("plan", *overrides)
    plan.plan(read_config(plan.PlanConfig, config), Run(tmp_path, config))
    return {row["name"]: row for row in json.loads((tmp_path / "results.json").read_text())}


def test_planners_side_by_side(tmp_path, capsys):
    gaps = ["gap_sessions_mib=[1,2]", "gap_step_shares=[0.1]"]
    rows = planned(tmp_path, *SMALL, *gaps)
    steps = {name: rows[f"plan/copy/{name}/step"]["value"] for name in ("greedy", "steady")}
    assert rows["plan/copy/bound/step"]["value"] <= steps["steady"] <= steps["greedy"]
    assert all(row["kind"] == "modelled" for name, row in rows.items() if "planning" not in name)
    gap = rows["plan/copy/gap/1MiB/compute0.1/steady"]["value"]
    assert 0 <= gap <= rows["plan/copy/gap/1MiB/compute0.1/greedy"]["value"]
    printed = capsys.readouterr().out
    assert "arXiv 2606.13740" in printed
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_a_plan_s_colours_are_in_its_legend(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plan, "save", lambda picture, path: drawn.append(picture))
    planned(tmp_path, *SMALL)
    lanes, addresses = drawn[0].axes[:2]
    for axes, named in ((lanes, plan.LANES), (addresses, plan.PARTS)):
        assert [text.get_text() for text in axes.get_legend().get_texts()] == [*named]
        used = {tuple(color) for bars in axes.collections for color in bars.get_facecolors()}
        assert used <= {to_rgba(color) for color in named.values()}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("planners=[best]", "planner is 'best'; allowed: 'greedy', 'steady'"),
        ("planners=[]", "planners is empty; allowed: at least one"),
        ("phone=SM1", "phone is 'SM1'; allowed: SM8550, SM8650, SM8750, SM8850"),
        ("path=fast", "path is 'fast'; allowed: 'immediate', 'copy', 'delayed'"),
        ("session_mib=20", "no planner finds a plan: .* take 113,508,352 bytes in 2 buffers"),
        ("session_mib=-1", "session_bytes is -1048576; allowed: 1 or more"),
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
