"""Runs that a report shows: where they are, what they hold, what they are compared with, and with
which commit, JAX and machine they were made, also where they went on under others."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.evaluate.config import CELLS
from experiments.evaluate.result_rows import decoder_rows
from experiments.evaluate.score_table import score_cells
from experiments.harness.pictures import PROBED, ScorePoint
from llada_jax.config import numbered_lines, require
from llada_jax.evaluation.generations import GenerationStore
from llada_jax.evaluation.graded import GENERATIONS, Evaluation
from llada_jax.evaluation.stored import parsed, require_object, stored_object, stored_text

_NUMBER = (int, float)
_RESULT = {
    **{"name": str, "value": _NUMBER, "unit": str, "kind": str},
    **{"reference": (*_NUMBER, type(None)), "source": (str, type(None)), "interval": list},
}
_UNSET = {"reference": None, "source": None, "interval": []}
_DRAWN = {"step", "loss", "accuracy"}
_WEIGHTS = ("model", "fingerprint", "dtype")  # a baseline's are those of what it is compared with
_SURROUNDINGS = ("backend", "tiles", "seed")  # those too, where the baseline was run with several
_ENVIRONMENT = {
    "git_dirty": (bool, type(None)),
    "git_sha": (str, type(None)),
    "packages": dict,
    "processor": str,
}


class DecoderRun:
    """One run of `experiments.evaluate`, with the numbers that the tables show."""

    def __init__(self, folder: Path, phones: Sequence[str] = ()) -> None:
        self.folder, self.phones = folder, phones
        self.found = Evaluation.load(folder)
        self.settings = self.found.settings
        self.sampler: str = self.settings["sampler_name"]
        rows = decoder_rows(self.found.name, [self.found], phones)
        self.rows = {row.name: row for row in rows}

    @property
    def task(self) -> str:
        """Returns its name with what else decides its items."""
        task = self.settings["task"]
        parts = [f"{key} {task[key]}" for key in ("version", "difficulty", "seed")]
        return ", ".join([task["name"], *parts])

    @property
    def cells(self) -> dict[str, str]:
        """Returns its line of a table."""
        name, rows = self.found.name, self.rows
        match = rows[f"{name}/exact_match"]
        speed = next(row for row in rows.values() if "/tokens_per_second" in row.name)
        compiling = "" if speed.name.endswith("second") else " (compiling)"
        return {
            "items": str(match.items),
            "questions": str(match.n),
            **score_cells(rows, name),
            "tokens/s": f"{speed.value:.0f}{compiling}",
            **{soc: f"{rows[f'{name}/phone/{soc}'].value:.2f} s" for soc in self.phones},
        }

    @property
    def share(self) -> ScorePoint:
        """Returns its exact match at its tokens per forward."""
        return ScorePoint(self.found.tpf, self.found.score, *self.found.interval)


def baseline_of(
    decoder: DecoderRun, decoders: Sequence[DecoderRun], sampler: str | None
) -> DecoderRun | None:
    """Returns the run of a sampler that a decoder of the same task is compared with, if there is
    one: with the same weights, and of several the one that agrees in backend, tiles and seed as far
    as one does. Raises ValueError where it could be any of several."""
    found = [each for each in decoders if each.sampler == sampler]
    for setting in (*_WEIGHTS, *_SURROUNDINGS):
        value = decoder.settings.get(setting)
        agreeing = [each for each in found if each.settings.get(setting) == value]
        found = agreeing if setting in _WEIGHTS else agreeing or found
    require(
        len(found) <= 1,
        f"baseline {sampler!r} of {decoder.folder} could be any of "
        f"{', '.join(str(each.folder) for each in found)}; allowed: one run of it for each task, "
        "model, dtype, backend, tiles and seed",
    )
    return found[0] if found else None


def runs_in(folder: Path) -> list[Path]:
    """Returns the folder where it is a run; else those in it, in the order of their names."""
    if environment_file(folder).is_file():
        return [folder]
    jobs = (each for each in folder.glob("*") if environment_file(each).is_file())
    return sorted(jobs, key=lambda job: (len(job.name), job.name))


def is_evaluation(folder: Path) -> bool:
    return (folder / GENERATIONS).is_dir()


def training_metrics(folder: Path) -> list[dict[str, float]]:
    path = folder / "metrics.jsonl"
    lines = numbered_lines(path) if path.is_file() else ()
    rows = [require_object(parsed(line, path), path, {}) for _, line in lines]
    rows = [row for row in rows if _DRAWN <= row.keys()]
    for row in rows:
        drawn = [row[key] for key in row if key in _DRAWN or key.endswith(PROBED)]
        _require_finite(path, drawn)
    return rows


def stored_results(folder: Path) -> list[dict[str, Any]]:
    path = folder / "results.json"
    require(path.is_file(), f"{folder} has no results.json; allowed: a run that finished")
    rows = parsed(stored_text(path), path)
    require(isinstance(rows, list), f"{path} is damaged: it has {str(rows)[:60]}; allowed: a list")
    for row in rows:
        found = _UNSET | require_object(row, path, {})
        require_object(found, path, _RESULT)
        _require_finite(path, [found["value"], found["reference"] or 0, *found["interval"]])
        texts = "".join(found[key] or "" for key in ("name", "unit", "kind", "source"))
        lone = re.search("[\ud800-\udfff]", texts)
        require(lone is None, f"{path} is damaged: {texts!r:.60} is no text; allowed: Unicode")
    return rows


def _require_finite(path: Path, numbers: Sequence[Any]) -> None:
    for each in numbers:
        finite = type(each) in _NUMBER and abs(each) <= sys.float_info.max
        require(finite, f"{path} is damaged: it has {each!r:.60}; allowed: finite numbers")


def environment_lines(folder: Path) -> list[dict[str, str]]:
    """Returns a line for each environment that decoded answers of a run, in the order of its
    answers; of a run whose answers say nothing, or that has none, the line of `env.json`. Raises
    ValueError for a damaged file."""
    decoded = list(_of_answers(folder))
    if not any(decoded):
        decoded = [stored_object(environment_file(folder), _ENVIRONMENT)]
    lines = [_line(folder, each) for each in decoded]
    return [each for place, each in enumerate(lines) if each not in lines[:place]]


def environment_file(folder: Path) -> Path:
    """Returns where a run wrote how it was last begun; for a suite's cell the suite did."""
    of_cell = (folder / GENERATIONS).is_dir() and folder.absolute().parent.name == CELLS
    return (folder.absolute().parent.parent if of_cell else folder) / "env.json"


def _line(folder: Path, environment: Mapping[str, Any] | None) -> dict[str, str]:
    told = environment or {"packages": {}}
    changed = ", changed" if told.get("git_dirty") else ""
    return {
        "run": str(folder),
        "commit": (told.get("git_sha") or "unknown")[:10] + changed,
        "jax": told["packages"].get("jax", "unknown"),
        "machine": told.get("processor", "unknown"),
    }


def _of_answers(folder: Path) -> Iterator[Mapping[str, Any] | None]:
    """Yields that of each batch, also of the cells of a suite."""
    for path in (folder / GENERATIONS, *sorted(folder.glob(f"{CELLS}/*/{GENERATIONS}"))):
        for batch in GenerationStore.load(path).batches() if path.is_dir() else ():
            told = batch.environment
            yield None if told is None else require_object(told, path, _ENVIRONMENT)
