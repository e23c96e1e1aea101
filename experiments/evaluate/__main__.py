"""Decodes the items of a task, grades the answers, and reports the score with its interval.

    python -m experiments.evaluate task=word_problems task.seed=7 task.items=100 sampler=llada
    python -m experiments.evaluate -m task=yes_no,choices sampler=llada,threshold backend=xla,litert
    python -m experiments.evaluate sampler=threshold 'phones=[SM8750]'
    python -m experiments.evaluate suite=decoding task.items=100
    python -m experiments.evaluate worker.rank=0 worker.count=3 hydra.run.dir=outputs/evaluate/of_3

In addition to the files of every run, the run folder gets `generations/`: each answer with its
item, all settings, the environment, and the traces. `metrics.jsonl` has a line for each item. A
suite is many such runs in one folder, with one table.

The same command on the same folder (`hydra.run.dir`, or `hydra.sweep.dir` of a sweep) continues an
interrupted run; stored answers are only graded again, also for other `phones`. A sweep (`-m`) ends
with `report.md` in its folder, and stops at the first job with bad settings. Workers fill one
folder together; the same command without `worker` then grades it (docs/scale.md).
`python -m experiments.report` compares many runs without loading a model.
"""

from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig

from experiments.evaluate.config import CELLS, EvaluateConfig
from experiments.evaluate.result_rows import decoder_rows
from experiments.evaluate.suite import evaluate_suite
from experiments.harness.run import Run, entry_point
from experiments.harness.workers import fill_stores
from llada_jax.config import require
from llada_jax.evaluation.graded import GENERATIONS


def evaluate(config: EvaluateConfig, run: Run) -> None:
    """Decodes the missing items and grades all of them; a worker only decodes its share."""
    _require_no_foreign_answers(config, run.folder)
    if config.suite is not None:
        changes = HydraConfig.get().overrides.task
        _require_for_suite(changes)
        is_set = any(_setting_name(change) == "task.difficulty" for change in changes)
        difficulty = config.task.difficulty if is_set else None
        return evaluate_suite(config.suite, config, run, difficulty)
    model = config.load(config.mesh)
    trial = config.trial(model, config.task.task_items, config.sampler, sampler_name())
    store = trial.store(run.folder)
    run.begin()
    if not config.worker.is_alone:
        return fill_stores(config.worker, [(trial, store)])
    evaluation = trial.run(store)
    run.fingerprint = evaluation.settings.get("fingerprint")
    rows = decoder_rows(evaluation.name, [evaluation], config.phones)
    for index, item, _, _, length, nfe in evaluation.generations:
        line = {"index": index, "right": evaluation.right[index], "target": item.target}
        run.record({**line, "strict": evaluation.strict.get(index), "length": length, "nfe": nfe})
    run.finish(rows)


def _require_no_foreign_answers(config: EvaluateConfig, folder: Path) -> None:
    """Raises ValueError if a single run would use the folder of a suite, or a suite that of a
    single run: the settings and results that belong to its answers would be replaced."""
    other = CELLS if config.suite is None else GENERATIONS
    require(
        not (folder / other).exists(),
        f"{folder} has the {other} of another run, whose settings and results this one would "
        "replace; allowed: another folder (hydra.run.dir)",
    )


def _require_for_suite(changes: Sequence[str]) -> None:
    """Raises ValueError if the command line sets something that a suite chooses itself."""
    for change in changes:
        name = _setting_name(change)
        require(
            name not in ("task", "task.name", "task.gen_length", "sampler")
            and not name.startswith("sampler."),
            f"{change} with a suite, which chooses its tasks and samplers; allowed: task.seed, "
            "task.items, task.difficulty, task.prompts, suite.tasks, suite.decoders",
        )


def _setting_name(change: str) -> str:
    """Returns the name in an override: `sampler.threshold` of `+sampler.threshold=0.9`."""
    return change.partition("=")[0].lstrip("+~")


def sampler_name() -> str:
    """Returns the preset and what the command line changed in it: `threshold@threshold:0.8`. It
    has a colon because the name is itself given to `experiments.report`, where Hydra would
    parse an equals sign."""
    hydra = HydraConfig.get()
    changes = [text for text in hydra.overrides.task if text.startswith("sampler.")]
    listed = sorted(text.removeprefix("sampler.").replace("=", ":") for text in changes)
    return "@".join([hydra.runtime.choices["sampler"], *listed])


main = entry_point("evaluate", evaluate, EvaluateConfig)
