"""`python -m experiments.drafts_on_phones`: times of blocks, and what they yield."""

import json

import pytest

from experiments.drafts_on_phones import DraftsOnPhonesConfig, main
from tests.experiments.in_process import run_experiment

SMALL = ["shapes=[smollm2_135m]", "phones=[SM8750]", "blocks=[1,2,8,64]"]


def run(tmp_path, *settings):
    run_experiment(main, [*SMALL, *settings, f"hydra.run.dir={tmp_path / 'run'}"])
    rows = json.loads((tmp_path / "run" / "results.json").read_text())
    return {row["name"]: row for row in rows}


def test_more_accepted_drafts_save_time(tmp_path):
    (tmp_path / "trained").mkdir()
    measured = [{"name": f"domains/accepted_{k}", "value": 0.5**k} for k in (1, 2)]
    (tmp_path / "trained" / "results.json").write_text(json.dumps(measured))
    rows = run(tmp_path, f"trained={tmp_path / 'trained'}", "set=domains")
    plain, two, eight, many = (rows[f"smollm2_135m/SM8750/{n}"] for n in (1, 2, 8, 64))
    # 1.5 tokens a forward with one draft, 1.75 with two, and no more with 63.
    assert plain["value"] > two["value"] > eight["value"] < many["value"]
    assert plain["value"] / eight["value"] < 1.75
    assert all(low < row["value"] < high for row in (plain, two) for low, high in [row["band"]])
    assert {row["kind"] for row in rows.values()} == {"modelled"}
    assert rows["relative/smollm2_135m/SM8750/1"]["value"] == 1
    assert (tmp_path / "run" / "blocks.png").exists()


def test_drafts_that_are_never_accepted_cost_time(tmp_path):
    rows = run(tmp_path, "accepted=[0.0]", "pictures=false")
    assert rows["smollm2_135m/SM8750/8"]["value"] > rows["smollm2_135m/SM8750/1"]["value"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accepted": ()}, "accepted and trained are both given, or neither"),
        ({"accepted": (0.2, 0.3)}, r"accepted is \[0.2, 0.3\]; allowed: shares from 1 to 0"),
        ({"blocks": (2, 4)}, r"blocks is \[2, 4\]; allowed: 1 first"),
        ({"set": "train"}, "set is 'train'; allowed: 'templates'"),
    ],
)
def test_bad_settings_have_one_message(changes, message):
    with pytest.raises(ValueError, match=message):
        DraftsOnPhonesConfig(**{"accepted": (0.5,), "pictures": False} | changes)
