"""Many decoders on many tasks, in one table. The run folder gets
`cells/<decoder>-<task>/generations`: runs that `experiments.report` compares; and a suite with
thresholds `equal_quality.png`, where what lies above their line is worth its rows."""

from collections.abc import Iterator, Mapping, Sequence

from tqdm import tqdm

from experiments.evaluate.config import CELLS, EvaluateConfig, SuiteConfig
from experiments.evaluate.result_rows import decoder_rows, difference_rows, equal_quality_rows
from experiments.evaluate.score_table import suite_tables
from experiments.harness.pictures import ScorePoint, cost_curves, require_plots, save
from experiments.harness.results import ResultRow
from experiments.harness.run import Run
from experiments.harness.tiled import check_tiles
from experiments.harness.workers import filled
from llada_jax.evaluation.evaluate import with_answer_length
from llada_jax.evaluation.graded import Evaluation, compared
from llada_jax.evaluation.tally import Tally, joined
from llada_jax.evaluation.task import TaskItems
from llada_jax.evaluation.tasks import load_task

Parts = Mapping[str, Sequence[Evaluation]]
"""Of each decoder its answers to each task."""


def evaluate_suite(
    suite: SuiteConfig, config: EvaluateConfig, run: Run, difficulty: int | None
) -> None:
    """Finds each decoder's score over all tasks, then its score on each; a worker decodes. The
    configuration's task and sampler give way to the suite's; `difficulty` is that of every task,
    None each's default. Raises ValueError where a task has no such difficulty, a decoder reads no
    tiles, and a cell's folder is of other settings or damaged."""
    if suite.thresholds:
        require_plots("suite.thresholds")
    count, seed = config.task.items, config.task.seed
    asked = {
        name: TaskItems(task=load_task(name), count=count, seed=seed, difficulty=difficulty)
        for name in suite.tasks
    }
    for decoder in suite.decoders:
        check_tiles(config.tiles, config.backend, decoder.sampler)
    model = run.of(config.load(config.mesh))
    trials = {
        (decoder.name, name): config.trial(
            model, items, with_answer_length(decoder.sampler, items.task), decoder.name
        )
        for decoder in suite.decoders
        for name, items in asked.items()
    }
    stores = {key: each.store(run.folder / CELLS / "-".join(key)) for key, each in trials.items()}
    run.begin()
    if not config.worker.is_alone:
        return filled(config.worker, [(trials[key], stores[key]) for key in trials])
    found = {
        key: trials[key].run(stores[key])
        for key in tqdm(trials, desc=suite.name, unit="decoder on a task")
    }
    samplers = {decoder.name: decoder.sampler for decoder in suite.decoders}
    parts = {name: [found[name, task] for task in suite.tasks] for name in samplers}
    tallies = {name: joined([each.tally for each in found]) for name, found in parts.items()}
    rows = [*_decoders(suite, parts, config.phones), *_beside_thresholds(suite, tallies)]
    for (decoder, task), part in found.items():
        rows += decoder_rows(f"{suite.name}/{decoder}/{task}", [part], config.phones)
    if suite.thresholds:
        drawn = cost_curves(suite.name, _by_rows(suite, tallies), "row-forwards an answer")
        save(drawn, run.folder / "equal_quality.png")
    run.finish(rows, suite_tables(suite.name, samplers, suite.tasks, rows))


def _decoders(suite: SuiteConfig, parts: Parts, socs: Sequence[str]) -> Iterator[ResultRow]:
    """Yields each decoder's score over all tasks, and its difference to the first one."""
    baseline = suite.decoders[0].name
    for name, found in parts.items():
        yield from decoder_rows(f"{suite.name}/{name}", found, socs)
        if name != baseline:
            row, items = f"{suite.name}/{name}/against/{baseline}", sum(len(e.right) for e in found)
            yield from difference_rows(row, compared(found, parts[baseline]), items)


def _beside_thresholds(suite: SuiteConfig, tallies: Mapping[str, Tally]) -> Iterator[ResultRow]:
    """Yields what each other decoder costs beside the suite's thresholds; nothing without these."""
    if not suite.thresholds:
        return
    curve, baseline = [tallies[name] for name in suite.thresholds], tallies[suite.decoders[0].name]
    for name in (name for name in tallies if name not in suite.thresholds):
        yield from equal_quality_rows(f"{suite.name}/{name}", tallies[name], curve, baseline)


def _by_rows(suite: SuiteConfig, tallies: Mapping[str, Tally]) -> dict[str, list[ScorePoint]]:
    """Returns scores at their row-forwards: of the thresholds as one curve, of others alone."""
    points = {}
    for name, tally in tallies.items():
        assert tally.row_forwards is not None, "costs at equal quality were found"
        points[name] = ScorePoint(tally.row_forwards, tally.exact_match, *tally.interval)
    one = [points.pop(name) for name in suite.thresholds]
    return {"one threshold": one} | {name: [point] for name, point in points.items()}
