"""Scores a model with lm-evaluation-harness (the extra `eval`), offline, on data sets in a folder.

    python -m experiments.lm_eval tasks=[gsm8k,boolq] data=path/to/data limit=20
    python -m experiments.lm_eval tasks=[hellaswag_likelihood] data=path/to/data model=small

On a machine with LLaDA-8B's weights and the data, the rows of Table 5 of llada.cpp (arXiv
2606.13740; 200 samples of each task):

    python -m experiments.lm_eval model=path/to/LLaDA-8B-Instruct dtype=bfloat16 \\
        data=path/to/data limit=200 sampler=llada sampler.gen_length=128 sampler.steps=128

The tasks are the files of conf/lm_eval, each of which says what its data holds. `task_folder` names
another folder of such files, one's own, or with `harness` the tasks that come with the harness:
their data are `<data>/<task>/<split>.jsonl`. `+protocol=...` are settings that were published, with
their scores (conf/protocol).

The run folder gets, besides what every run writes, `samples_<task>.jsonl` (every item, request,
response and score) and `lm_eval.json` (the harness's version, its results, and the tasks'
settings). Answers are kept in `answers/`, from which an interrupted run goes on; workers fill it
together, and the same command without `worker` scores (docs/scale.md).
"""

import json
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import OmegaConf

import llada_jax as lj
from experiments.harness.results import ResultRow
from experiments.harness.run import REPOSITORY, Run, entry_point
from experiments.harness.workers import told
from llada_jax.config import SamplerConfig, require, require_counts
from llada_jax.evaluation.lm_eval_answers import StoredAnswers
from llada_jax.evaluation.metrics import wilson_interval
from llada_jax.evaluation.worker import ALONE, Worker

if TYPE_CHECKING:
    from lm_eval.api.model import LM

TASKS = REPOSITORY / "conf" / "lm_eval"
HARNESS = "harness"
"""The `task_folder` of tasks that come with the harness, as they are."""
ANSWERS = "answers"
"""The folder, in that of a run, where answers are stored."""
_DECIDING = ("limit", "chat", "fewshot_as_multiturn", "seed", "backend", "mc_num")
"""Settings that answers depend on, beside the tasks, the sampler and the model."""
_SUMMARY = ("lm_eval_version", "results", "n-samples", "configs", "config")


@dataclass(frozen=True, kw_only=True)
class Published:
    """A score that others report of a task's metric, whatever the filter, and where they do."""

    row: str
    score: float
    source: str


@dataclass(frozen=True, kw_only=True)
class LmEvalConfig:
    """What to score, on what. The comments are in conf/lm_eval.yaml."""

    model: str
    dtype: str | None = None
    tasks: tuple[str, ...]
    data: str
    task_folder: str | None = None
    limit: int | None = None
    chat: bool = True
    fewshot_as_multiturn: bool = False
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

    @property
    def folder(self) -> Path:
        """Where the tasks' files are; `HARNESS` for those that come with the harness."""
        return TASKS if self.task_folder is None else Path(self.task_folder)


def score(config: LmEvalConfig, run: Run) -> None:
    """Checks the data, loads the model, and lets the harness score it."""
    from llada_jax.evaluation.lm_eval_model import LmEvalModel  # needs the extra

    files = {task: data_files(task, Path(config.data), config.folder) for task in config.tasks}
    model = run.of(lj.load(config.model, config.dtype))
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
    found = evaluate(
        harness_model,
        files,
        limit=config.limit,
        chat=config.chat,
        folder=config.folder,
        multiturn=config.fewshot_as_multiturn,
    )
    if not config.worker.is_alone:
        print(told(config.worker, kept.answered, "requests"))
        return
    rows: list[ResultRow] = []
    for task in config.tasks:
        samples = found["samples"][task]
        run.write(f"samples_{task}.jsonl", "".join(map(_json_line, samples)))
        for sample in samples:
            metrics = {metric: float(sample[metric]) for metric in sample["metrics"]}
            whose = {"task": task, "item": sample["doc_id"], "filter": sample["filter"]}
            run.record(whose | metrics)
        rows += rows_of(task, samples, config.published)
    run.write("lm_eval.json", _json_line({name: found[name] for name in _SUMMARY}))
    run.finish(rows)


def evaluate(
    harness_model: "LM",
    files: Mapping[str, Mapping[str, str]],
    *,
    limit: int | None,
    chat: bool,
    folder: Path = TASKS,
    multiturn: bool = False,
) -> dict[str, Any]:
    """Returns the harness's results on tasks, by the files of their data; it keeps no cache."""
    own = None if str(folder) == HARNESS else str(folder)
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    manager = TaskManager(include_path=own, include_defaults=own is None)
    unknown = sorted(files.keys() - set(manager.all_tasks))
    require(not unknown, f"the harness has no task {unknown}; allowed: `lm-eval ls tasks`")
    with TemporaryDirectory() as cache:
        found = simple_evaluate(
            harness_model,
            tasks=[
                {
                    "task": task,
                    **({} if own else {"dataset_path": "json", "dataset_name": None}),
                    "dataset_kwargs": {"data_files": dict(paths), "cache_dir": cache},
                }
                for task, paths in files.items()
            ],
            task_manager=manager,
            fewshot_as_multiturn=multiturn,
            limit=limit,
            apply_chat_template=chat,
            bootstrap_iters=0,
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
        right, n = int(sum(scores)), len(scores)
        interval = wilson_interval(right, n)
        found = next((each for each in published if name.startswith(each.row)), None)
        beside: Any = {"reference": found.score, "source": found.source} if found else {}
        rows.append(ResultRow(name, right / n, "of items", n=n, interval=interval, **beside))
    return rows


def _json_line(content: Any) -> str:
    """Writes also NumPy's numbers, and what else the harness puts into its results."""

    def plain(value: Any) -> Any:
        return value.item() if isinstance(value, np.generic) else str(value)

    return json.dumps(content, default=plain, ensure_ascii=False) + "\n"


def data_files(name: str, data: Path, folder: Path = TASKS) -> dict[str, str]:
    """Returns where the data of a task is, by split. Raises FileNotFoundError, or ValueError for a
    file that does not hold what the task reads."""
    if str(folder) == HARNESS:
        found = {path.stem: str(path) for path in sorted((data / name).glob("*.jsonl"))}
        if not found:
            raise FileNotFoundError(f"no {data / name}/<split>.jsonl, which task {name} reads")
        return found
    task = OmegaConf.load(folder / f"{name}.yaml")
    wanted = task.metadata.format
    paths = {split: data / file for split, file in task.dataset_kwargs.data_files.items()}
    for path in paths.values():
        if not path.is_file():
            raise FileNotFoundError(f"no {path}, which task {name} reads: lines of {wanted}")
        check_lines(path, wanted)
    return {str(split): str(path) for split, path in paths.items()}


def check_lines(path: Path, wanted: str) -> None:
    """Raises ValueError unless each line is an object with the fields of `wanted`, an example."""
    example, _ = json.JSONDecoder().raw_decode(wanted)
    with path.open(encoding="utf-8") as file:
        lines = list(file)
    require(len(lines) > 0, f"{path} is empty; allowed: lines of {wanted}")
    for number, line in enumerate(lines, 1):
        try:
            is_like = _has_fields(json.loads(line), example)
        except ValueError:
            is_like = False
        require(is_like, f"{path}, line {number}, is not like {wanted}")


def _has_fields(item: Any, example: Any) -> bool:
    """Tells whether an object has an example's fields, at any depth."""
    if not isinstance(example, Mapping):
        return True
    return isinstance(item, Mapping) and all(
        name in item and _has_fields(item[name], inner) for name, inner in example.items()
    )


main = entry_point("lm_eval", score, LmEvalConfig)
