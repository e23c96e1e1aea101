"""Scores a model with lm-evaluation-harness (the extra `eval`), offline, on data sets in a folder.

    python -m experiments.lm_eval tasks=[gsm8k,boolq] data=path/to/data limit=20
    python -m experiments.lm_eval tasks=[hellaswag_likelihood] data=path/to/data model=small

On a machine with LLaDA-8B's weights and the data, the rows of Table 5 of llada.cpp (arXiv
2606.13740; 200 samples of each task):

    python -m experiments.lm_eval model=path/to/LLaDA-8B-Instruct dtype=bfloat16 \\
        data=path/to/data limit=200 sampler=llada sampler.gen_length=128 sampler.steps=128

The tasks are the files of conf/lm_eval, each of which says what its data holds. `task_folder` names
another folder of such files, one's own, or with `harness` the tasks and the groups of tasks that
come with the harness (docs/quality.md says where their data lie). `+protocol=...` are settings that
were published, with their scores (conf/protocol).

The run folder gets, besides what every run writes, `samples_<task>.jsonl` (every item, request,
response and score) and `lm_eval.json` (the harness's version, its results, and the tasks'
settings). Answers are kept in `answers/`, from which an interrupted run goes on; workers fill it
together, and the same command without `worker` scores (docs/scale.md).
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

from experiments.harness.model_source import ModelSource
from experiments.harness.results import ResultRow, share_row
from experiments.harness.run import REPOSITORY, Run, entry_point
from experiments.harness.workers import told
from experiments.lm_eval.tasks import RequestedTasks, harness_tasks, own_task, task_manager
from llada_jax.config import require, require_counts
from llada_jax.evaluation.generations import ALONE, Worker
from llada_jax.sampler.config import SamplerConfig

if TYPE_CHECKING:
    from lm_eval.api.model import LM

TASKS = REPOSITORY / "conf" / "lm_eval"
HARNESS = "harness"
"""The `task_folder` of tasks that come with the harness, as they are."""
ANSWERS = "answers"
"""The folder, in that of a run, where answers are stored."""
_DECIDING = ("limit", "chat", "fewshot", "fewshot_as_multiturn", "seed", "backend", "mc_num")
"""Settings that answers depend on, beside the tasks, the sampler and the model."""
_SUMMARY = ("lm_eval_version", "results", "n-samples", "configs", "config")


@dataclass(frozen=True, kw_only=True)
class Published:
    """A score that others report of a task's metric, whatever the filter, and where they do."""

    row: str
    score: float
    source: str


@dataclass(frozen=True, kw_only=True)
class LmEvalConfig(ModelSource):
    """What to score, on what. The comments are in conf/lm_eval.yaml."""

    tasks: tuple[str, ...]
    data: str
    task_folder: str | None = None
    limit: int | None = None
    chat: bool = True
    fewshot: int | None = None
    fewshot_as_multiturn: bool = False
    run_code: bool = False
    published: tuple[Published, ...] = ()
    sampler: SamplerConfig
    seed: int = 0
    backend: str = "xla"
    batch_size: int = 16
    mc_num: int = 128
    worker: Worker = ALONE

    def __post_init__(self) -> None:
        own = self.task_folder != HARNESS
        known = sorted(each.stem for each in self.folder.glob("*.yaml")) if own else self.tasks
        require(
            bool(known) or not own,
            f"task_folder is {self.task_folder}; allowed: one with *.yaml files, or {HARNESS}",
        )
        require(bool(self.tasks), f"tasks is empty; allowed: {', '.join(known)}")
        for task in self.tasks:
            require(task in known, f"task is {task!r}; allowed: {', '.join(known)}")
        require(len(set(self.tasks)) == len(self.tasks), f"tasks repeat one: {list(self.tasks)}")
        require_counts(self, "limit", "batch_size", "mc_num")
        require_counts(self, "fewshot", least=0)

    @property
    def folder(self) -> Path:
        """Where the tasks' files are; `HARNESS` for those that come with the harness."""
        return TASKS if self.task_folder is None else Path(self.task_folder)

    def asked(self) -> list[RequestedTasks]:
        """Returns the tasks with their data, which are checked as far as their format is known."""
        if self.task_folder == HARNESS:
            return harness_tasks(self.tasks, Path(self.data), self.run_code)
        return [own_task(task, Path(self.data), self.folder) for task in self.tasks]


def score(config: LmEvalConfig, run: Run) -> None:
    """Checks the data, loads the model, and lets the harness score it."""
    from llada_jax.evaluation.lm_eval_model import LmEvalModel, StoredAnswers  # need the extra

    asked = config.asked()
    model = run.of(config.load())
    settings = {"fingerprint": run.fingerprint, "dtype": model.stored_as}
    settings |= {key: value for key, value in asdict(config).items() if key in _DECIDING}
    settings |= {"sampler": config.sampler.as_dict(), "tasks": list(config.tasks)}
    kept = StoredAnswers(run.folder / ANSWERS, settings, config.batch_size, config.worker)
    harness_model = LmEvalModel(
        model,
        config.sampler,
        backend=config.backend,
        mc_num=config.mc_num,
        batch_size=config.batch_size,
        seed=config.seed,
        kept=kept,
    )
    run.begin()
    found = evaluate(harness_model, asked, config)
    if not config.worker.is_alone:
        print(told(config.worker, kept.answered, "requests"))
        return
    rows: list[ResultRow] = []
    for name, files in asked:
        for task in files:
            samples = found["samples"][task]
            run.write(f"samples_{task}.jsonl", "".join(map(_json_line, samples)))
            rows += rows_of(task, samples, config.published)
        if name not in files:
            whole = [sample for task in files for sample in found["samples"][task]]
            rows += rows_of(name, whole, config.published)
    run.write("lm_eval.json", _json_line({name: found[name] for name in _SUMMARY}))
    run.finish(rows)


def evaluate(
    harness_model: "LM", asked: Sequence[RequestedTasks], config: LmEvalConfig
) -> dict[str, Any]:
    """Returns the harness's results on tasks, by the files of their data; it keeps no cache."""
    from lm_eval.evaluator import simple_evaluate

    own = config.task_folder != HARNESS
    if config.run_code:
        os.environ["HF_ALLOW_CODE_EVAL"] = "1"  # which the harness's metric wants, too
    with TemporaryDirectory() as cache:
        found = simple_evaluate(
            harness_model,
            tasks=[
                {
                    "task": task,
                    **({} if own else {"dataset_path": "json", "dataset_name": None}),
                    "dataset_kwargs": {"data_files": dict(paths), "cache_dir": cache},
                }
                for each in asked
                for task, paths in each.files.items()
            ],
            task_manager=task_manager(config.folder if own else None),
            num_fewshot=config.fewshot,
            fewshot_as_multiturn=config.fewshot_as_multiturn,
            limit=config.limit,
            apply_chat_template=config.chat,
            bootstrap_iters=0,
            confirm_run_unsafe_code=config.run_code,
        )
    assert found is not None
    return found


def rows_of(
    task: str, samples: Sequence[Mapping[str, Any]], published: Sequence[Published] = ()
) -> list[ResultRow]:
    """Returns a row for each metric, and filter of the responses where there are several, beside
    what others report."""
    values: dict[str, list[float]] = defaultdict(list)
    for sample in samples:
        chosen = [] if sample["filter"] == "none" else [sample["filter"]]
        for metric in sample["metrics"]:
            values["/".join([task, metric, *chosen])].append(float(sample[metric]))
    rows = []
    for name, scores in values.items():
        require(set(scores) <= {0.0, 1.0}, f"{name} has scores {scores}; allowed: 0 and 1")
        found = next((each for each in published if name.startswith(each.row)), None)
        beside: Any = {"reference": found.score, "source": found.source} if found else {}
        rows.append(share_row(name, int(sum(scores)), len(scores), "of items", **beside))
    return rows


def _json_line(content: Any) -> str:
    """Writes also NumPy's numbers, and what else the harness puts into its results."""

    def plain(value: Any) -> Any:
        return value.item() if isinstance(value, np.generic) else str(value)

    return json.dumps(content, default=plain, ensure_ascii=False) + "\n"


main = entry_point("lm_eval", score, LmEvalConfig)
