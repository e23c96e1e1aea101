"""Scores a model with lm-evaluation-harness (the extra `eval`), offline, on data sets in a folder.

    python -m experiments.lm_eval tasks=[gsm8k,boolq] data=path/to/data limit=20

On a machine with LLaDA-8B's weights and the data, the rows of Table 5 of llada.cpp (arXiv
2606.13740; 200 samples of each task):

    python -m experiments.lm_eval model=path/to/LLaDA-8B-Instruct dtype=bfloat16 \\
        data=path/to/data limit=200 sampler=llada sampler.gen_length=128 sampler.steps=128

The tasks are the files of conf/lm_eval, each of which says what its data holds. The run folder
gets, besides what every run writes, `samples/<task>.jsonl` (every item, request, response and
score) and `lm_eval.json` (the harness's version, results and settings of the tasks).
"""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf

import llada_jax as lj
from experiments.results import ResultRow
from experiments.run import REPOSITORY, Run, launch
from llada_jax.config import SamplerConfig, require
from llada_jax.evaluation.metrics import wilson_interval

TASKS = REPOSITORY / "conf" / "lm_eval"


@dataclass(frozen=True, kw_only=True)
class LmEvalConfig:
    """What to score, on what. The comments are in conf/lm_eval.yaml."""

    model: str
    dtype: str | None = None
    tasks: tuple[str, ...]
    data: str
    limit: int | None = None
    chat: bool = True
    sampler: SamplerConfig
    seed: int = 0
    backend: str = "xla"
    batch_size: int = 16
    mc_num: int = 128
    check_greedy: bool = False

    def __post_init__(self) -> None:
        known = sorted(path.stem for path in TASKS.glob("*.yaml"))
        require(bool(self.tasks), f"tasks is empty; allowed: {', '.join(known)}")
        for task in self.tasks:
            require(task in known, f"task is {task!r}; allowed: {', '.join(known)}")
        require(len(set(self.tasks)) == len(self.tasks), f"tasks repeat one: {list(self.tasks)}")
        for name in ("limit", "batch_size", "mc_num"):
            value = getattr(self, name)
            require(value is None or value > 0, f"{name} is {value}; allowed: 1 or more")


def score(config: LmEvalConfig, run: Run) -> None:
    """Checks the data, loads the model, and lets the harness score it."""
    tasks = [read_task(task, Path(config.data)) for task in config.tasks]
    harness_model = _harness_model(config)
    run.begin()
    found = _evaluate(config, harness_model, tasks)
    for task, samples in found["samples"].items():
        run.write(f"samples/{task}.jsonl", "".join(map(_line, samples)))
        for sample in samples:
            run.record({"task": task, **_scores(sample)})
    run.write("lm_eval.json", _line(_summary(found)))
    run.finish([row for task in config.tasks for row in rows_of(task, found["samples"][task])])


def read_task(name: str, data: Path) -> dict[str, Any]:
    """A file of conf/lm_eval with the paths of its data.

    Raises:
      FileNotFoundError, ValueError: no data file, or one that does not hold what the task reads.
    """
    task = OmegaConf.to_container(OmegaConf.load(TASKS / f"{name}.yaml"))
    assert isinstance(task, dict)
    kwargs, wanted = task["dataset_kwargs"], task["metadata"]["format"]
    for split, file in kwargs["data_files"].items():
        path = data / file
        if not path.is_file():
            raise FileNotFoundError(
                f"no {path}, which task {name} reads; expected: JSON lines {wanted}"
            )
        check_lines(path, wanted)
        kwargs["data_files"][split] = str(path)
    return {str(key): value for key, value in task.items()}


def check_lines(path: Path, wanted: str) -> None:
    """Raise ValueError unless each line is an object with the fields of `wanted`, an example."""
    example, _ = json.JSONDecoder().raw_decode(wanted)
    lines = path.read_text(encoding="utf-8").splitlines()
    require(bool(lines), f"{path} is empty; expected: JSON lines {wanted}")
    for number, line in enumerate(lines, 1):
        try:
            missing = [] if _holds(json.loads(line), example) else ["a field"]
        except ValueError:
            missing = ["JSON"]
        require(not missing, f"{path}, line {number}, is not {wanted}")


def _holds(item: Any, example: Any) -> bool:
    """Whether an object has an example's fields, at any depth."""
    if not isinstance(example, Mapping):
        return True
    return isinstance(item, Mapping) and all(
        name in item and _holds(item[name], inner) for name, inner in example.items()
    )
