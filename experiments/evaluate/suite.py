"""Many decoders on many tasks, in one table: `python -m experiments.evaluate suite=decoding`.

The run folder gets `cells/<decoder>-<task>/generations`, from which the table can be made again.
With `chosen`, a decoder that was swept by `experiments.thresholds` is followed by itself with what
was chosen for it, as `<decoder>@chosen`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from tqdm import tqdm

import llada_jax as lj
from experiments.evaluate.chosen_samplers import CHOSEN, ChosenSamplers
from experiments.evaluate.decoder import CELLS, TrialConfig
from experiments.evaluate.result_rows import decoder_rows, difference_rows
from experiments.evaluate.score_table import suite_tables
from experiments.harness.results import ResultRow
from experiments.harness.run import CONFIG, Run, stored_settings
from experiments.harness.schema import read_config
from experiments.harness.tiled import check_tiles
from llada_jax.config import SamplerConfig, require
from llada_jax.evaluation.graded import Evaluation
from llada_jax.evaluation.harness import fingerprint
from llada_jax.evaluation.items import TaskItems
from llada_jax.evaluation.metrics import paired
from llada_jax.evaluation.tasks import load_task


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """A decoder by name. Its lengths are those of each task."""

    name: str
    sampler: SamplerConfig

    def sampler_for(self, gen_length: int) -> SamplerConfig:
        """Returns its sampler; where that commits by number, with one token in each step."""
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
        require(
            len(set(self.tasks)) == len(self.tasks),
            f"tasks are {self.tasks}; allowed: each name once",
        )
        for task in self.tasks:
            for decoder in self.decoders:
                _ = decoder.sampler_for(load_task(task).gen_length)  # which checks both

    def with_chosen(self, chosen: ChosenSamplers) -> "SuiteConfig":
        """Adds each decoder also with what was chosen in the sweep of its name.

        Raises ValueError where no sweep has the name of a decoder.
        """
        names = [decoder.name for decoder in self.decoders]
        require(
            any(name in chosen.samplers for name in names),
            f"{CHOSEN} has {', '.join(chosen.samplers) or 'nothing'}; allowed: sweeps of "
            f"{', '.join(names)}",
        )
        return replace(self, decoders=tuple(self._and_chosen(chosen)))

    def _and_chosen(self, chosen: ChosenSamplers) -> Iterator[DecoderConfig]:
        for decoder in self.decoders:
            yield decoder
            if decoder.name in chosen.samplers:
                sampler = chosen.samplers[decoder.name]
                yield DecoderConfig(name=f"{decoder.name}@chosen", sampler=sampler)


class SuiteResult(NamedTuple):
    """Numbers, and the tables of them that are printed."""

    rows: list[ResultRow]
    tables: str


def evaluate_suite(
    suite: SuiteConfig,
    common: TrialConfig,
    run: Run,
    *,
    socs: Sequence[str] = (),
    difficulty: int | None = None,
    chosen: ChosenSamplers | None = None,
) -> SuiteResult:
    """Finds each decoder's score over all tasks, then its score on each.

    Args:
      common: everything else; its task and its sampler give way to the suite's.
      difficulty: of every task; None: the default of each.
      chosen: samplers to decode with besides.

    Raises:
      ValueError: a task has no such difficulty; a decoder reads no tiles; a cell's folder is of
        other settings, or damaged; what was chosen is for another model or other items.
    """
    if chosen is not None:
        suite = suite.with_chosen(chosen)
    configs = {
        (decoder.name, task): _with(common, decoder, task, difficulty)
        for decoder in suite.decoders
        for task in suite.tasks
    }
    model = lj.load(common.model, common.dtype)
    if chosen is not None:
        chosen.require_for(fingerprint(model), common.items.seed, common.items.count)
    trials = {key: each.trial(model) for key, each in configs.items()}
    stores = {key: each.store(_folder(run.folder, *key)) for key, each in trials.items()}
    run.begin()
    if chosen is not None:
        run.write(CHOSEN, chosen.as_json())
    found = {
        key: trials[key].run(stores[key])
        for key in tqdm(trials, desc=suite.name, unit="decoder on a task")
    }
    return _result(suite, found, socs)


def rescore_suite(folder: Path, socs: Sequence[str]) -> SuiteResult:
    """Returns the result of a suite that another run decoded, judged anew.

    Raises:
      ValueError, FileNotFoundError: it did not finish, is of another version, or is damaged.
    """
    path = folder / CONFIG
    require(path.is_file(), f"{folder} has no {CONFIG}; allowed: the run of a suite that began")
    stored = stored_settings(path)
    try:
        suite = _stored_suite(folder, stored)
        items = int(stored.task["items"])
    except (ValueError, TypeError, KeyError, OmegaConfBaseException) as error:
        raise ValueError(f"{path}: {error}; allowed: a suite of this version") from error
    found = {
        (decoder.name, task): Evaluation.load(_folder(folder, decoder.name, task), items)
        for decoder in suite.decoders
        for task in suite.tasks
    }
    for key, part in found.items():
        have = len(part.right)
        require(
            have == items,
            f"{_folder(folder, *key)} has {have} of {items} items; allowed: a suite that finished",
        )
    return _result(suite, found, socs)


def _stored_suite(folder: Path, settings: DictConfig) -> SuiteConfig:
    suite = read_config(SuiteConfig, settings["suite"])
    return suite.with_chosen(ChosenSamplers.load(folder)) if settings.get("chosen") else suite


def _folder(run: Path, decoder: str, task: str) -> Path:
    return run / CELLS / f"{decoder}-{task}"


def _result(
    suite: SuiteConfig, found: Mapping[tuple[str, str], Evaluation], socs: Sequence[str]
) -> SuiteResult:
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
    samplers = {decoder.name: decoder.sampler for decoder in suite.decoders}
    return SuiteResult(rows, suite_tables(suite.name, samplers, suite.tasks, rows))


def _with(
    common: TrialConfig, decoder: DecoderConfig, name: str, difficulty: int | None
) -> TrialConfig:
    task, asked = load_task(name), common.items
    sampler = decoder.sampler_for(task.gen_length)
    check_tiles(common.tiles, common.backend, sampler)
    items = TaskItems(task=task, count=asked.count, seed=asked.seed, difficulty=difficulty)
    return replace(common, items=items, sampler=sampler, sampler_name=decoder.name)


def _difference(
    name: str, before: Sequence[Evaluation], after: Sequence[Evaluation]
) -> tuple[ResultRow, ResultRow]:
    """Gives the difference of exact match on the same questions, and whether it could be chance."""
    pairs = [
        (old.right[index], right)
        for old, new in zip(before, after, strict=True)
        for index, right in new.counted.items()
    ]
    result = paired(*map(list, zip(*pairs, strict=True)))
    return difference_rows(name, result, len(pairs), sum(len(part.right) for part in after))
