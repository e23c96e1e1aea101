"""The suite `loading`: what it costs to see that every number of a checkpoint is finite."""

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import jax

import llada_jax as lj
from experiments.bench.spread import require_quartiles, spread
from experiments.harness.results import ResultRow
from llada_jax.checkpoint import load_params, save_huggingface, sources


def time_loading(model: lj.Model, repeats: int) -> Iterator[ResultRow]:
    """Returns the rows of the suite: seconds of loading as stored, from the system's cache, with
    and without the check, in turns. Raises ValueError for fewer repeats than quartiles need."""
    require_quartiles(repeats)
    return _timed(model, repeats)


def _timed(model: lj.Model, repeats: int) -> Iterator[ResultRow]:
    with TemporaryDirectory() as folder:
        save_huggingface(Path(folder), model.config, model.params)
        pairs = [_pair(Path(folder)) for _ in range(repeats + 1)][1:]  # the first one warms up
    for way in ("unchecked", "checked"):
        yield from spread(f"loading/{way}", [pair[way] for pair in pairs], "s")
    ratios = [pair["checked"] / pair["unchecked"] for pair in pairs]
    yield from spread("loading/checked vs unchecked", ratios, "x as long")


def _pair(folder: Path) -> dict[str, float]:
    with patch.object(sources, "all_finite", lambda numbers: True):
        unchecked = _seconds(folder)
    return {"unchecked": unchecked, "checked": _seconds(folder)}


def _seconds(folder: Path) -> float:
    began = time.perf_counter()
    jax.block_until_ready(load_params(folder)[1])
    return time.perf_counter() - began
