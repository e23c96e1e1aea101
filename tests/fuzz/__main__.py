"""Damages files of every kind, loads them, and prints the outcomes.

    python -m tests.fuzz --cases 2000 --seed 0 --kinds safetensors gguf

Each kind runs in a separate process, forked from this one: a crash costs one case, and the next
process goes on after it.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from llada_jax.checkpoint import fingerprint
from llada_jax.io.content import content_hash
from tests.fuzz.judge import BAD, CRASH, GOOD, HANG, LAX, OTHER, RAW, Verdict, Watch, digest, judge
from tests.fuzz.kinds import KINDS, Kind, Safetensors

WALL_SECONDS, _POLL_SECONDS = 180, 0.02
BROKEN = 86
"""The exit code of a process in which the fuzzer itself fails."""


class Case(NamedTuple):
    kind: str
    index: int
    label: str
    outcome: str
    detail: str


def fuzz(cases: int, seed: int, kinds: Iterable[str] = KINDS) -> list[Case]:
    """Runs about `cases` cases; 200 give the numbers of each kind in `KINDS`."""
    found = []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        for kind in kinds:
            root = Path(folder).resolve() / kind.replace(" ", "-").replace(".", "-")
            root.mkdir()
            (root / "outside").mkdir()
            count = max(1, cases * KINDS[kind][1] // 200)
            found += _run_kind(kind, root, count, seed)
    return found


def _run_kind(kind: str, root: Path, count: int, seed: int) -> list[Case]:
    log, found = root / "log", []
    while len(found) < count:
        log.write_text("")
        child = os.fork()
        if child == 0:
            _child(kind, root, range(len(found), count), seed)
        end = _wait(child, log)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        found += [Case(*line[1:]) for line in lines if line[0] == "end"]
        if os.WIFEXITED(end) and os.WEXITSTATUS(end) == 0:
            break
        begun = [line for line in lines if line[0] == "begin"]
        if (os.WIFEXITED(end) and os.WEXITSTATUS(end) == BROKEN) or not begun:
            raise RuntimeError(f"{kind}: {(root / 'stderr').read_text()[-2000:]}")
        hung = os.WIFSIGNALED(end) and os.WTERMSIG(end) == signal.SIGKILL
        found.append(Case(*begun[-1][1:], HANG if hung else CRASH, f"wait status {end}"))
    return found


def _wait(child: int, log: Path) -> int:
    """Waits for a process, and kills it if a case takes too long. Time in which the machine or a
    debugger stops both processes does not count."""
    size, waited = 0, 0.0
    while True:
        done, end = os.waitpid(child, os.WNOHANG)
        if done:
            return end
        if log.stat().st_size != size:
            size, waited = log.stat().st_size, 0.0
        if waited > WALL_SECONDS:
            os.kill(child, signal.SIGKILL)
            waited = 0.0
        time.sleep(_POLL_SECONDS)
        waited += _POLL_SECONDS


def _child(kind: str, root: Path, indices: Sequence[int], seed: int) -> None:
    end = BROKEN
    try:
        _quiet(root)
        _run_cases(kind, root, indices, seed)
        end = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(end)


def _quiet(root: Path) -> None:
    """Redirects the libraries' output to a file, which is emptied for each process."""
    target = os.open(root / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.chdir(root)


def _run_cases(kind: str, root: Path, indices: Sequence[int], seed: int) -> None:
    made, valid, case = KINDS[kind][0], root / "cases" / "valid", root / "cases" / "case"
    if not valid.exists():
        made.build(valid)
        shutil.copytree(valid, root / "outside", dirs_exist_ok=True)
    _fresh(valid, case)
    expected = digest(made.load(case))
    watch = Watch(root)
    watch.install()
    with (root / "log").open("a") as log:
        for index in indices:
            rng = Random(f"{seed} {kind} {index}")
            _fresh(valid, case)
            damage = made.damage(rng, case)
            about = (kind, index, damage.label)
            print(json.dumps(["begin", *about]), file=log, flush=True)
            options = {"states": damage.states_other, "raw": damage.raw_weights}
            verdict = judge(watch, case, lambda: made.load(case), expected, **options)
            if isinstance(made, Safetensors) and verdict.outcome in (*GOOD[1:], OTHER):
                if made.refuses(case):
                    verdict = Verdict(LAX)
            if verdict.outcome == RAW:
                before, now = (_identity(made, folder)[:12] for folder in (valid, case))
                verdict = Verdict(OTHER if before == now else RAW, f"content {before} is {now}")
            print(json.dumps(["end", *about, *verdict]), file=log, flush=True)


def _identity(made: Kind, folder: Path) -> str:
    """Returns the package's content hash of the weights, or else of all files."""
    weights = getattr(made, "weights", None)
    if weights is None:
        return content_hash(folder, folder.iterdir())
    return fingerprint(folder / weights)


def _fresh(valid: Path, case: Path) -> None:
    shutil.rmtree(case, ignore_errors=True)
    shutil.copytree(valid, case)


def table(cases: Sequence[Case]) -> str:
    """Returns a table of outcomes by kind; the last row is the total."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for case in cases:
        counts[case.kind][case.outcome] += 1
        counts["all"][case.outcome] += 1
    shown = [outcome for outcome in (*GOOD, *BAD)]
    rows = [["kind", "cases", *shown]]
    for kind in [*(each for each in counts if each != "all"), "all"]:
        rows.append([kind, str(counts[kind].total()), *(str(counts[kind][each]) for each in shown)])
    return "\n".join(
        "| " + " | ".join(row) + " |" for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--all", action="store_true", help="print good outcomes, too")
    asked = parser.parse_args()
    found = fuzz(asked.cases, asked.seed, asked.kinds)
    for case in found:
        if asked.all or case.outcome in BAD:
            print(f"{case.kind} {case.index}: {case.outcome}: {case.label}\n    {case.detail}")
    print(table(found))
    sys.exit(any(case.outcome in BAD for case in found))


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
