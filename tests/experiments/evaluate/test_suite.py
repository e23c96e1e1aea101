"""`python -m experiments.evaluate suite=decoding`: one table of many decoders on many tasks."""

import json
import shutil
from pathlib import Path

import pytest

from experiments.evaluate import __main__ as entry
from experiments.report import __main__ as report
from llada_jax.evaluation.evaluate import Trial
from llada_jax.evaluation.generations import GenerationStore
from llada_jax.evaluation.graded import Evaluation
from llada_jax.evaluation.tasks import load_task
from llada_jax.evaluation.trajectory import PUBLISHED
from tests.experiments.in_process import run_experiment

TASKS = {"countdown": 1, "yes_no": 1}
DECODERS = (
    "{name: llada, sampler: {threshold: 0.9}},"
    " {name: hasty, sampler: {threshold: 0.0001, cache: blockwise}}"
)
SUITE = [
    "suite=decoding",
    "suite.tasks=[countdown,yes_no]",
    f"suite.decoders=[{DECODERS}]",
    "task.items=2",
    "task.seed=5",
    "batch_size=2",
]


def run(folder: Path, *changes: str) -> dict[str, dict]:
    run_experiment(entry.main, [*SUITE, *changes, f"hydra.run.dir={folder}"])
    return results(folder)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def results(folder: Path) -> dict[str, dict]:
    return {row["name"]: row for row in json.loads((folder / "results.json").read_text())}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, random_model) -> tuple[Path, dict[str, dict]]:
    folder = tmp_path_factory.mktemp("suite")
    return folder, run(folder, f"model={random_model}")


def test_a_suite_with_tiles_refuses_a_decoder_without_a_worker(tmp_path):
    with pytest.raises(SystemExit, match="tiles is 'q4_0', backend is 'xla' and the sampler has"):
        run(tmp_path / "run", "tiles=q4_0")
    assert not any((tmp_path / "run").iterdir())


def test_the_regime_of_a_decoder_has_published_references(finished):
    _, rows = finished
    for name in ("llada", "hasty"):
        card = {what: rows[f"decoding/{name}/regime/{what}"] for what in PUBLISHED}
        blocks = rows[f"decoding/{name}/nfe_per_block"]["value"]
        assert 0 < card["forwards_per_block"]["value"] <= blocks + 1e-9  # none after the answer
        assert all(card[what]["reference"] == PUBLISHED[what][0] for what in card)
    assert rows["decoding/hasty/regime/rows_per_forward"]["value"] >= 32


def test_a_decoders_score_is_over_the_items_of_all_tasks(finished):
    folder, rows = finished
    for name in ("llada", "hasty"):
        parts = [
            GenerationStore.load(folder / "cells" / f"{name}-{task}" / "generations")
            for task in TASKS
        ]
        generations = [each for part in parts for each in part.generations()]
        assert len(generations) == rows[f"decoding/{name}/exact_match"]["n"] == 4
        nfe = sum(each.nfe for each in generations)
        assert rows[f"decoding/{name}/nfe"]["value"] == nfe / 4
        tokens = sum(each.length for each in generations)
        assert rows[f"decoding/{name}/tpf"]["value"] == pytest.approx(tokens / nfe)
        by_task = [rows[f"decoding/{name}/{task}/exact_match"]["value"] for task in TASKS]
        assert rows[f"decoding/{name}/exact_match"]["value"] == sum(by_task) / 2
        clean = [each.text.strip() == each.item.answer for each in generations]
        assert rows[f"decoding/{name}/strict_match"]["value"] == sum(clean) / 4
    assert rows["decoding/hasty/nfe"]["value"] < rows["decoding/llada/nfe"]["value"]


def test_the_first_decoder_is_the_baseline_of_the_others(finished):
    _, rows = finished
    values = [rows[f"decoding/{name}/exact_match"]["value"] for name in ("llada", "hasty")]
    difference = rows["decoding/hasty/against/llada/difference"]
    assert difference["value"] == pytest.approx(values[1] - values[0])
    low, high = difference["interval"]
    assert low <= difference["value"] <= high
    assert 0 < rows["decoding/hasty/against/llada/p_value"]["value"] <= 1
    assert not any("llada/against" in name for name in rows)


def test_a_suite_asks_in_other_words(tmp_path, random_model):
    run(tmp_path, f"model={random_model}", "task.prompts=held_out", "suite.decoders=[{name: hasty, "
        "sampler: {threshold: 0.0001, cache: blockwise}}]")  # fmt: skip
    for task in TASKS:
        evaluation = Evaluation.load(tmp_path / "cells" / f"hasty-{task}")
        assert evaluation.settings["task"]["prompts"] == "held_out"
        assert evaluation.name == f"{task}/held_out/hasty"


def test_prompts_that_a_task_lacks_are_refused_before_the_run(tmp_path):
    with pytest.raises(
        SystemExit, match="prompts of countdown is 'lm_eval'; allowed: plain, train"
    ):
        run(tmp_path / "run", "task.prompts=lm_eval")
    assert not any((tmp_path / "run").iterdir())


def test_one_table_has_a_line_for_each_decoder(finished, random_model):
    folder, rows = finished
    arguments = [*SUITE, f"model={random_model}", f"hydra.run.dir={folder}"]
    printed = run_experiment(entry.main, arguments)
    over_all, by_task = (part.splitlines() for part in printed.split("\n\n")[:2])
    assert over_all[0] == "decoding: 4 items of countdown, yes_no; 4 different questions"
    assert [line.split()[0] for line in over_all[1:]] == ["decoder", "llada", "hasty"]
    assert [line.split()[0] for line in by_task[1:]] == ["decoder", "llada", "hasty"]
    share = 100 * rows["decoding/hasty/exact_match"]["value"]
    assert over_all[3].split()[:4] == ["hasty", "0.0001", f"{share:.1f}", "%"]


def test_a_finished_suite_decodes_nothing_again(finished, random_model, monkeypatch):
    folder, rows = finished
    monkeypatch.setattr(Trial, "answers", None)
    assert run(folder, f"model={random_model}") == rows


@pytest.mark.slow
def test_a_finished_suite_is_judged_again_and_timed_on_phones(
    finished, random_model, tmp_path, monkeypatch
):
    folder, rows = finished
    shutil.copytree(folder, tmp_path / "run")
    monkeypatch.setattr(Trial, "answers", None)
    again = run(tmp_path / "run", f"model={random_model}", "phones=[SM8750]")
    phones = {name: row for name, row in again.items() if "/phone/" in name}
    assert {name: row for name, row in again.items() if name not in phones} == rows
    assert {name.removesuffix("/phone/SM8750"): row["n"] for name, row in phones.items()} == {
        f"decoding/{decoder}{task}": 4 if task == "" else 2
        for decoder in ("llada", "hasty")
        for task in ("", "/countdown", "/yes_no")
    }
    parts = [phones[f"decoding/llada/{task}/phone/SM8750"]["value"] for task in TASKS]
    assert phones["decoding/llada/phone/SM8750"]["value"] == pytest.approx(sum(parts) / 2)


@pytest.mark.parametrize("begun", [True, False])
def test_the_folder_of_a_suite_is_refused_for_another_run(finished, begun, tmp_path):
    folder = tmp_path / "suite"
    shutil.copytree(finished[0], folder)
    if not begun:
        (folder / "config.yaml").unlink()
    before = contents(folder)
    message = "holds a run of another" if begun else "has the cells of another run"
    with pytest.raises(SystemExit, match=f"/suite {message}.*allowed: another folder"):
        run_experiment(entry.main, ["model=tiny", "task.items=1", f"hydra.run.dir={folder}"])
    assert contents(folder) == before


def test_a_decoder_is_not_replaced_by_a_suite(finished, tmp_path):
    shutil.copytree(finished[0] / "cells" / "hasty-yes_no", tmp_path / "run")
    before = contents(tmp_path / "run")
    with pytest.raises(SystemExit, match=r"/run has the generations of another run"):
        run(tmp_path / "run")
    assert contents(tmp_path / "run") == before


def test_a_report_compares_the_cells_of_a_suite(finished, tmp_path):
    folder, _ = finished
    arguments = [f"runs=[{folder},{folder}/cells]", "baseline=llada", f"hydra.run.dir={tmp_path}"]
    run_experiment(report.main, arguments)
    page = (tmp_path / "report.md").read_text()
    assert page.count("| llada |") == page.count("| hasty |") == 2
    assert "| decoding/hasty/exact_match |" in page


@pytest.mark.slow
def test_a_repeated_question_counts_once(tmp_path, random_model):
    changes = [
        f"model={random_model}", "suite.tasks=[countdown]", "task.seed=8", "task.items=4",
        "batch_size=4", "phones=[SM8750]",
        "suite.decoders=[{name: a, sampler: {threshold: 0.001}},"
        " {name: b, sampler: {threshold: 0.0001}}]",
    ]  # fmt: skip
    rows = run(tmp_path, *changes)
    counted = {name: (row["n"], row["items"]) for name, row in rows.items() if "n" in row}
    assert set(counted.values()) == {(3, 4)}
    assert {"decoding/a/exact_match", "decoding/b/against/a/difference"} < counted.keys()


@pytest.mark.slow
def test_a_difficulty_holds_for_every_task(tmp_path, random_model):
    changes = [f"model={random_model}", "task.difficulty=2", "task.items=1"]
    rows = run(tmp_path, *changes, "suite.decoders=[{name: a, sampler: {threshold: 0.001}}]")
    for task in TASKS:
        store = GenerationStore.load(tmp_path / "cells" / f"a-{task}" / "generations")
        assert store.settings["task"]["difficulty"] == 2
        item = load_task(task).item(5, 0, "test", difficulty=2)
        assert [each.item for each in store.generations()] == [item]
    assert any(name.startswith("decoding/a/tokens_per_second") for name in rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("suite.tasks=[chess]", "chess"),
        ("suite.tasks=[]", "tasks is empty; allowed: one or more"),
        ("suite.tasks=[yes_no,yes_no]", "tasks are .*yes_no.*; allowed: each name once"),
        ("suite.decoders=[]", "decoders is empty; allowed: one or more"),
        ("suite.decoders=[{name: a, sampler: {}}, {name: a, sampler: {}}]", "each name once"),
        ("suite.decoders=[{name: a, sampler: {cache: none2}}]", "cache is 'none2'"),
        ("task.difficulty=3", "difficulty of .* is 3; allowed: 0, 1, 2"),
        ("task=yes_no", "task=yes_no with a suite, which chooses its tasks and samplers"),
        ("task.gen_length=64", "task.gen_length=64 with a suite"),
        ("sampler=threshold", "sampler=threshold with a suite"),
        ("sampler.threshold=0.5", r"sampler\.threshold=0\.5 with a suite"),
        ("phones=[SM1]", "SM1"),
    ],
)
def test_bad_suites_are_refused_before_work(change, message, tmp_path):
    with pytest.raises(SystemExit, match=message):
        run(tmp_path / "run", change)
    assert not (tmp_path / "run" / "config.yaml").exists()
