"""`python -m experiments.tune`: its choice, confirmation, output and resuming."""

import json
import math
from dataclasses import fields
from types import SimpleNamespace

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

import llada_jax as lj
from experiments.harness.run import REPOSITORY, offer_preset_file, read_config
from experiments.tune import __main__ as entry
from experiments.tune import search as searching
from experiments.tune.judge import Judge, Judged, Price, modelled_price
from experiments.tune.search import Candidate, fastest_allowed, front
from experiments.tune.settings import Axes, SamplerFamily, TuneConfig, drawn, first_proposals
from llada_jax.phones.profile import load_profile
from llada_jax.phones.workload import Forward, Workload
from llada_jax.sampler.config import SamplerConfig
from tests.experiments.in_process import run_experiment

FAMILIES = (
    "families=[{name: blockwise, sampler: {cache: blockwise, threshold: 0.99},"
    " over: {threshold: [0.0001, 0.9]}}]"
)
SMALL = [
    "tasks=[yes_no]", "difficulty=0", "items=4", "at_once=2", "confirm_items=4", "budget=2",
    "loss=100", "planners=[steady]", "published={window: by_cache, latency_table: null}", FAMILIES,
]  # fmt: skip


def test_stored_times_are_of_typical_sessions():
    """Cool phones are 16 % apart, and SM8650's typical session is 2.7 times as slow."""
    stored = json.loads((REPOSITORY / "docs/results/tune.json").read_text())
    seconds = {row["name"]: row["value"] for row in stored if row["name"].endswith("/seconds")}
    slowdown = load_profile("SM8650").session.npu_slowdown
    for name in ("reference", "confirmed", "published"):
        slow, fast = (seconds[f"{soc}/tune/{name}/seconds"] for soc in ("SM8650", "SM8750"))
        assert slow / fast == pytest.approx(1.15 * slowdown, rel=0.05)


def run(model, folder, *changes):
    arguments = [f"model={model}", *SMALL, *changes, f"hydra.run.dir={folder}"]
    run_experiment(entry.main, arguments)
    return {row["name"]: row for row in json.loads((folder / "results.json").read_text())}


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory, random_model):
    """A run that was killed while it scored its second sampler, and then resumed."""
    folder, judged = tmp_path_factory.mktemp("tune"), []

    def killed(*arguments):
        judged.append(arguments)
        if len(judged) == 2:
            raise KeyboardInterrupt
        return searching_candidate(*arguments)

    searching_candidate = searching.candidate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searching, "candidate", killed)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            run(random_model, folder)
    assert not (folder / "results.json").exists()
    return folder, run(random_model, folder)


@pytest.mark.slow
def test_the_fastest_is_chosen_confirmed_and_written(interrupted):
    folder, rows = interrupted
    best = SamplerConfig.preset(str(folder / "best.json"))
    assert (best.rule.threshold, best.window.cache) == (0.0001, "blockwise")
    assert rows["tune/tried"]["value"] == 2
    assert rows["tune/proposed"]["value"] == 0, "both are the family's own"
    ratio = rows["tune/confirmed/seconds"]["value"] / rows["tune/reference/seconds"]["value"]
    assert rows["tune/against_reference/seconds"]["value"] == pytest.approx(ratio)
    assert ratio < 0.2, "one forward a block, where a model of random weights takes one a token"
    assert rows["tune/why/threshold:0.0001 in place of 0.99/seconds"]["value"] < 0.2
    assert rows["tune/confirmed/seconds"]["kind"] == "modelled"
    assert (folder / "front.png").stat().st_size > 5_000


@pytest.mark.slow
def test_the_same_command_decodes_nothing_again(interrupted, random_model, monkeypatch):
    folder, rows = interrupted
    monkeypatch.setattr("llada_jax.evaluation.evaluate.generate_stream", None)
    assert run(random_model, folder) == rows


@pytest.mark.slow
def test_a_preset_file_is_a_choice_of_every_verb(interrupted):
    folder, _ = interrupted
    offer_preset_file(f"sampler={folder / 'best.json'}")
    with pytest.raises(ValueError, match=r"preset is 'nowhere\.json'; allowed: a JSON file"):
        offer_preset_file("sampler=llada,nowhere.json")


@pytest.mark.slow
def test_the_machine_at_hand_is_measured(random_model, tmp_path):
    rows = run(random_model, tmp_path, "phone=here", "loss=0")
    seconds = rows["tune/confirmed/seconds"]
    assert seconds["kind"] == "measured"
    assert seconds["value"] > 0
    assert not [name for name in rows if "joules" in name or "planner" in name]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "allowed: one JSON object"),
        ("[1]", "allowed: one JSON object"),
        ('{"sampler": 3}', "allowed: a mapping"),
        ('{"sampler": {"thresold": 0.5}}', "thresold"),
        ('{"sampler": {"threshold": NaN}}', "threshold is nan"),
    ],
)
def test_a_damaged_preset_is_refused(tmp_path, content, said):
    path = tmp_path / "mine.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=said):
        SamplerConfig.preset(str(path))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("phone=SM1", "SM1"),
        ("planners=[best]", "planner is 'best'"),
        ("phone=here items=2", r"at_once, items, confirm_items are \(2, 2, 4\); allowed"),
        ("loss=-1", "loss is -1"),
        ("budget=0", "budget is 0"),
        ("confirm_seed=2000", "allowed: another one"),
        ("families=[]", "families is empty"),
        ("families=[{name:a,sampler:{cache:blockwise},over:{block_length:[7]}}]", "allowed"),
    ],
)
def test_bad_settings_leave_nothing(tmp_path, random_model, change, said):
    with pytest.raises(SystemExit, match=said):
        run(random_model, tmp_path / "run", *change.split())
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.parametrize("soc", ["SM8650", "SM8750"])
def test_a_price_includes_the_phones_session(soc):
    runs = [Workload((Forward(32, 128, 32),) * n, 256, 0, "drawn") for n in (3, 5)]
    phone = lj.phone(soc)
    whole = phone.time(Workload(runs[0].forwards + runs[1].forwards, 256, 0, ""), "llada_8b")
    price = modelled_price(phone, "llada_8b", runs)
    assert price.seconds == pytest.approx(whole.seconds / 2)
    assert price.joules == pytest.approx(whole.energy.joules / 2)
    planned = modelled_price(phone, "llada_8b", runs, "steady")
    assert planned.seconds == pytest.approx(price.seconds, rel=0.1)


def test_every_setting_except_the_tasks_can_be_swept():
    names = SamplerConfig.setting_types().keys()
    assert {each.name for each in fields(Axes)} == names - {"gen_length", "steps"}
    axes = read_config(
        Axes, OmegaConf.create({"refresh": ["rows", "none"], "row_budget": [None, 64]})
    )
    assert axes.searched == {"refresh": ("rows", "none"), "row_budget": (None, 64)}


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"steps": [8]}, "steps is no setting; allowed: block_length, "),
        ({"remasking": ["tokens"]}, r"remasking\[0\] is 'tokens'; allowed: 'low"),
    ],
)
def test_bad_axes_are_named(over, message):
    with pytest.raises(ValueError, match=message):
        read_config(Axes, OmegaConf.create(over))


def test_values_that_exceed_another_setting_are_reduced_to_it():
    staged = SamplerConfig.from_flat(cache="blockwise", accept="staged")
    family = SamplerFamily(name="staged", sampler=staged, over=Axes(theta_visible=(0.95,)))
    assert family.sampler_with([0.95]).rule.theta_visible == staged.rule.theta_stable


def test_the_family_presets_and_their_neighbours_come_first():
    own = SamplerConfig.from_flat(cache="blockwise", threshold=0.9)
    rows = Axes(threshold=(0.7, 0.8, 0.9), block_length=(32, 64))
    families = [
        SamplerFamily(name="a", sampler=own, over=rows),
        SamplerFamily(name="b", sampler=own),
    ]
    proposed = [
        drawn(families, lambda name, n, places=places: places[name])
        for places in first_proposals(families)
    ]
    assert [
        (family.name, sampler.rule.threshold, sampler.block_length) for family, sampler in proposed
    ] == [("a", 0.9, 32), ("b", 0.9, 32), ("a", 0.9, 64), ("a", 0.8, 32), ("a", 0.7, 32)]


def composed(*overrides: str) -> TuneConfig:
    with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
        return read_config(TuneConfig, compose("tune", overrides=[*overrides]))


OVER = "{threshold: [0.7, 0.8, 0.9], block_length: [8, 16, 32]}"
OWN = "{cache: blockwise, threshold: 0.9, block_length: 32}"
FAMILY = f"families=[{{name: a, sampler: {OWN}, over: {OVER}}}]"
"""Nine samplers: checking the thousands of the default takes seconds."""


def test_optunas_proposals_are_counted(tmp_path, monkeypatch):
    config = composed("budget=7", FAMILY)

    def judged(judge, reference, family, sampler):
        return Candidate(family, sampler, Price(sampler.rule.threshold, math.nan), 0.0)

    monkeypatch.setattr(searching, "candidate", judged)
    for _ in range(2):  # the second time only from the study
        found, tried, proposed = searching.search(Judge(config, None, None), None, tmp_path)
        assert len(found) == tried == 7
        assert proposed == 2, "five are the family's own and its neighbours"


def test_a_bad_sampler_is_abandoned_after_its_first_items(monkeypatch):
    asked = []

    def judged(judge, sampler, items, count):
        asked.append(count)
        right = dict.fromkeys(range(count), sampler == judge.config.reference)
        return Judged(sampler, (SimpleNamespace(right=right, counted=right),))

    monkeypatch.setattr(Judge, "_judged", judged)
    config = composed(FAMILY)
    judge = Judge(config, None, None)
    *_, reference = judge.searched(config.reference)
    assert asked == [50, 100, 150]
    wrong = config.reference.replace(threshold=0.1)
    assert searching.candidate(judge, reference, config.families[0], wrong) is None
    assert asked[3:] == [config.at_once], "no more answers were asked for"


def candidate_of(seconds, lost, joules):
    return SimpleNamespace(price=Price(seconds, joules), lost=lost)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=8), st.booleans())
def test_the_front_is_pareto_optimal(costs, measured):
    known = [(s, lost, math.nan if measured else float(j)) for s, lost, j in costs]
    candidates = [candidate_of(*cost) for cost in known]
    kept = front(candidates)
    sizes = 2 if measured else 3
    shown = {(each.price.seconds, each.lost, each.price.joules)[:sizes] for each in kept}
    plain = {cost[:sizes] for cost in costs}
    assert shown == {
        one
        for one in plain
        if not any(o != one and all(b <= a for a, b in zip(one, o, strict=True)) for o in plain)
    }
    best = fastest_allowed(candidates, 1)
    allowed = [cost[0] for cost in costs if cost[1] <= 1]
    assert (best.price.seconds if best else None) == min(allowed, default=None)
