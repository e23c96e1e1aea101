"""Scores a model with lm-evaluation-harness (the extra `eval`), offline, on data sets in a folder.

    python -m experiments.lm_eval tasks=[gsm8k,boolq] data=path/to/data limit=20
    python -m experiments.lm_eval tasks=[hellaswag_likelihood] data=path/to/data model=small

On a machine with LLaDA-8B's weights and the data, the rows of Table 5 of llada.cpp (arXiv
2606.13740; 200 samples of each task):

    python -m experiments.lm_eval model=path/to/LLaDA-8B-Instruct dtype=bfloat16 \\
        data=path/to/data limit=200 sampler=llada sampler.gen_length=128 sampler.steps=128

Tasks are the files of conf/lm_eval, which document their data's format. `task_folder` chooses
another folder of such files, or `harness` for the tasks and groups that the harness includes
(docs/evaluate.md has the paths of their data). `+protocol=...` chooses published settings, with
their scores (conf/protocol).

In addition to the files of every run, the run folder gets `samples_<task>.jsonl` (items, requests,
responses and scores) and `lm_eval.json` (the harness's version, results, and task settings).
Answers are stored in `answers/`, so that an interrupted run continues. Workers fill that folder
together; the same command without `worker` then computes the scores (docs/scale.md).
"""

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

import llada_jax as lj
from experiments.harness.model_source import ModelSource
from experiments.harness.results import ResultRow, share_row
from experiments.harness.run import REPOSITORY, Run, entry_point
from experiments.harness.workers import worker_summary
from experiments.lm_eval.tasks import RequestedTasks, file_task, harness_tasks, task_manager
from llada_jax.config import require, require_counts
from llada_jax.evaluation.generations import ALONE, Worker
from llada_jax.sampler.config import SamplerConfig

if TYPE_CHECKING:
    from lm_eval.api.model import LM

TASKS = REPOSITORY / "conf" / "lm_eval"
HARNESS = "harness"
"""The value of `task_folder` that chooses the harness's tasks."""
ANSWERS = "answers"
"""Name of the folder in a run's folder that has the answers."""
_ANSWER_SETTINGS = (
    "limit", "chat", "fewshot", "fewshot_as_multiturn", "diffusion_mask_id", "seed", "backend",
    "mc_num",
)  # fmt: skip
"""Settings that answers depend on, in addition to the tasks, the sampler and the model."""
_SUMMARY = ("lm_eval_version", "results", "n-samples", "configs", "config")


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published score of a task's metric; it applies to every filter of the responses."""

    row: str
    score: float
    source: str


@dataclass(frozen=True, kw_only=True)
class LmEvalConfig(ModelSource):
    """Settings of the verb; conf/lm_eval.yaml explains each."""

    tasks: tuple[str, ...]
    data: str
    task_folder: str | None = None
    limit: int | None = None
    chat: bool = True
    fewshot: int | None = None
    fewshot_as_multiturn: bool = False
    diffusion_mask_id: int | None = None
    run_code: bool = False
    published: tuple[Published, ...] = ()
    sampler: SamplerConfig
    seed: int = 0
    backend: str = "xla"
    batch_size: int = 16
    mc_num: int = 128
    worker: Worker = ALONE

    def __post_init__(self) -> None:
        has_files = self.task_folder != HARNESS
        files = sorted(file.stem for file in self.folder.glob("*.yaml"))
        known = files if has_files else self.tasks
        require(
            bool(known) or not has_files,
            f"task_folder is {self.task_folder}; allowed: one with *.yaml files, or {HARNESS}",
        )
        require(bool(self.tasks), f"tasks is empty; allowed: {', '.join(known)}")
        for task in self.tasks:
            require(task in known, f"task is {task!r}; allowed: {', '.join(known)}")
        require(len(set(self.tasks)) == len(self.tasks), f"tasks repeat one: {list(self.tasks)}")
        require_counts(self, "limit", "batch_size", "mc_num")
        require_counts(self, "fewshot", "diffusion_mask_id", least=0)

    @property
    def folder(self) -> Path:
        """The folder of the task files."""
        return TASKS if self.task_folder is None else Path(self.task_folder)

    def requested_tasks(self) -> list[RequestedTasks]:
        """Returns the tasks with their data files, after a check of the files if the format is
        known."""
        if self.task_folder == HARNESS:
            return harness_tasks(self.tasks, Path(self.data), self.run_code)
        return [file_task(task, Path(self.data), self.folder) for task in self.tasks]


def score(config: LmEvalConfig, run: Run) -> None:
    """Checks the data, loads the model, and has the harness score it."""
    from llada_jax.evaluation.lm_eval_model import LmEvalModel, StoredAnswers  # need the extra

    requests = config.requested_tasks()
    model = run.of(config.load())
    if config.diffusion_mask_id is not None:
        model = diffusion_form(model, config.diffusion_mask_id)
    settings = {"fingerprint": run.fingerprint, "dtype": model.stored_as}
    settings |= {key: value for key, value in asdict(config).items() if key in _ANSWER_SETTINGS}
    settings |= {"sampler": config.sampler.as_dict(), "tasks": list(config.tasks)}
    answers = StoredAnswers(run.folder / ANSWERS, settings, config.batch_size, config.worker)
    harness_model = LmEvalModel(
        model,
        config.sampler,
        backend=config.backend,
        mc_num=config.mc_num,
        batch_size=config.batch_size,
        seed=config.seed,
        kept=answers,
    )
    run.begin()
    results = evaluate(harness_model, requests, config)
    if not config.worker.is_alone:
        print(worker_summary(config.worker, answers.answered, "requests"))
        return
    rows: list[ResultRow] = []
    errors = harness_model.standard_errors
    for name, files in requests:
        for task in files:
            samples = [
                {**sample, "standard_errors": errors.get((task, sample["doc_id"]), [])}
                for sample in results["samples"][task]
            ]
            run.write(f"samples_{task}.jsonl", "".join(map(_json_line, samples)))
            rows += metric_rows(task, samples, config.published, results["results"][task])
            rows += error_rows(task, samples)
        if name not in files:
            whole = [sample for task in files for sample in results["samples"][task]]
            rows += metric_rows(name, whole, config.published)
    run.write("lm_eval.json", _json_line({name: results[name] for name in _SUMMARY}))
    run.finish(rows)


def diffusion_form(model: lj.Model, mask_id: int) -> lj.Model:
    """Returns an autoregressive model's weights as a diffusion model, without training: attention
    in both directions, outputs that still predict the next position, and an id as [MASK]."""
    family = model.config.family
    require(
        model.config.autoregressive,
        f"diffusion_mask_id is {mask_id} for a model of family {family!r}; allowed: null, or an "
        "autoregressive model",
    )
    config = model.config.replace(causal=None, shift_logits=True, mask_id=mask_id)
    return model.replace(config=config)


def evaluate(
    harness_model: "LM", requests: Sequence[RequestedTasks], config: LmEvalConfig
) -> dict[str, Any]:
    """Returns the results of the harness on tasks with given data files. Its cache is temporary."""
    from lm_eval.evaluator import simple_evaluate

    has_files = config.task_folder != HARNESS
    if config.run_code:
        os.environ["HF_ALLOW_CODE_EVAL"] = "1"  # the code_eval metric requires it as well
    with TemporaryDirectory() as cache:
        results = simple_evaluate(
            harness_model,
            tasks=[
                {
                    "task": task,
                    **({} if has_files else {"dataset_path": "json", "dataset_name": None}),
                    "dataset_kwargs": {"data_files": dict(paths), "cache_dir": cache},
                }
                for request in requests
                for task, paths in request.files.items()
            ],
            task_manager=task_manager(config.folder if has_files else None),
            num_fewshot=config.fewshot,
            fewshot_as_multiturn=config.fewshot_as_multiturn,
            limit=config.limit,
            apply_chat_template=config.chat,
            bootstrap_iters=0,
            confirm_run_unsafe_code=config.run_code,
        )
    assert results is not None
    return results


def metric_rows(
    task: str,
    samples: Sequence[Mapping[str, Any]],
    published: Sequence[Published] = (),
    aggregated: Mapping[str, Any] | None = None,
) -> list[ResultRow]:
    """Returns a row for each metric and filter of the responses, with the published score if there
    is one. Metrics that are no share of the items, such as perplexities, are taken from
    `aggregated`, the harness's results of the task."""
    values: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for sample in samples:
        for metric in sample["metrics"]:
            values[metric, sample["filter"]].append(sample[metric])
    rows = []
    for (metric, chosen), scores in values.items():
        name = "/".join([task, metric, *([] if chosen == "none" else [chosen])])
        known = next((score for score in published if name.startswith(score.row)), None)
        fields: Any = {"reference": known.score, "source": known.source} if known else {}
        if all(score in (0, 1) for score in scores):
            rows.append(share_row(name, int(sum(scores)), len(scores), "of items", **fields))
            continue
        total, totals = f"{metric},{chosen}", aggregated or {}
        require(total in totals, f"{name} has scores {scores}; allowed: 0 and 1")
        value = float(totals[total])
        rows.append(ResultRow(name, value, "over all items", n=len(scores), **fields))
    return rows


def error_rows(task: str, samples: Sequence[Mapping[str, Any]]) -> list[ResultRow]:
    """Returns the mean Monte Carlo standard error of a task's likelihoods, unless all are exact or
    have an unknown error."""
    errors = [error for sample in samples for error in sample["standard_errors"]]
    mean = float(np.mean(errors)) if errors else 0.0
    name = f"{task}/likelihood_standard_error"
    return [ResultRow(name, mean, "nats", n=len(errors))] if mean > 0 else []


def _json_line(content: Any) -> str:
    """Returns a line of JSON; NumPy scalars become numbers, other objects text."""

    def plain(value: Any) -> Any:
        return value.item() if isinstance(value, np.generic) else str(value)

    return json.dumps(content, default=plain, ensure_ascii=False) + "\n"


main = entry_point("lm_eval", score, LmEvalConfig)
