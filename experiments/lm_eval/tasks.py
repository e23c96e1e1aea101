"""The tasks that a run scores, one by one, and the files that hold their data."""

import json
import logging
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import OmegaConf

from llada_jax.config import require
from llada_jax.config_files import parse_yaml

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

Files = Mapping[str, str]
"""Where the data of a task is, by split."""


class RequestedTasks(NamedTuple):
    """What a user asked for by one name: one task, or all of a group."""

    name: str
    files: Mapping[str, Files]
    """Of each task."""


def own_task(name: str, data: Path, folder: Path) -> RequestedTasks:
    """Returns a task of a folder of task files, with its data. Raises FileNotFoundError, or
    ValueError for a file that does not hold what the task reads."""
    parse_yaml(folder / f"{name}.yaml")  # which refuses what OmegaConf does not
    task = OmegaConf.load(folder / f"{name}.yaml")
    wanted = task.metadata.format
    paths = {split: data / file for split, file in task.dataset_kwargs.data_files.items()}
    for path in paths.values():
        if not path.is_file():
            raise FileNotFoundError(f"no {path}, which task {name} reads: lines of {wanted}")
        check_lines(path, wanted)
    return RequestedTasks(name, {name: {str(split): str(path) for split, path in paths.items()}})


def harness_tasks(names: Sequence[str], data: Path, runs_code: bool) -> list[RequestedTasks]:
    """Returns tasks and groups that come with the harness, with their data. Raises ValueError for a
    name that the harness lacks, and for tasks that run what a model writes unless `runs_code`;
    FileNotFoundError for data that are missing."""
    manager = task_manager(None)
    unknown = sorted(set(names) - set(manager.all_tasks))
    require(not unknown, f"the harness has no task {unknown}; allowed: `lm-eval ls tasks`")
    return [
        RequestedTasks(
            name, {task: _data_of(task, data, name, runs_code) for task in tasks_of(name)}
        )
        for name in names
    ]


@cache  # it reads thousands of files
def task_manager(folder: Path | None) -> "TaskManager":
    """Returns what knows the tasks of a folder; of the harness for None."""
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    return TaskManager(include_path=folder and str(folder), include_defaults=folder is None)


def tasks_of(name: str) -> list[str]:
    """Returns the harness's tasks of a group or a tag, groups within it included; else itself."""
    manager = task_manager(None)
    if name in manager.all_subtasks:
        return [name]
    inner = manager.task_index[name]["task"]
    if inner == -1:  # a group's tasks stand in its file
        inner = _settings(name)["task"]
    return [task for each in inner for task in tasks_of(each)]


def _settings(name: str) -> dict[str, Any]:
    """Returns the settings of a task's file, its functions left out."""
    from lm_eval.utils import load_yaml_config

    path = task_manager(None).task_index[name]["yaml_path"]
    return load_yaml_config(yaml_path=path, mode="simple")


def _data_of(task: str, data: Path, group: str, runs_code: bool) -> dict[str, str]:
    """Returns `<data>/<task>/<split>.jsonl`; the group's folder serves tasks that pick their items
    from one data set themselves, as those of mmlu_pro do."""
    settings = _settings(task)
    require(
        not task.startswith("minerva_math"),
        f"task {task} needs antlr4 4.11, and Hydra 4.9; allowed: math tasks by files of one's own",
    )
    require(
        runs_code or not settings.get("unsafe_code"),
        f"task {task} runs the code that a model writes; allowed: with run_code=true, in a sandbox",
    )
    picks = settings.get("dataset_name") is None and "process_docs" in settings
    folders = [data / task, *([data / group] if picks and group != task else [])]
    for folder in folders:
        if found := {path.stem: str(path) for path in sorted(folder.glob("*.jsonl"))}:
            return found
    looked = " or ".join(f"{folder}/<split>.jsonl" for folder in folders)
    raise FileNotFoundError(f"no {looked}, which task {task} reads")


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
