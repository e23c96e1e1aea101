"""Many decoders on many tasks, in one table: `python -m experiments.evaluate suite=decoding`.

The run folder gets `cells/<decoder>-<task>/generations`, from which the table can be made again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException
from tqdm import tqdm

from experiments.cell import Cell, TaskConfig
from experiments.judged import CELLS, Judged, decoder_rows, difference_rows, judged
from experiments.results import ResultRow
from experiments.run import CONFIG, Run, stored_settings
from experiments.schema import read_config
from experiments.tiled import check_tiles
from llada_jax.config import SamplerConfig, require
from llada_jax.evaluation.metrics import paired
from llada_jax.evaluation.tasks import load_task


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """A decoder by name. Its lengths are those of each task."""

    name: str
    sampler: SamplerConfig

    def sampler_for(self, gen_length: int) -> SamplerConfig:
        """Where tokens are committed by number, one in each step."""
        return self.sampler.replace(gen_length=gen_length, steps=gen_length)


@dataclass(frozen=True, kw_only=True)
class SuiteConfig:
    """What a suite compares, on the first items of each task. The first decoder is the baseline."""

    name: str
    tasks: tuple[str, ...]
    decoders: tuple[DecoderConfig, ...]

    def __post_init__(self) -> None:
        names = [decoder.name for decoder in self.decoders]
        require(len(names) > 0, "decoders is empty; allowed: one or more")
        require(len(set(names)) == len(names), f"decoders are {names}; allowed: each name once")
        require(len(self.tasks) > 0, "tasks is empty; allowed: one or more")
        for task in self.tasks:
            for decoder in self.decoders:
                _ = decoder.sampler_for(load_task(task).gen_length)  # which checks both


def evaluate_suite(
    suite: SuiteConfig, cell: Cell, run: Run, socs: Sequence[str], difficulty: int | None
) -> list[ResultRow]:
    """Each decoder's score over all tasks, then its score on each.

    Args:
      cell: everything else, items included; its task and its sampler give way to the suite's.
      difficulty: of every task; None: the default of each.

    Raises:
      ValueError: a task has no such difficulty; a decoder reads no tiles; a cell's folder is of
        other settings, or damaged.
    """
    cells = {
        (decoder.name, task): _cell(cell, decoder, task, difficulty)
        for decoder in suite.decoders
        for task in suite.tasks
    }
    model = cell.load()
    stores = {key: each.store(_folder(run.folder, *key), model) for key, each in cells.items()}
    run.begin()
    found = {
        key: cells[key].decode(model, stores[key])
        for key in tqdm(cells, desc=suite.name, unit="cell")
    }
    return _rows(suite, found, socs)


def rescore_suite(folder: Path, socs: Sequence[str]) -> list[ResultRow]:
    """The rows of a suite that another run decoded, judged anew.

    Raises:
      ValueError, FileNotFoundError: it did not finish, is of another version, or is damaged.
    """
    path = folder / CONFIG
    require(path.is_file(), f"{folder} has no {CONFIG}; allowed: the run of a suite that began")
    stored = stored_settings(path)
    try:
        suite = read_config(SuiteConfig, stored["suite"])
        items = int(stored.task["items"])
    except (ValueError, TypeError, KeyError, OmegaConfBaseException) as error:
        raise ValueError(f"{path}: {error}; allowed: a suite of this version") from error
    found = {
        (decoder.name, task): judged(_folder(folder, decoder.name, task), items)
        for decoder in suite.decoders
        for task in suite.tasks
    }
    for key, part in found.items():
        have = len(part.right)
        require(
            have == items,
            f"{_folder(folder, *key)} has {have} of {items} items; allowed: a suite that finished",
        )
    return _rows(suite, found, socs)


def _folder(run: Path, decoder: str, task: str) -> Path:
    return run / CELLS / f"{decoder}-{task}"


def _rows(
    suite: SuiteConfig, found: Mapping[tuple[str, str], Judged], socs: Sequence[str]
) -> list[ResultRow]:
    baseline = suite.decoders[0].name
    rows: list[ResultRow] = []
    for decoder in suite.decoders:
        parts = [found[decoder.name, task] for task in suite.tasks]
        before = [found[baseline, task] for task in suite.tasks]
        rows += decoder_rows(f"{suite.name}/{decoder.name}", parts, socs)
        if decoder.name != baseline:
            rows += _difference(f"{suite.name}/{decoder.name}/against/{baseline}", before, parts)
    for (decoder, task), part in found.items():
        rows += decoder_rows(f"{suite.name}/{decoder}/{task}", [part], socs)
    return rows


def _cell(cell: Cell, decoder: DecoderConfig, name: str, difficulty: int | None) -> Cell:
    task = load_task(name)
    items = TaskConfig(
        name=name,
        seed=cell.task.seed,
        items=cell.task.items,
        difficulty=task.default_difficulty if difficulty is None else difficulty,
        gen_length=task.gen_length,
    )
    sampler = decoder.sampler_for(task.gen_length)
    check_tiles(cell.tiles, cell.backend, sampler)
    return replace(cell, task=items, sampler=sampler, sampler_name=decoder.name)


def _difference(
    name: str, before: Sequence[Judged], after: Sequence[Judged]
) -> tuple[ResultRow, ResultRow]:
    """Of exact match on the same items, and whether it could be chance."""
    pairs = [
        (old.right[index], right)
        for old, new in zip(before, after, strict=True)
        for index, right in new.right.items()
    ]
    result = paired(*map(list, zip(*pairs, strict=True)))
    return difference_rows(name, result, len(pairs))
