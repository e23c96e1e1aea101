"""Workers that fill one store leave the same files as a single run, even if some are killed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.evaluate import __main__ as entry
from experiments.harness.run import REPOSITORY
from llada_jax.evaluation.evaluate import Trial
from llada_jax.evaluation.generations import GenerationStore
from llada_jax.io.locked import locked
from tests.experiments.in_process import run_experiment

ITEMS = 7


def arguments(model: Path, folder: Path, *others: str) -> list[str]:
    lengths = ["task.gen_length=16", "sampler=threshold", "sampler.block_length=8"]
    sizes = [f"task.items={ITEMS}", "batch_size=2", "places=2"]
    return [f"model={model}", *lengths, *sizes, f"hydra.run.dir={folder}", *others]


def worker(rank: int, count: int = 3) -> list[str]:
    return [f"worker.rank={rank}", f"worker.count={count}"]


@pytest.fixture
def run(random_model, tmp_path):
    def run(*others: str, folder: Path = tmp_path / "run") -> str:
        return run_experiment(entry.main, arguments(random_model, folder, *others))

    return run


@pytest.fixture(scope="module")
def alone(random_model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("evaluate") / "alone"
    run_experiment(entry.main, arguments(random_model, folder))
    return folder


def stored(folder: Path) -> dict[str, object]:
    """Everything in a store except times, compilations, and the worker that filled it first."""
    path = folder / "generations"
    found: dict[str, object] = {}
    for batch, trace in GenerationStore.load(path).traces():
        name = f"{batch.generations[0].index:06d}.jsonl"
        found[name] = (batch.generations, trace.tokens.tolist(), trace.live_rows.tolist())
    settings = json.loads((path / "settings.json").read_text())
    settings.pop("batch_size", None)
    return found | {"settings": settings, "files": sorted(each.name for each in path.iterdir())}


def test_three_workers_with_one_killed_give_the_files_of_a_single_run(
    run, alone, tmp_path, monkeypatch
):
    folder, answers = tmp_path / "run", Trial.answers

    def killed(trial, indices):
        yield next(answers(trial, indices))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trial, "answers", killed)
        with pytest.raises(SystemExit, match="130"):
            run(*worker(0))
    files = sorted(each.name for each in (folder / "generations").glob("*.jsonl"))
    assert files == ["000000.jsonl"], "of its batches, which begin at 0 and 6, one is there"
    (folder / "generations" / f".000006.jsonl.{'0' * 32}.partial").write_text("half")
    assert "worker 1 of 3 decoded 2 items" in run(*worker(1))
    assert "worker 2 of 3 decoded 2 items" in run(*worker(2))
    assert not (folder / "results.json").exists()
    printed = run()
    assert "exact_match" in printed
    assert stored(folder) == stored(alone)
    results = [json.loads((each / "results.json").read_text()) for each in (folder, alone)]
    times = [[row for row in rows if "per_second" not in row["name"]] for rows in results]
    assert times[0] == times[1]
    assert sorted(p.name for p in folder.iterdir()) == sorted(p.name for p in alone.iterdir())


def test_a_killed_worker_is_resumed_and_finishes(run, alone, tmp_path):
    for rank in (2, 0, 1):
        run(*worker(rank))
    assert "worker 2 of 3 decoded 0 items" in run(*worker(2))
    run()
    assert stored(tmp_path / "run") == stored(alone)


@pytest.mark.slow
def test_a_suite_is_shared_so_that_every_rank_has_work(random_model, tmp_path):
    decoder = "{name: hasty, sampler: {threshold: 0.0001, cache: blockwise}}"
    suite = ["suite=decoding", "suite.tasks=[countdown,yes_no]", f"suite.decoders=[{decoder}]"]
    asked = [f"model={random_model}", *suite, "task.items=1", f"hydra.run.dir={tmp_path}"]
    for rank in (0, 1):
        printed = run_experiment(entry.main, [*asked, *worker(rank, 2)])
        assert f"worker {rank} of 2 decoded 1 items" in printed
    assert "exact match" in run_experiment(entry.main, asked)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        (worker(3), r"worker\.rank is 3 of worker\.count=3; allowed: 0 to 2"),
        (worker(-1), r"worker\.rank is -1 of worker\.count=3; allowed: 0 to 2"),
        (worker(0, 0), r"count is 0; allowed: 1 or more"),
    ],
)
def test_ranks_outside_of_the_count_are_refused(run, tmp_path, others, message):
    with pytest.raises(SystemExit, match=message):
        run(*others)
    assert not (tmp_path / "run").exists() or not any((tmp_path / "run").iterdir())


def test_workers_need_a_shared_folder(random_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    without = [each for each in arguments(random_model, tmp_path) if "run.dir" not in each]
    with pytest.raises(SystemExit, match=r"worker\.count is 3 without a folder.*hydra\.run\.dir"):
        run_experiment(entry.main, [*without, *worker(1)])


def test_other_settings_and_other_batches_are_refused(run, tmp_path):
    run(*worker(0))
    before = stored_bytes(tmp_path / "run")
    with pytest.raises(SystemExit, match=r"sampler\.threshold is 0\.9 there and 0\.5 here"):
        run(*worker(1), "sampler.threshold=0.5")
    with pytest.raises(SystemExit, match=r"is filled in batches of 2; allowed: batch_size=2"):
        run(*worker(1), "batch_size=3")
    assert stored_bytes(tmp_path / "run") == before


def stored_bytes(folder: Path) -> dict[Path, bytes]:
    return {each: each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def test_a_rank_runs_once_at_a_time_and_judging_waits(run, tmp_path):
    folder = tmp_path / "run"
    with locked(folder, shared=True), locked(folder, folder / ".worker-1"):
        with pytest.raises(SystemExit, match=rf"in use by process {os.getpid()}"):
            run(*worker(1))
        with pytest.raises(SystemExit, match=r"in use by another process"):
            run()
        assert "worker 0 of 3 decoded 3 items" in run(*worker(0))
    with locked(folder), pytest.raises(SystemExit, match=r"in use by process"):
        run(*worker(2))


def test_a_sweep_ends_with_a_table_and_a_picture_of_its_jobs(random_model, tmp_path):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "sweep"
    swept = [each for each in arguments(random_model, folder) if "run.dir" not in each]
    job = [*swept, "task.items=2", "sampler.threshold=0.3,0.9", f"hydra.sweep.dir={folder}"]
    printed = run_experiment(entry.main, ["-m", *job])
    page = (folder / "report.md").read_text()
    assert page in printed
    assert re.search(r"^\| decoder .* exact match", page, re.MULTILINE)
    assert "| threshold 0.3 |" in page and "| threshold 0.9 |" in page
    pictures = re.findall(r"\(([\w-]+\.png)\)", page)
    assert len(pictures) == 2 and all((folder / each).stat().st_size > 5000 for each in pictures)
    names = {row["name"] for row in json.loads((folder / "results.json").read_text())}
    assert any(name.endswith("/exact_match") for name in names)


@pytest.mark.slow
def test_workers_of_a_sweep_share_each_of_its_jobs(random_model, tmp_path):
    folder = tmp_path / "sweep"
    swept = [each for each in arguments(random_model, folder) if "run.dir" not in each]
    job = ["-m", *swept, "sampler.threshold=0.3,0.9", f"hydra.sweep.dir={folder}"]
    for rank in (0, 1):
        printed = run_experiment(entry.main, [*job, *worker(rank, 2)])
        assert len(re.findall(rf"worker {rank} of 2 decoded [34] items", printed)) == 2
    assert not (folder / "report.md").exists()
    run_experiment(entry.main, job)
    assert {each.name for each in folder.iterdir()} >= {"0", "1"}
    for each in ("0", "1"):
        assert len(GenerationStore.load(folder / each / "generations").generations()) == ITEMS


def command(arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "experiments.evaluate", *arguments]


@pytest.mark.slow
def test_a_process_killed_by_a_signal_only_loses_its_batch(random_model, alone, tmp_path):
    folder = tmp_path / "run"
    first = [*arguments(random_model, folder), *worker(0)]
    process = subprocess.Popen(command(first), cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    while not list(folder.glob("generations/*.jsonl")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    others = [
        subprocess.Popen(command([*arguments(random_model, folder), *worker(rank)]), cwd=REPOSITORY)
        for rank in (1, 2)
    ]
    assert [each.wait(timeout=300) for each in others] == [0, 0]
    run_experiment(entry.main, arguments(random_model, folder))
    assert stored(folder) == stored(alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"], ["hydra/launcher=submitit_local"]],
    ids=["joblib", "submitit"],
)
def test_launchers_start_workers(launcher, random_model, alone, tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    folder = tmp_path / "run"
    shared = [f"hydra.sweep.dir={folder}", "hydra.sweep.subdir=.", "worker.rank=0,1,2"]
    swept = [each for each in arguments(random_model, folder) if "run.dir" not in each]
    started = command(["-m", *swept, *shared, "worker.count=3", *launcher])
    done = subprocess.run(started, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run_experiment(entry.main, arguments(random_model, folder))
    assert stored(folder) == stored(alone)
