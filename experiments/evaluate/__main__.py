"""Decodes the items of a task, judges the answers, and says how sure the score is.

    python -m experiments.evaluate task=word_problems task.seed=7 task.items=100 sampler=llada
    python -m experiments.evaluate -m task=yes_no,choices sampler=llada,threshold backend=xla,litert
    python -m experiments.evaluate sampler=threshold 'phones=[SM8750]'
    python -m experiments.evaluate suite=decoding task.items=100
    python -m experiments.evaluate worker.rank=0 worker.count=3 hydra.run.dir=outputs/evaluate/of_3

The run folder gets, besides what every run writes, `generations/`: every answer with its item, all
settings, commit and versions, and the traces. A suite puts many such runs into one folder and
prints one table. The same command on the same folder (`hydra.run.dir`) goes on where an interrupted
run stopped, and judges again what is decoded already, also for other `phones`; so does a sweep
(`-m`) on the same `hydra.sweep.dir`. A job of a sweep that is refused ends it before the jobs
behind it. At its end a sweep has `report.md` in its folder: a table of its jobs, and their picture.
Workers share a folder, also that of a sweep or a suite, and the same command without `worker`
judges what they decoded (docs/scale.md).
`metrics.jsonl` has a line for each item; `python -m experiments.report` judges again without the
model, and makes a page with tables, differences to a baseline, and pictures from many runs.
"""

from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig

from experiments.evaluate.config import CELLS, EvaluateConfig
from experiments.evaluate.result_rows import decoder_rows
from experiments.evaluate.suite import evaluate_suite
from experiments.harness.run import Run, entry_point
from experiments.harness.workers import filled
from llada_jax.config import require
from llada_jax.evaluation.graded import GENERATIONS


def evaluate(config: EvaluateConfig, run: Run) -> None:
    """Decodes what is not decoded yet, and judges; a worker only decodes."""
    require_no_other_answers(config, run.folder)
    if config.suite is not None:
        changes = HydraConfig.get().overrides.task
        require_for_suite(changes)
        asked = any(name_of(change) == "task.difficulty" for change in changes)
        difficulty = config.task.difficulty if asked else None
        return evaluate_suite(config.suite, config, run, difficulty)
    trial = config.trial(
        config.load(config.mesh), config.task.asked, config.sampler, sampler_name()
    )
    store = trial.store(run.folder)
    run.begin()
    if not config.worker.is_alone:
        return filled(config.worker, [(trial, store)])
    found = trial.run(store)
    run.fingerprint = found.settings.get("fingerprint")
    rows = decoder_rows(found.name, [found], config.phones)
    for index, item, _, _, length, nfe in found.generations:
        line = {"right": found.right[index], "target": item.target, "length": length, "nfe": nfe}
        run.record({"index": index, **line})
    run.finish(rows)


def require_no_other_answers(config: EvaluateConfig, folder: Path) -> None:
    """Raises ValueError for the folder of a run that decoded, unless this one can go on with it:
    its settings and results, which say what its answers are of, would be replaced."""
    other = CELLS if config.suite is None else GENERATIONS
    require(
        not (folder / other).exists(),
        f"{folder} has the {other} of another run, whose settings and results this one would "
        "replace; allowed: another folder (hydra.run.dir)",
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
    `threshold@threshold:0.8`, with a colon, since reports are given the name and Hydra's values
    hold no equals sign."""
    chosen = HydraConfig.get()
    changes = [each for each in chosen.overrides.task if each.startswith("sampler.")]
    shown = sorted(each.removeprefix("sampler.").replace("=", ":") for each in changes)
    return "@".join([chosen.runtime.choices["sampler"], *shown])


main = entry_point("evaluate", evaluate, EvaluateConfig)
