"""Reads the runs of a report: their folders, results, training metrics, baselines and environments.

A run that was interrupted and resumed may have answers from several commits or machines, so the
environment is read from the answers; a run without them has one in `env.json`. Every file is
checked before the report writes anything.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.evaluate.config import CELLS
from experiments.evaluate.result_rows import decoder_rows
from experiments.harness.pictures import PROBE_SUFFIX, ScorePoint
from llada_jax.config import numbered_lines, require
from llada_jax.evaluation.comparison import score_cells
from llada_jax.evaluation.generations import GenerationStore
from llada_jax.evaluation.graded import GENERATIONS, Evaluation
from llada_jax.evaluation.stored import parsed, require_object, stored_object, stored_text

_NUMBER = (int, float)
_RESULT = {
    **{"name": str, "value": _NUMBER, "unit": str, "kind": str},
    **{"reference": (*_NUMBER, type(None)), "source": (str, type(None)), "interval": list},
}
_UNSET = {"reference": None, "source": None, "interval": []}
_CURVES = {"step", "loss", "accuracy"}
_WEIGHTS = ("model", "fingerprint", "dtype")  # a baseline must agree in these
_SURROUNDINGS = ("backend", "tiles", "seed")  # and in these, if one of several does
_ENVIRONMENT = {
    "git_dirty": (bool, type(None)),
    "git_sha": (str, type(None)),
    "packages": dict,
    "processor": str,
}


class DecoderRun:
    """One run of `experiments.evaluate`, with the cells of its line in the table."""

    def __init__(self, folder: Path, phones: Sequence[str] = ()) -> None:
        self.folder, self.phones = folder, phones
        self.found = Evaluation.load(folder)
        self.settings = self.found.settings
        self.sampler: str = self.settings["sampler_name"]
        rows = decoder_rows(self.found.name, [self.found], phones)
        self.rows = {row.name: row for row in rows}

    @property
    def task(self) -> str:
        """The task's name with the settings that choose its items."""
        task = self.settings["task"]
        keys = ("version", "difficulty", "seed", "prompts")
        parts = [f"{key} {task[key]}" for key in keys if key in task]
        return ", ".join([task["name"], *parts])

    @property
    def cells(self) -> dict[str, str]:
        """The cells of the table, by column."""
        name, rows = self.found.name, self.rows
        match = rows[f"{name}/exact_match"]
        speed = next(row for row in rows.values() if "/tokens_per_second" in row.name)
        compiling = "" if speed.name.endswith("second") else " (compiling)"
        return {
            "items": str(match.items),
            "questions": str(match.n),
            **score_cells(self.found.tally),
            "tokens/s": f"{speed.value:.0f}{compiling}",
            **{soc: f"{rows[f'{name}/phone/{soc}'].value:.2f} s" for soc in self.phones},
        }

    @property
    def share(self) -> ScorePoint:
        """The exact match with its interval, at the tokens per forward."""
        return ScorePoint(self.found.tpf, self.found.score, *self.found.interval)


def baseline_of(decoder: DecoderRun, baselines: Sequence[DecoderRun]) -> DecoderRun | None:
    """Returns the one of `baselines` to compare a decoder with, or None if none has its task and
    weights. Of several, it is the one that agrees in backend, then tiles, then seed. Raises
    ValueError if that leaves more than one."""
    candidates = [run for run in baselines if run.task == decoder.task]
    for setting in (*_WEIGHTS, *_SURROUNDINGS):
        value = decoder.settings.get(setting)
        agreeing = [run for run in candidates if run.settings.get(setting) == value]
        candidates = agreeing if setting in _WEIGHTS else agreeing or candidates
    require(
        len(candidates) <= 1,
        f"the baseline of {decoder.folder} could be any of "
        f"{', '.join(str(run.folder) for run in candidates)}; allowed: one run of it for each "
        "task, model, dtype, backend, tiles and seed",
    )
    return candidates[0] if candidates else None


def runs_in(folder: Path) -> list[Path]:
    """Returns the folder itself if it is a run, else the runs in it, ordered by name."""
    if _environment_file(folder).is_file():
        return [folder]
    jobs = (job for job in folder.glob("*") if _environment_file(job).is_file())
    return sorted(jobs, key=lambda job: (len(job.name), job.name))


def is_evaluation(folder: Path) -> bool:
    return (folder / GENERATIONS).is_dir()


def training_metrics(folder: Path) -> list[dict[str, float]]:
    path = folder / "metrics.jsonl"
    lines = numbered_lines(path) if path.is_file() else ()
    rows = [require_object(parsed(line, path), path, {}) for _, line in lines]
    rows = [row for row in rows if _CURVES <= row.keys()]
    for row in rows:
        drawn = [row[key] for key in row if key in _CURVES or key.endswith(PROBE_SUFFIX)]
        _require_finite(path, drawn)
    return rows


def stored_results(folder: Path) -> list[dict[str, Any]]:
    path = folder / "results.json"
    require(path.is_file(), f"{folder} has no results.json; allowed: a run that finished")
    rows = parsed(stored_text(path), path)
    require(isinstance(rows, list), f"{path} is damaged: it has {str(rows)[:60]}; allowed: a list")
    for row in rows:
        result = _UNSET | require_object(row, path, {})
        require_object(result, path, _RESULT)
        _require_finite(path, [result["value"], result["reference"] or 0, *result["interval"]])
        texts = "".join(result[key] or "" for key in ("name", "unit", "kind", "source"))
        surrogate = re.search("[\ud800-\udfff]", texts)
        require(surrogate is None, f"{path} is damaged: {texts!r:.60} is no text; allowed: Unicode")
    return rows


def _require_finite(path: Path, numbers: Sequence[Any]) -> None:
    for value in numbers:
        finite = type(value) in _NUMBER and abs(value) <= sys.float_info.max
        require(finite, f"{path} is damaged: it has {value!r:.60}; allowed: finite numbers")


def environment_lines(folder: Path) -> list[dict[str, str]]:
    """Returns a table line for each environment that a run's answers come from, in their order, or
    the environment of `env.json` if the answers have none. Raises ValueError for a damaged file."""
    environments = list(_environments_of_answers(folder))
    if not any(environments):
        environments = [stored_object(_environment_file(folder), _ENVIRONMENT)]
    lines = [_line(folder, environment) for environment in environments]
    return [line for index, line in enumerate(lines) if line not in lines[:index]]


def _environment_file(folder: Path) -> Path:
    """Returns the path of a run's `env.json`; cells of a suite share the suite's file."""
    is_cell = (folder / GENERATIONS).is_dir() and folder.absolute().parent.name == CELLS
    return (folder.absolute().parent.parent if is_cell else folder) / "env.json"


def _line(folder: Path, environment: Mapping[str, Any] | None) -> dict[str, str]:
    known = environment or {"packages": {}}
    changed = ", changed" if known.get("git_dirty") else ""
    return {
        "run": str(folder),
        "commit": (known.get("git_sha") or "unknown")[:10] + changed,
        "jax": known["packages"].get("jax", "unknown"),
        "machine": known.get("processor", "unknown"),
    }


def _environments_of_answers(folder: Path) -> Iterator[Mapping[str, Any] | None]:
    """Yields the environment of each stored batch, also of a suite's cells; None if unknown."""
    for path in (folder / GENERATIONS, *sorted(folder.glob(f"{CELLS}/*/{GENERATIONS}"))):
        for batch in GenerationStore.load(path).batches() if path.is_dir() else ():
            known = batch.environment
            yield None if known is None else require_object(known, path, _ENVIRONMENT)
