"""A suite: many decoders on many tasks, in one table.

The run folder gets `cells/<decoder>-<task>/generations`, runs that `experiments.report` can
compare.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tqdm import tqdm

from experiments.evaluate.config import CELLS, EvaluateConfig, SuiteConfig
from experiments.evaluate.result_rows import decoder_rows, difference_rows
from experiments.evaluate.score_table import suite_tables
from experiments.harness.results import ResultRow
from experiments.harness.run import Run
from experiments.harness.tiled import check_tiles
from experiments.harness.workers import fill_stores
from llada_jax.evaluation.evaluate import with_answer_length
from llada_jax.evaluation.graded import Evaluation, compared
from llada_jax.evaluation.tally import joined
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
    rows = list(_decoder_rows(suite, parts, config.phones))
    for (decoder, task), part in evaluations.items():
        rows += decoder_rows(f"{suite.name}/{decoder}/{task}", [part], config.phones)
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
