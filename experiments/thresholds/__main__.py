"""Sweeps what the decoders compare confidence with, on items that no score is reported for.

    python -m experiments.thresholds
    python -m experiments.thresholds model=tiny tasks=[word_problems] difficulty=0 items=50
    python -m experiments.thresholds --config-name thresholds_options

Each sweep varies a few settings of one decoder. Of each, the setting is chosen that needs the
fewest forwards among those that lose at most `points` of exact match against the plain sampler, one
token a forward. Staged settings are also compared with committing at the same threshold for good:
what that loses, how much of it revision brings back, and what it takes. The run folder gets
`chosen.json` and `thresholds.png` beside what every run writes; the same command on the same folder
(`hydra.run.dir`) goes on where an interrupted run stopped. `python -m experiments.evaluate
suite=decoding chosen=<run folder>` scores what was chosen.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from tqdm import tqdm

import llada_jax as lj
from experiments.evaluate.chosen_samplers import CHOSEN, ChosenSamplers
from experiments.evaluate.config import CELLS
from experiments.evaluate.result_rows import tally_rows
from experiments.evaluate.score_table import NUMBERS, score_cells
from experiments.harness.pictures import ScorePoint, forwards_curves, save
from experiments.harness.results import ResultRow, aligned
from experiments.harness.run import Run, entry_point
from llada_jax.config import SamplerConfig, require, require_counts
from llada_jax.evaluation.graded import Evaluation
from llada_jax.evaluation.harness import PLACES, Trial, fingerprint, lengthened
from llada_jax.evaluation.items import ValidationItems
from llada_jax.evaluation.sweep import (
    Found,
    Revision,
    Setting,
    Sweep,
    by_program,
    fewest_forwards,
    revisions,
)
from llada_jax.evaluation.tally import Tally, joined
from llada_jax.evaluation.tasks import load_task

PLAIN, ONE_AT_A_TIME = "plain", "one_at_a_time"


@dataclass(frozen=True, kw_only=True)
class ThresholdsConfig:
    """What to sweep, on which items. The comments are in conf/thresholds.yaml."""

    model: str
    dtype: str | None = None
    tasks: tuple[str, ...]
    difficulty: int | None = None
    items: int = 200
    seed: int = 1000
    scored_seed: int = 0
    scored_items: int = 500
    batch_size: int = 100
    places: int = PLACES
    points: float = 0
    plain: SamplerConfig
    one_at_a_time: SamplerConfig
    sweeps: tuple[Sweep, ...]

    def __post_init__(self) -> None:
        require(len(self.tasks) > 0, "tasks is empty; allowed: one or more")
        require_counts(self, "batch_size", "places")
        require(self.points >= 0, f"points is {self.points}; allowed: 0 or more")
        names = [setting.name for setting in self.settings]
        twice = [name for name in names if names.count(name) > 1]
        require(not twice, f"{twice[:1]} is there twice; allowed: each name once")
        for items in self.validation:
            for setting in self.settings:
                _ = lengthened(setting.sampler, items.task)  # which checks both

    @property
    def settings(self) -> list[Setting]:
        """Returns the two that the others are compared with, then all sweeps."""
        slow = [(PLAIN, self.plain), (ONE_AT_A_TIME, self.one_at_a_time)]
        swept = [setting for sweep in self.sweeps for setting in sweep.settings]
        return [*(Setting(name, "", sampler) for name, sampler in slow), *swept]

    @property
    def validation(self) -> list[ValidationItems]:
        """Returns the items of each task."""
        return [
            ValidationItems(
                task=task,
                seed=self.seed,
                count=self.items,
                difficulty=self.difficulty,
                scored_seed=self.scored_seed,
                scored_items=self.scored_items,
            )
            for task in map(load_task, self.tasks)
        ]


def choose_thresholds(config: ThresholdsConfig, run: Run) -> None:
    """Decodes every setting, and chooses."""
    model = run.of(lj.load(config.model, config.dtype))
    run.begin()
    found = {each.setting.name: each for each in _decoded(config, model, run)}
    plain, slowest, *swept = everything = [found[setting.name] for setting in config.settings]
    by_sweep = {
        sweep.name: [found[setting.name] for setting in sweep.settings] for sweep in config.sweeps
    }
    choices = {
        name: fewest_forwards(settings, plain.tally, config.points)
        for name, settings in by_sweep.items()
    }
    samplers = {name: each.setting.sampler for name, each in choices.items() if each is not None}
    handed_on = ChosenSamplers(
        samplers, fingerprint(model), config.scored_seed, config.scored_items
    )
    run.write(CHOSEN, handed_on.as_json())
    curves = {
        name: [
            ScorePoint(tally.nfe, tally.exact_match, *tally.interval) for _, tally, _ in settings
        ]
        for name, settings in {PLAIN: [plain], ONE_AT_A_TIME: [slowest], **by_sweep}.items()
    }
    save(forwards_curves(", ".join(config.tasks), curves), run.folder / "thresholds.png")
    scores, chosen = [row for each in everything for row in _score_rows(each)], choices.values()
    print(_table(everything, chosen, scores), end="\n\n")
    run.finish([
        *scores,
        *_choice_rows(chosen, plain.tally, slowest.tally),
        *(row for pair in revisions(swept, slowest.tally) for row in _revision_rows(pair)),
    ])  # fmt: skip


def _decoded(config: ThresholdsConfig, model: lj.Model, run: Run) -> Iterator[Found]:
    for setting in tqdm(by_program(config.settings), unit="setting"):
        answered = [_evaluated(config, setting, items, model, run) for items in config.validation]
        found = joined([each.tally for each in answered])
        scores = {"exact_match": found.exact_match, "nfe": found.nfe, "tpf": found.tpf}
        run.record({"setting": setting.name, **scores})
        yield Found(setting, found, _refreshed(answered) if setting.sampler.refreshes else None)


def _evaluated(
    config: ThresholdsConfig, setting: Setting, items: ValidationItems, model: lj.Model, run: Run
) -> Evaluation:
    trial = Trial(
        model=model,
        dtype=config.dtype,
        items=items,
        sampler_name=setting.name,
        sampler=lengthened(setting.sampler, items.task),
        batch_size=config.batch_size,
        places=config.places,
    )
    return trial.run(trial.store(run.folder / CELLS / f"{setting.name}-{items.task.name}"))


def _refreshed(parts: Sequence[Evaluation]) -> float:
    """Returns the mean number of tokens of an item that were refreshed."""
    return fmean(
        int(trace.refreshed[:, row].sum())
        for part in parts
        for batch, trace in part.store.traces()
        for row, generation in enumerate(batch.generations)
        if generation.index in part.right
    )


def _table(
    found: Sequence[Found], chosen: Collection[Found | None], scores: Sequence[ResultRow]
) -> str:
    """Writes a line for each setting; `>` before those that are chosen."""
    rows = {row.name: row for row in scores}
    lines = [
        {
            "": ">" if any(each is other for other in chosen) else "",
            "setting": each.setting.name,
            **score_cells(rows, f"thresholds/{each.setting.name}"),
            "refreshed": "" if each.refreshed is None else f"{each.refreshed:.2f}",
        }
        for each in found
    ]
    return aligned(lines, (*NUMBERS, "refreshed"))


def _score_rows(found: Found) -> Iterator[ResultRow]:
    name = f"thresholds/{found.setting.name}"
    yield from tally_rows(name, found.tally)
    if found.refreshed is not None:
        yield ResultRow(f"{name}/refreshed", found.refreshed, "tokens an item")


def _choice_rows(
    chosen: Collection[Found | None], plain: Tally, slowest: Tally
) -> Iterator[ResultRow]:
    """Yields what each chosen setting loses, and its share of the forwards of the slowest."""
    for setting, tally, _ in filter(None, chosen):
        name = f"thresholds/{setting.sweep}/chosen/{setting.particular}"
        loss = plain.exact_match - tally.exact_match
        yield ResultRow(f"{name}/lost", loss, "of questions", n=len(plain.right))
        yield ResultRow(f"{name}/forwards", tally.nfe / slowest.nfe, "of one token a forward")


def _revision_rows(pair: Revision) -> Iterator[ResultRow]:
    name, n = f"thresholds/revision/{pair.staged.setting.name}", len(pair.staged.tally.right)
    yield ResultRow(f"{name}/threshold_loses", pair.lost, "of questions", n=n)
    yield ResultRow(f"{name}/recovered", pair.recovered, "of questions", n=n)
    if pair.lost > 0:
        yield ResultRow(f"{name}/recovered_share", pair.recovered / pair.lost, "of what was lost")
    yield ResultRow(f"{name}/forwards", pair.forwards, "of the threshold's")
    if pair.beyond is not None:
        yield ResultRow(f"{name}/at_equal_forwards", pair.beyond, "of questions")


main = entry_point("thresholds", choose_thresholds, ThresholdsConfig)
