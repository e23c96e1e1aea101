"""The suite `loading`: what it costs to see that every number of a checkpoint is finite."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import jax

import llada_jax as lj
from experiments.bench.spread import require_quartiles, spread
from experiments.harness.results import ResultRow
from llada_jax.checkpoint import save_huggingface, sources


def time_loading(model: lj.Model, repeats: int) -> Iterator[ResultRow]:
    """Returns the rows of the suite: seconds of `lj.load` as stored, from the system's cache, with
    and without the check, in turns; of files that are loaded first, and so hashed, and again.
    Raises ValueError for fewer repeats than quartiles need."""
    require_quartiles(repeats)
    return _timed(model, repeats)


def _timed(model: lj.Model, repeats: int) -> Iterator[ResultRow]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        save_huggingface(folder, model.config, model.params)
        for time_of in (_first, _again):
            _ = time_of(folder)  # the first one warms up
            pairs = [_pair(time_of, folder) for _ in range(repeats)]
            prefix = f"loading/{time_of.__name__.strip('_')}"
            for way in ("unchecked", "checked"):
                yield from spread(f"{prefix}/{way}", [pair[way] for pair in pairs], "s")
            ratios = [pair["checked"] / pair["unchecked"] for pair in pairs]
            yield from spread(f"{prefix}/checked vs unchecked", ratios, "x as long")


def _pair(time_of: Callable[[Path], float], folder: Path) -> dict[str, float]:
    with patch.object(sources, "all_finite", lambda numbers: True):
        unchecked = time_of(folder)
    return {"unchecked": unchecked, "checked": time_of(folder)}


def _first(folder: Path) -> float:
    """Loads files whose content nobody knows, as their times are new."""
    for file in folder.iterdir():
        file.touch()
    return _again(folder)


def _again(folder: Path) -> float:
    began = time.perf_counter()
    jax.block_until_ready(lj.load(folder).params)
    return time.perf_counter() - began
