"""With which commit, versions and machine a run was made, also where it went on under others."""

from collections.abc import Iterator, Mapping, Sequence
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
_UNKNOWN = {"git_dirty": None, "git_sha": None, "packages": {}, "processor": "unknown"}


def environment_lines(folder: Path) -> list[dict[str, str]]:
    """Returns a line for each environment that decoded answers of a run, in the order of its
    answers; of a run whose answers say nothing, or that has none, the line of `env.json`.

    Versions are jax's, and all that differ between the lines. Raises ValueError for a damaged file.
    """
    decoded = list(_of_answers(folder))
    found = _distinct([each or _UNKNOWN for each in decoded])
    if not any(decoded):
        found = [stored_object(environment_file(folder), _ENVIRONMENT)]
    known = [each["packages"] for each in found if each["packages"]]
    differing = {
        name for name in set().union(*known) if len({each.get(name) for each in known}) > 1
    }
    names = ["jax", *sorted(differing - {"jax"})]
    return _distinct([_line(folder, each, names) for each in found])


def environment_file(folder: Path) -> Path:
    """Returns where a run wrote how it was last begun; for a suite's cell the suite did."""
    of_cell = (folder / GENERATIONS).is_dir() and folder.absolute().parent.name == CELLS
    return (folder.absolute().parent.parent if of_cell else folder) / "env.json"


def _line(folder: Path, environment: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    changed = ", changed" if environment["git_dirty"] else ""
    packages = environment["packages"]
    told = [f"{name} {packages[name]}" if name in packages else f"no {name}" for name in names]
    return {
        "run": str(folder),
        "commit": f"{(environment['git_sha'] or 'unknown')[:10]}{changed}",
        "versions": ", ".join(told) if packages else "unknown",
        "machine": environment["processor"],
    }


def _of_answers(folder: Path) -> Iterator[Mapping[str, Any] | None]:
    """Yields that of each batch, also of the cells of a suite."""
    for path in (folder / GENERATIONS, *sorted(folder.glob(f"{CELLS}/*/{GENERATIONS}"))):
        for batch in GenerationStore.load(path).batches() if path.is_dir() else ():
            told = batch.environment
            yield None if told is None else require_object(told, path, _ENVIRONMENT)


def _distinct(found: Sequence[Any]) -> list[Any]:
    return [each for place, each in enumerate(found) if each not in found[:place]]
