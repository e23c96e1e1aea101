"""Decodes the items of a task, judges the answers, and says how sure the score is.

    python -m experiments.evaluate task=word_problems task.seed=7 task.items=100 sampler=llada
    python -m experiments.evaluate -m task=yes_no,choices sampler=llada,threshold backend=xla,litert
    python -m experiments.evaluate sampler=threshold baseline=outputs/evaluate/llada
    python -m experiments.evaluate rescore=outputs/evaluate/llada 'phones=[SM8750]'
    python -m experiments.evaluate suite=decoding task.items=100
    python -m experiments.evaluate rescore=outputs/evaluate/of_a_suite
    python -m experiments.evaluate worker.rank=0 worker.count=3 hydra.run.dir=outputs/evaluate/of_3

The run folder gets, besides what every run writes, `generations/`: every answer with its item, all
settings, commit and versions, and the traces, from which `rescore` judges again, in a folder of its
own, without decoding. A suite puts many such runs into one folder and prints one table. The same
command on the same folder (`hydra.run.dir`) goes on where an interrupted run stopped, and a sweep
(`-m`) on the same `hydra.sweep.dir`; a job of it that is refused ends the sweep before the jobs
behind it. At its end a sweep has `report.md` in its folder: a table of its jobs, and their picture.
Workers share a folder, also that of a sweep or a suite, and the same command without `worker`
judges what they decoded (docs/scale.md).
`metrics.jsonl` has a line for each item; `python -m experiments.report` makes a page with tables
and pictures from many runs.
"""

from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig

from experiments.evaluate.config import CELLS, EvaluateConfig
from experiments.evaluate.result_rows import comparison_rows, decoder_rows
from experiments.evaluate.suite import SuiteResult, evaluate_suite, rescore_suite
from experiments.evaluate.sweep_page import sweep_page
from experiments.harness.run import Run, entry_point
from experiments.harness.workers import filled
from llada_jax.config import require
from llada_jax.evaluation.graded import GENERATIONS, Evaluation, require_same_items


def evaluate(config: EvaluateConfig, run: Run) -> None:
    """Decodes what is not decoded yet, or reads what another run decoded; judges and compares."""
    require_no_other_answers(config, run.folder)
    if config.rescore:
        require_for_rescore(HydraConfig.get().overrides.task)
    if config.is_suite:
        if (result := _suite_result(config, run)) is not None:
            run.finish(*result)
        return
    baseline = Evaluation.load(config.baseline) if config.baseline else None
    found = Evaluation.load(config.rescore) if config.rescore else _decoded(config, run, baseline)
    if found is None:
        return
    run.fingerprint = found.settings.get("fingerprint")
    rows = decoder_rows(found.name, [found], config.phones)
    rows += comparison_rows(baseline, found) if baseline else []
    if config.rescore:
        run.begin()
    for index, item, _, _, length, nfe in found.generations:
        line = {"right": found.right[index], "target": item.target, "length": length, "nfe": nfe}
        run.record({"index": index, **line})
    run.finish(rows)


def _suite_result(config: EvaluateConfig, run: Run) -> SuiteResult | None:
    if config.suite is None:
        result = rescore_suite(Path(config.rescore or ""), config.phones, run)
        run.begin()
        return result
    changes = HydraConfig.get().overrides.task
    require_for_suite(changes)
    asked = any(name_of(change) == "task.difficulty" for change in changes)
    return evaluate_suite(config.suite, config, run, config.task.difficulty if asked else None)


def _decoded(config: EvaluateConfig, run: Run, baseline: Evaluation | None) -> Evaluation | None:
    """Returns the graded answers; of a worker, which judges nothing, None."""
    model, items = config.load(), config.task.asked
    trial = config.trial(model, items, config.sampler, sampler_name())
    if baseline:
        require_same_items(baseline, items.settings, items.count)
    store = trial.store(run.folder)
    run.begin()
    if config.worker.is_alone:
        return trial.run(store)
    return filled(config.worker, [(trial, store)])


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


def sampler_name() -> str:
    """Returns the chosen sampler with what the command line changed in it:
    `threshold@threshold:0.8`.

    With a colon, since Hydra's values hold no equals sign, and reports are given the name.
    """
    chosen = HydraConfig.get()
    changes = [each for each in chosen.overrides.task if each.startswith("sampler.")]
    shown = sorted(each.removeprefix("sampler.").replace("=", ":") for each in changes)
    return "@".join([chosen.runtime.choices["sampler"], *shown])


main = entry_point("evaluate", evaluate, EvaluateConfig, after_sweep=sweep_page)
