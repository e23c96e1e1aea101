"""A suite: many decoders on many tasks, in one table.

The run folder gets `cells/<decoder>-<task>/generations`, runs that `experiments.report` can
compare. If the suite names thresholds, it also gets `equal_quality.png`: the thresholds are one
curve of score by cost, and a decoder is worth its cost if its point is above that curve.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tqdm import tqdm

from experiments.evaluate.config import CELLS, EvaluateConfig, SuiteConfig
from experiments.evaluate.result_rows import decoder_rows, difference_rows, equal_quality_rows
from experiments.evaluate.score_table import suite_tables
from experiments.harness.pictures import ScorePoint, cost_curves, require_plots, save
from experiments.harness.results import ResultRow
from experiments.harness.run import Run
from experiments.harness.tiled import check_tiles
from experiments.harness.workers import fill_stores
from llada_jax.evaluation.evaluate import with_answer_length
from llada_jax.evaluation.graded import Evaluation, compared
from llada_jax.evaluation.tally import Tally, joined
from llada_jax.evaluation.tasks import load_task

Parts = Mapping[str, Sequence[Evaluation]]
"""The evaluations of each decoder, in the order of the tasks."""


def evaluate_suite(
    suite: SuiteConfig, config: EvaluateConfig, run: Run, difficulty: int | None
) -> None:
    """Scores each decoder over all tasks and on each; a worker only decodes its share. The suite
    replaces the task and the sampler of `config`. `difficulty` applies to every task, None means
    each task's default. Raises ValueError if a task lacks the difficulty or the prompts, if a
    decoder cannot use the tiles, and if the folder of a cell is damaged or has other settings."""
    if suite.thresholds:
        require_plots("suite.thresholds")
    items_by_task = {
        name: replace(config.task.task_items, task=load_task(name), difficulty=difficulty)
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
        for name, items in items_by_task.items()
    }
    stores = {key: t.store(run.folder / CELLS / "-".join(key)) for key, t in trials.items()}
    run.begin()
    if not config.worker.is_alone:
        return fill_stores(config.worker, [(trials[key], stores[key]) for key in trials])
    evaluations = {
        key: trials[key].run(stores[key])
        for key in tqdm(trials, desc=suite.name, unit="decoder on a task")
    }
    samplers = {decoder.name: decoder.sampler for decoder in suite.decoders}
    parts = {name: [evaluations[name, task] for task in suite.tasks] for name in samplers}
    tallies = {
        name: joined([part.tally for part in of_decoder]) for name, of_decoder in parts.items()
    }
    rows = [*_decoder_rows(suite, parts, config.phones), *_rows_at_equal_quality(suite, tallies)]
    for (decoder, task), part in evaluations.items():
        rows += decoder_rows(f"{suite.name}/{decoder}/{task}", [part], config.phones)
    if suite.thresholds:
        figure = cost_curves(suite.name, _points(suite, tallies), "row-forwards an answer")
        save(figure, run.folder / "equal_quality.png")
    run.finish(rows, suite_tables(suite.name, samplers, suite.tasks, rows, tallies))


def _decoder_rows(suite: SuiteConfig, parts: Parts, socs: Sequence[str]) -> Iterator[ResultRow]:
    """Yields each decoder's score over all tasks, and its difference to the baseline."""
    baseline = suite.decoders[0].name
    for name, evaluations in parts.items():
        yield from decoder_rows(f"{suite.name}/{name}", evaluations, socs)
        if name != baseline:
            row = f"{suite.name}/{name}/against/{baseline}"
            items = sum(len(evaluation.right) for evaluation in evaluations)
            yield from difference_rows(row, compared(evaluations, parts[baseline]), items)
            if all(evaluation.strict for evaluation in evaluations):
                result = compared(evaluations, parts[baseline], strict=True)
                yield from difference_rows(f"{row}/strict", result, items)


def _rows_at_equal_quality(suite: SuiteConfig, tallies: Mapping[str, Tally]) -> Iterator[ResultRow]:
    """Yields the cost of each other decoder relative to the suite's thresholds, if it has any."""
    if not suite.thresholds:
        return
    curve, baseline = [tallies[name] for name in suite.thresholds], tallies[suite.decoders[0].name]
    for name in (name for name in tallies if name not in suite.thresholds):
        yield from equal_quality_rows(f"{suite.name}/{name}", tallies[name], curve, baseline)


def _points(suite: SuiteConfig, tallies: Mapping[str, Tally]) -> dict[str, list[ScorePoint]]:
    """Returns scores by row-forwards: the thresholds as one curve, each other decoder alone."""
    points = {}
    for name, tally in tallies.items():
        assert tally.row_forwards is not None, "costs at equal quality are known"
        points[name] = ScorePoint(tally.row_forwards, tally.exact_match, *tally.interval)
    curve = [points.pop(name) for name in suite.thresholds]
    return {"one threshold": curve} | {name: [point] for name, point in points.items()}
