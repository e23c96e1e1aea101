"""Decodes the items of a task, judges the answers, and says how sure the score is.

    python -m experiments.evaluate task=word_problems task.seed=7 task.items=100 sampler=llada
    python -m experiments.evaluate -m task=yes_no,choices sampler=llada,threshold backend=xla,litert
    python -m experiments.evaluate sampler=threshold baseline=outputs/evaluate/llada
    python -m experiments.evaluate rescore=outputs/evaluate/llada 'phones=[SM8750]'
    python -m experiments.evaluate suite=decoding task.items=100
    python -m experiments.evaluate suite=decoding chosen=outputs/thresholds/a_run
    python -m experiments.evaluate rescore=outputs/evaluate/of_a_suite

The run folder gets, besides what every run writes, `generations/`: every answer with its item, all
settings, commit and versions, and the traces, from which `rescore` judges again, in a folder of its
own, without decoding. A suite puts many such runs into one folder and prints one table; with
`chosen` it also decodes with what a run of `experiments.thresholds` chose. The same command on the
same folder (`hydra.run.dir`) goes on where an interrupted run stopped, and a sweep (`-m`) on the
same `hydra.sweep.dir`; a job of it that is refused ends the sweep before the jobs behind it.
`metrics.jsonl` has a line for each item; `python -m experiments.report` makes a page with tables
and pictures from many runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig

import llada_jax as lj
from experiments.evaluate.chosen_samplers import ChosenSamplers
from experiments.evaluate.decoder import CELLS, TaskConfig, TrialConfig
from experiments.evaluate.result_rows import comparison_rows, decoder_rows
from experiments.evaluate.suite import SuiteConfig, SuiteResult, evaluate_suite, rescore_suite
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from experiments.harness.tiled import check_tiles
from llada_jax.config import SamplerConfig, require
from llada_jax.evaluation.generations import Generation
from llada_jax.evaluation.graded import GENERATIONS, Evaluation, require_same_items
from llada_jax.evaluation.tasks import load_task, task_names
from llada_jax.phone.profile import load_profile
from llada_jax.revision.tiles import Kind

# `task=<name>` for every task that there is.
for _task in map(load_task, task_names()):
    ConfigStore.instance().store(
        _task.name,
        {
            "name": _task.name,
            "seed": 0,
            "items": 500,
            "difficulty": _task.default_difficulty,
            "gen_length": _task.gen_length,
        },
        group="task",
    )


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """What to decode, with what. The comments are in conf/evaluate.yaml."""

    model: str
    dtype: str | None = None
    task: TaskConfig
    sampler: SamplerConfig
    backend: str = "xla"
    tiles: Kind | None = None
    seed: int = 0
    batch_size: int = 50
    baseline: str | None = None
    rescore: str | None = None
    phones: tuple[str, ...] = ()
    suite: SuiteConfig | None = None
    chosen: str | None = None

    def __post_init__(self) -> None:
        require(self.batch_size > 0, f"batch_size is {self.batch_size}; allowed: 1 or more")
        require(
            self.baseline is None or (Path(self.baseline) / GENERATIONS).is_dir(),
            f"baseline is {self.baseline!r}, which has no {GENERATIONS}; allowed: the folder of a "
            "run of experiments.evaluate; of a suite, that of one of its cells",
        )
        require(
            self.rescore is None or (Path(self.rescore) / GENERATIONS).is_dir() or self.is_suite,
            f"rescore is {self.rescore!r}, which has no {GENERATIONS} and no {CELLS}; allowed: the "
            "folder of a run of experiments.evaluate",
        )
        if not self.is_suite:
            check_tiles(self.tiles, self.backend, self.sampler)
        for soc in self.phones:
            _ = load_profile(soc)
        require(
            self.suite is None or self.rescore is None,
            f"suite is given with rescore={self.rescore!r}; allowed: rescore alone, which finds "
            "the suite in that folder",
        )
        require(
            self.baseline is None or not self.is_suite,
            "a suite has a baseline of its own; allowed: no baseline",
        )
        require(
            self.chosen is None or self.suite is not None,
            f"chosen is {self.chosen!r} without a suite; allowed: suite=decoding chosen=<folder>",
        )

    @property
    def is_suite(self) -> bool:
        """Tells whether many decoders are decoded, or judged again."""
        return self.suite is not None or (
            self.rescore is not None and (Path(self.rescore) / CELLS).is_dir()
        )

    @property
    def trial(self) -> TrialConfig:
        """Returns what is decoded; of a suite, what its decoders have in common."""
        return TrialConfig(
            model=self.model,
            dtype=self.dtype,
            items=self.task.asked,
            sampler_name=sampler_name(),
            sampler=self.sampler,
            backend=self.backend,
            seed=self.seed,
            batch_size=self.batch_size,
            tiles=self.tiles,
        )


def evaluate(config: EvaluateConfig, run: Run) -> None:
    """Decodes what is not decoded yet, or reads what another run decoded; judges and compares."""
    require_no_other_answers(config, run.folder)
    if config.rescore:
        require_for_rescore(HydraConfig.get().overrides.task)
    if config.is_suite:
        result = _suite_result(config, run)
        run.finish(result.rows, result.tables)
        return
    baseline = Evaluation.load(config.baseline) if config.baseline else None
    if config.rescore:
        found = Evaluation.load(config.rescore)
        rows = _rows(config, found, baseline)
        run.begin()
    else:
        found = _decoded(config, run, baseline)
        rows = _rows(config, found, baseline)
    for generation in found.generations:
        run.record(_line(generation, found.right[generation.index]))
    run.finish(rows)


def _suite_result(config: EvaluateConfig, run: Run) -> SuiteResult:
    if config.suite is None:
        result = rescore_suite(Path(config.rescore or ""), config.phones)
        run.begin()
        return result
    changes = HydraConfig.get().overrides.task
    require_for_suite(changes)
    asked = any(name_of(change) == "task.difficulty" for change in changes)
    return evaluate_suite(
        config.suite,
        config.trial,
        run,
        socs=config.phones,
        difficulty=config.task.difficulty if asked else None,
        chosen=ChosenSamplers.load(Path(config.chosen)) if config.chosen else None,
    )


def require_no_other_answers(config: EvaluateConfig, folder: Path) -> None:
    """Raises ValueError for the folder of a run that decoded, unless this one can go on with it:
    its settings and results, which say what its answers are of, would be replaced."""
    goes_on_with = CELLS if config.is_suite else GENERATIONS
    for name in (GENERATIONS, CELLS):
        require(
            not (folder / name).exists() or (name == goes_on_with and not config.rescore),
            f"{folder} has the {name} of another run, whose settings and results this one would "
            "replace; allowed: another folder (hydra.run.dir)",
        )


def require_for_rescore(changes: Sequence[str]) -> None:
    """Raises ValueError where the command line sets what the run that is judged again has set."""
    for change in changes:
        require(
            name_of(change) in ("rescore", "baseline", "phones"),
            f"{change} with rescore, which reads what was decoded; allowed: baseline, phones",
        )


def require_for_suite(changes: Sequence[str]) -> None:
    """Raises ValueError where the command line sets what a suite decides."""
    for change in changes:
        name = name_of(change)
        own = name in ("task", "task.name", "task.gen_length") or name.split(".")[0] == "sampler"
        require(
            not own,
            f"{change} with a suite, which has tasks and samplers of its own; allowed: task.seed, "
            "task.items, task.difficulty, suite.tasks, suite.decoders",
        )


def name_of(change: str) -> str:
    """Reads of `+sampler.threshold=0.9`: `sampler.threshold`."""
    return change.partition("=")[0].lstrip("+~")


def _rows(
    config: EvaluateConfig, found: Evaluation, baseline: Evaluation | None
) -> list[ResultRow]:
    rows = decoder_rows(found.name, [found], config.phones)
    return rows + (comparison_rows(baseline, found) if baseline else [])


def _decoded(config: EvaluateConfig, run: Run, baseline: Evaluation | None) -> Evaluation:
    trial = config.trial.trial(lj.load(config.model, config.dtype))
    if baseline:
        require_same_items(baseline, trial.items.settings, trial.items.count)
    store = trial.store(run.folder)
    run.begin()
    return trial.run(store)


def sampler_name() -> str:
    """Returns the chosen sampler with what the command line changed in it:
    `threshold@threshold:0.8`.

    With a colon, since Hydra's values hold no equals sign, and reports are given the name.
    """
    chosen = HydraConfig.get()
    changes = [
        each.removeprefix("sampler.").replace("=", ":")
        for each in chosen.overrides.task
        if each.startswith("sampler.")
    ]
    name = chosen.runtime.choices["sampler"]
    return "@".join([name, *sorted(changes)])


def _line(generation: Generation, is_right: bool) -> dict[str, Any]:
    return {
        "index": generation.index,
        "right": is_right,
        "target": generation.item.target,
        "length": generation.length,
        "nfe": generation.nfe,
    }


main = entry_point("evaluate", evaluate, EvaluateConfig)
