"""Finds the tasks of a run and their data files, and checks the data before a model is loaded."""

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
"""Paths of a task's data, by split."""


class RequestedTasks(NamedTuple):
    """The tasks behind one name of the setting `tasks`: one task, or all of a group."""

    name: str
    files: Mapping[str, Files]
    """Data files by task."""


def file_task(name: str, data: Path, folder: Path) -> RequestedTasks:
    """Returns a task of a folder of task files, with its data. Raises
    FileNotFoundError for missing data, and ValueError for lines without the task's fields."""
    parse_yaml(folder / f"{name}.yaml")  # has limits that OmegaConf lacks
    task = OmegaConf.load(folder / f"{name}.yaml")
    line_format = task.metadata.format
    paths = {split: data / file for split, file in task.dataset_kwargs.data_files.items()}
    for path in paths.values():
        if not path.is_file():
            raise FileNotFoundError(f"no {path}, which task {name} reads: lines of {line_format}")
        _check_lines(path, line_format)
    return RequestedTasks(name, {name: {str(split): str(path) for split, path in paths.items()}})


def harness_tasks(names: Sequence[str], data: Path, runs_code: bool) -> list[RequestedTasks]:
    """Returns tasks and groups that the harness includes, with their data. Raises ValueError for an
    unknown name, and for a task that executes answers as code unless `runs_code`;
    FileNotFoundError for missing data."""
    manager = task_manager(None)
    unknown = sorted(set(names) - set(manager.all_tasks))
    require(not unknown, f"the harness has no task {unknown}; allowed: `lm-eval ls tasks`")
    return [
        RequestedTasks(
            name, {task: _data_of(task, data, name, runs_code) for task in tasks_of(name)}
        )
        for name in names
    ]


@cache  # reads thousands of files
def task_manager(folder: Path | None) -> "TaskManager":
    """Returns the task index of a folder, or the harness's own for None."""
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    return TaskManager(include_path=folder and str(folder), include_defaults=folder is None)


def tasks_of(name: str) -> list[str]:
    """Returns the tasks of a group or a tag, also of nested groups; a task's name alone."""
    manager = task_manager(None)
    if name in manager.all_subtasks:
        return [name]
    inner = manager.task_index[name]["task"]
    if inner == -1:  # the tasks are listed in the group's file
        inner = _settings(name)["task"]
    return [task for member in inner for task in tasks_of(member)]


def _settings(name: str) -> dict[str, Any]:
    """Returns the settings of a task's file without its functions."""
    from lm_eval.utils import load_yaml_config

    path = task_manager(None).task_index[name]["yaml_path"]
    return load_yaml_config(yaml_path=path, mode="simple")


def _data_of(task: str, data: Path, group: str, runs_code: bool) -> dict[str, str]:
    """Returns the paths `<data>/<task>/<split>.jsonl`. Tasks that filter their items from a common
    data set, as those of mmlu_pro do, may use the group's folder."""
    settings = _settings(task)
    require(
        not task.startswith("minerva_math"),
        f"task {task} needs antlr4 4.11, and Hydra 4.9; allowed: custom task files (task_folder)",
    )
    require(
        runs_code or not settings.get("unsafe_code"),
        f"task {task} runs the code that a model writes; allowed: with run_code=true, in a sandbox",
    )
    picks = settings.get("dataset_name") is None and "process_docs" in settings
    folders = [data / task, *([data / group] if picks and group != task else [])]
    for folder in folders:
        if paths := {path.stem: str(path) for path in sorted(folder.glob("*.jsonl"))}:
            return paths
    searched = " or ".join(f"{folder}/<split>.jsonl" for folder in folders)
    raise FileNotFoundError(f"no {searched}, which task {task} reads")


def _check_lines(path: Path, line_format: str) -> None:
    """Raises ValueError unless each line has the fields of the example `line_format`."""
    example, _ = json.JSONDecoder().raw_decode(line_format)
    with path.open(encoding="utf-8") as file:
        lines = list(file)
    require(len(lines) > 0, f"{path} is empty; allowed: lines of {line_format}")
    for number, line in enumerate(lines, 1):
        try:
            has_fields = _has_fields(json.loads(line), example)
        except ValueError:
            has_fields = False
        require(has_fields, f"{path}, line {number}, is not like {line_format}")


def _has_fields(item: Any, example: Any) -> bool:
    """Returns whether an object has an example's fields, at any depth."""
    if not isinstance(example, Mapping):
        return True
    return isinstance(item, Mapping) and all(
        name in item and _has_fields(item[name], inner) for name, inner in example.items()
    )
