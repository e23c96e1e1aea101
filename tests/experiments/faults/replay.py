"""Runs a verb repeatedly, with a fault at a later place each time. A program, run with `faults.c`.

    LD_PRELOAD=faults.so python -m tests.experiments.faults.replay VERB MODEL FOLDER FIRST STRIDE

Fault number n is the n-th write, rename or fsync below the folder; its kind follows from n, or all
three kinds are tried if the stride is 0. After each fault every file under its final name is
complete, and the same command then reaches the result of a run without faults.
"""

import contextlib
import ctypes
import io
import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from experiments import export
from experiments.evaluate import __main__ as evaluate
from experiments.train import __main__ as train
from tests.experiments.in_process import run_experiment

FULL, BROKEN, GONE = KINDS = (1, 2, 3)
SHAPE = "width=8 n_layers=1 n_heads=2 n_kv_heads=2 head_dim=4 ffn_width=8".split()
STAGES = "data.stages=[{steps: 1}]"
TRAIN = [
    *(f"model.{each}" for each in SHAPE),
    *"train.steps=2 train.start=random train.warmup_steps=1 train.decay_steps=1".split(),
    *"train.batch_size=1 train.log_every=1 train.checkpoint_every=1".split(),
    *"train.length_multiple=256 train.group_steps=1 train.keep_checkpoints=1".split(),
    *"train.evaluate_every=0 train.optimizer=adamw tokenizer.vocab_size=300".split(),
    *"score.items=1 score.batch_size=1 score.probe_items=1".split(),
    *("data.tasks=[{name: countdown, difficulties: [0]}]", STAGES),
]
EVALUATE = "task=countdown task.items=2 task.difficulty=0 batch_size=1 sampler=threshold".split()
EXPORT = "rows=[8] caches=[32] quant=int8".split()


MAINS = {"train": train.main, "evaluate": evaluate.main, "export": export.main}


def arguments(verb: str, model: str, folder: Path) -> list[str]:
    """The command line of a verb in short form."""
    settings = {
        "train": TRAIN,
        "evaluate": [*EVALUATE, f"model={model}"],
        "export": [*EXPORT, f"model={model}", f"out={folder}/out"],
    }[verb]
    return [*settings, f"hydra.run.dir={folder}/run"]


def command(verb: str, model: str, folder: Path) -> None:
    """Runs a verb as its command does; raises SystemExit if it fails."""
    with contextlib.redirect_stderr(io.StringIO()):
        run_experiment(MAINS[verb], arguments(verb, model, folder))


def snapshot(verb: str, folder: Path) -> dict[str, object]:
    """The files of a finished run, except for times."""
    run = folder / "run"
    found: dict[str, object] = {}
    places = {
        "train": ("run/model", "run/tokenizer"),
        "evaluate": (),
        "export": ("out",),
    }[verb]
    for place in places:
        for path in sorted((folder / place).rglob("*")):
            if path.is_file():
                found[str(path.relative_to(folder))] = content(path)
    if verb == "evaluate":
        for path in sorted((run / "generations").glob("*.jsonl")):
            found[path.name] = [json.loads(line) for line in path.read_text().splitlines()][1:]
    if verb != "export":
        rows = json.loads((run / "results.json").read_text())
        found["results"] = [row for row in rows if not row["unit"].endswith(("s", "/s"))]
        found["metrics"] = content(run / "metrics.jsonl")
    names = (path.name for path in folder.rglob("*"))
    found["left"] = sorted(name for name in names if name.endswith((".partial", ".lock")))
    return found


def content(path: Path) -> object:
    """The bytes of a file, or of JSON lines the values without times."""
    if path.suffix != ".jsonl":
        return path.read_bytes()
    rows = map(json.loads, path.read_text().splitlines())
    return [{key: each for key, each in row.items() if "second" not in key} for row in rows]


def require_whole(verb: str, folder: Path, reference: dict[str, object]) -> None:
    """Raises if a file under its final name is incomplete."""
    for path in folder.rglob("*.json"):
        if ".partial" not in str(path) and "tmp" not in str(path):
            json.loads(path.read_text())
    for name, whole in reference.items():
        if (folder / name).is_file():
            assert content(folder / name) == whole, f"{name} is half-written"
    for name in {"train": ("run/model",), "evaluate": (), "export": ("out",)}[verb]:
        if (folder / name).exists():
            lacking = [each for each in reference if each.startswith(f"{name}/")
                       and not (folder / each).exists()]  # fmt: skip
            assert not lacking, f"{name} lacks {lacking}"


def faults(last: int, first: int, stride: int) -> Iterator[tuple[int, int]]:
    if stride:
        yield from ((n, KINDS[i % 3]) for i, n in enumerate(range(first, last + 1, stride)))
    else:
        yield from ((n, kind) for kind in KINDS for n in range(first, last + 1))


def main(verb: str, model: str, folder: Path, first: int, stride: int) -> None:
    library = ctypes.CDLL(None)

    def arm(n: int, kind: int) -> None:
        library.faults_arm(str(folder).encode(), ctypes.c_long(n), kind)

    def anew() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    anew()
    command(verb, model, folder)
    anew()
    arm(0, 0)
    command(verb, model, folder)
    last = library.faults_calls()
    reference = snapshot(verb, folder)
    began, codes = time.perf_counter(), []
    for n, kind in faults(last, first, stride):
        anew()
        arm(n, kind)
        code: object = 0
        try:
            command(verb, model, folder)
        except SystemExit as error:
            code = error.code
        arm(0, 0)
        where = f"{verb}, fault {n} of {last}, kind {kind}"
        codes.append(code)
        assert code in (0, 74), f"{where}: {code}"
        require_whole(verb, folder, reference)
        is_complete = verb == "export" and (folder / "out").exists()
        if not is_complete:  # else it fails since the folder exists
            command(verb, model, folder)
        found = snapshot(verb, folder)
        if is_complete:  # the run folder keeps leftovers, since no run resumes in it
            found["left"] = reference["left"]
        different = [key for key in reference if found.get(key) != reference[key]]
        assert not different and found.keys() == reference.keys(), f"{where}: {different} differ"
    seconds = time.perf_counter() - began
    counts = {code: codes.count(code) for code in (0, 74)}
    print(f"{verb}: {len(codes)} faults of {last}, codes {counts}, {seconds:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
