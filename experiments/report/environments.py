"""With which commit, JAX and machine a run was made, also where it went on under others."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.evaluate.config import CELLS
from llada_jax.evaluation.generations import GenerationStore
from llada_jax.evaluation.graded import GENERATIONS
from llada_jax.evaluation.stored import require_object, stored_object

_ENVIRONMENT = {
    "git_dirty": (bool, type(None)),
    "git_sha": (str, type(None)),
    "packages": dict,
    "processor": str,
}


def environment_lines(folder: Path) -> list[dict[str, str]]:
    """Returns a line for each environment that decoded answers of a run, in the order of its
    answers; of a run whose answers say nothing, or that has none, the line of `env.json`.

    Raises ValueError for a damaged file.
    """
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
    run = {"run": str(folder)}
    if environment is None:
        return run | dict.fromkeys(("commit", "jax", "machine"), "unknown")
    changed = ", changed" if environment["git_dirty"] else ""
    return run | {
        "commit": f"{(environment['git_sha'] or 'unknown')[:10]}{changed}",
        "jax": environment["packages"].get("jax", "unknown"),
        "machine": environment["processor"],
    }


def _of_answers(folder: Path) -> Iterator[Mapping[str, Any] | None]:
    """Yields that of each batch, also of the cells of a suite."""
    for path in (folder / GENERATIONS, *sorted(folder.glob(f"{CELLS}/*/{GENERATIONS}"))):
        for batch in GenerationStore.load(path).batches() if path.is_dir() else ():
            told = batch.environment
            yield None if told is None else require_object(told, path, _ENVIRONMENT)
