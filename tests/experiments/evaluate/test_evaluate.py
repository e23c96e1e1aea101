"""`python -m experiments.evaluate`: scores, resuming, judging again, comparing."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hydra.errors import ConfigCompositionException

import llada_jax as lj
from experiments.evaluate import __main__ as entry
from experiments.evaluate.result_rows import decoder_rows
from experiments.generate.elsewhere import phone_times
from experiments.report import __main__ as report
from llada_jax.evaluation.environment import environment
from llada_jax.evaluation.evaluate import Trial
from llada_jax.evaluation.generations import GenerationStore
from llada_jax.evaluation.graded import Evaluation
from llada_jax.evaluation.tasks import load_task
from tests.experiments.in_process import run_experiment

CELL = [
    "model=tiny",
    "task.seed=7",
    "task.items=6",
    "task.difficulty=0",
    "batch_size=3",
    "sampler=threshold",
]


def run(folder: Path, *arguments: str) -> dict[str, dict]:
    run_experiment(entry.main, [*arguments, f"hydra.run.dir={folder}"])
    rows = json.loads((folder / "results.json").read_text())
    return {row["name"].removeprefix("word_problems/"): row for row in rows}


def texts(folder: Path) -> list[str]:
    store = GenerationStore.load(folder / "generations")
    return [generation.text for generation in store.generations()]


def contents(folder: Path) -> dict[Path, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("evaluate") / "threshold"
    run(folder, *CELL)
    return folder


def results(folder: Path) -> dict[str, dict]:
    rows = json.loads((folder / "results.json").read_text())
    return {row["name"]: row for row in rows}


def test_the_score_matches_the_library(finished):
    model, task = lj.load("tiny"), load_task("word_problems")
    items = [task.item(7, index, "test", difficulty=0) for index in range(6)]
    prompts = [
        model.tokenizer.encode_chat([{"role": "user", "content": i.question}]) for i in items
    ]
    sampler = lj.SamplerConfig.preset("threshold")
    found = [lj.generate(model, some, sampler, trace=True) for some in (prompts[:3], prompts[3:])]
    said = [model.tokenizer.decode(ids) for batch in found for ids in batch.generated]
    right = sum(map(task.verify, items, said))
    row = results(finished)["word_problems/threshold/exact_match"]
    assert (row["value"], row["n"], row["items"]) == (right / 6, 6, 6)
    assert row["interval"][0] < row["value"] <= row["interval"][1]
    assert results(finished)["word_problems/threshold/nfe"]["value"] == np.mean([
        batch.nfe for batch in found
    ])  # fmt: skip
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(6))
    assert sum(line["right"] for line in lines) == right


def test_tokens_count_answers_up_to_their_end(finished):
    model = lj.load("tiny")
    for generation in GenerationStore.load(finished / "generations").generations():
        ids = generation.tokens[: generation.length]
        assert ids[-1] == model.config.eot_id
        assert model.config.eot_id not in ids[:-1]
        assert model.tokenizer.decode(ids) == generation.text
        assert len(generation.tokens) == 128


@pytest.mark.slow
def test_tiles_are_read_and_stored_with_the_answers(tmp_path, random_model):
    pytest.importorskip("llvmlite")
    lengths = ["task.gen_length=16", "sampler.block_length=8"]
    model = f"model={random_model}"
    changes = ["sampler=staged", "sampler.refresh=worker", "tiles=q4_0"]
    rows = run(tmp_path, model, "task.items=2", *lengths, *changes)
    assert rows["staged@block_length:8@refresh:worker/q4_0/exact_match"]["n"] == 2
    model = lj.load(random_model)
    tiles = lj.tiled(model)
    store = GenerationStore.load(tmp_path / "generations")
    assert store.settings["tiles"] == "q4_0"
    config = lj.SamplerConfig.from_flat(**store.settings["sampler"])
    assert config.gen_length == 16
    items = [each.item for each in store.generations()]
    prompts = [
        model.tokenizer.encode_chat([{"role": "user", "content": i.question}]) for i in items
    ]
    expected = lj.generate(model, prompts, config, refresh_on=tiles)
    found = [each.tokens for each in store.generations()]
    assert found == [each.tolist() for each in expected.generated]


def test_an_interrupted_run_is_resumed(finished, tmp_path, monkeypatch):
    folder, asked = tmp_path / "run", []

    def interrupted(trial, indices):
        asked.append(indices)
        yield next(answers(trial, indices))
        if indices[0] == 0:
            raise KeyboardInterrupt

    answers = Trial.answers
    monkeypatch.setattr(Trial, "answers", interrupted)
    with pytest.raises(SystemExit, match="130"):
        run(folder, *CELL)
    assert not (folder / "results.json").exists()
    run(folder, *CELL)
    assert asked == [[0, 1, 2, 3, 4, 5], [3, 4, 5]]
    assert texts(folder) == texts(finished)


def test_each_answer_keeps_the_environment_that_decoded_it(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    batches = GenerationStore.load(finished / "generations").batches()
    assert [batch.environment for batch in batches] == [environment()] * 2
    for commit, path in zip("ab", sorted(tmp_path.glob("run/generations/*.jsonl")), strict=True):
        header, *lines = path.read_text().splitlines(keepends=True)
        told = {**environment(), "git_sha": commit * 40, "git_dirty": False}
        header = json.dumps({**json.loads(header), "environment": told}) + "\n"
        path.write_text("".join([header, *lines]))
    run_experiment(report.main, [f"runs=[{tmp_path}/run]", f"hydra.run.dir={tmp_path}/page"])
    page = (tmp_path / "page" / "report.md").read_text()
    jax = environment()["packages"]["jax"]
    assert f"| {'a' * 10} | {jax} " in page and f"| {'b' * 10} | {jax} " in page


def test_more_items_extend_a_run_and_fewer_use_its_first_items(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    assert run(tmp_path / "run", *CELL, "task.items=4")["threshold/exact_match"]["n"] == 4
    assert run(tmp_path / "run", *CELL, "task.items=7")["threshold/exact_match"]["n"] == 7


def test_seconds_of_a_batch_count_only_with_all_its_items(finished):
    def speed(items: int) -> dict[str, float]:
        found = Evaluation.load(finished, items)
        rows = decoder_rows(found.name, [found])
        return {row.name: row.value for row in rows if "tokens_per_second" in row.name}

    first, second = GenerationStore.load(finished / "generations").batches()
    assert first.compiled and not second.compiled
    name = "word_problems/threshold/tokens_per_second"
    tokens = [sum(each.length for each in batch.generations) for batch in (first, second)]
    assert speed(6) == {name: pytest.approx(tokens[1] / second.seconds)}
    assert speed(5) == {f"{name}_with_compilation": pytest.approx(tokens[0] / first.seconds)}
    assert speed(2) == {}


def test_other_settings_are_refused_and_overwrite_nothing(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    before = contents(tmp_path / "run")
    with pytest.raises(SystemExit, match=r"sampler\.threshold is 0\.9 there and 0\.8 here"):
        run(tmp_path / "run", *CELL, "sampler.threshold=0.8")
    assert contents(tmp_path / "run") == before


def test_the_folder_of_another_experiment_is_refused_and_kept(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    before = contents(tmp_path / "run")
    with pytest.raises(SystemExit, match=r"holds a run of another experiment"):
        arguments = [f"runs=[{finished}]", f"hydra.run.dir={tmp_path / 'run'}"]
        run_experiment(report.main, arguments)
    assert contents(tmp_path / "run") == before


def test_a_run_writes_exactly_the_documented_files(finished):
    files = {path.name for path in finished.iterdir()}
    assert files == {"config.yaml", "env.json", "metrics.jsonl", "results.json", "generations"}


def test_a_phone_is_simulated_from_stored_traces(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(lj, "load", None)

    def reported(source: Path, folder: Path) -> None:
        arguments = [f"runs=[{source}]", "phones=[SM8750]", f"hydra.run.dir={folder}"]
        run_experiment(report.main, arguments)

    reported(finished, tmp_path / "page")
    (row,) = (row for name, row in results(tmp_path / "page").items() if "/phone/" in name)
    assert (row["kind"], row["n"]) == ("modelled", 6)
    assert row["trace_source"].startswith("a trace of llada, 4 layers of width 128")
    assert f"| {row['value']:.2f} s |" in (tmp_path / "page" / "report.md").read_text()
    seconds = [
        each.value
        for _, trace in GenerationStore.load(finished / "generations").traces()
        for each in phone_times(trace, ["SM8750"])
        if each.name == "phone/SM8750/this_run"
    ]
    assert min(seconds) / 2 < row["interval"][0] < row["value"] < row["interval"][1]
    shutil.copytree(finished, tmp_path / "old")
    (tmp_path / "old" / "generations" / "000003.trace.npz").unlink()
    with pytest.raises(SystemExit, match=r"has traces of 3 questions; allowed: of all 6"):
        reported(tmp_path / "old", tmp_path / "no")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["yes_no", "sudoku"])
def test_each_task_sets_its_answer_length(task, tmp_path, random_model):
    arguments = [f"model={random_model}", f"task={task}", "task.items=1", "sampler=blockwise"]
    run(tmp_path / "run", *arguments, "sampler.threshold=0.001")
    (generation,) = GenerationStore.load(tmp_path / "run" / "generations").generations()
    assert len(generation.tokens) == load_task(task).gen_length


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.items=0", "items is 0; allowed: 1 or more"),
        ("task.difficulty=9", "difficulty of word_problems is 9; allowed: 0, 1, 2, 3"),
        ("batch_size=0", "batch_size is 0; allowed: 1 or more"),
        ("model=nowhere", "no model at 'nowhere'"),
        ("tiles=q4_0", "tiles is 'q4_0', backend is 'xla' and the sampler has no worker; allowed"),
    ],
)
def test_bad_input_leaves_an_empty_folder(override, message, tmp_path):
    with pytest.raises(SystemExit, match=message):
        run(tmp_path / "run", "model=tiny", override)
    assert not any((tmp_path / "run").iterdir())


@pytest.mark.parametrize("group", ["task", "sampler"])
def test_errors_for_unknown_names_list_the_existing_ones(group, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LLADA_JAX_FULL_ERROR", "1")
    known = {"task": "countdown", "sampler": "fast_dllm"}[group]
    with pytest.raises(ConfigCompositionException, match=rf"(?s){group}/sums.*{known}"):
        run(tmp_path / "run", f"{group}=sums")
    assert not (tmp_path / "run").exists()


def test_a_damaged_file_is_reported_and_kept(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    path = tmp_path / "run" / "generations" / "000003.jsonl"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(SystemExit, match=r"000003\.jsonl is damaged"):
        run(tmp_path / "run", *CELL)
    assert (tmp_path / "run" / "results.json").exists()
