"""Tasks that need no download: seeded generators with exact verifiers.

A module of this package is a task: it holds a `TASK`, and its file is all there is to add.
"""

import importlib
import pkgutil
from functools import cache

from llada_jax.config import require
from llada_jax.evaluation.task import Task


def task_names() -> tuple[str, ...]:
    """Returns names of all tasks, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


@cache
def load_task(name: str) -> Task:
    """Returns a task by name; ValueError lists the names that exist."""
    names = task_names()
    require(name in names, f"task is {name!r}; allowed: {', '.join(names)}")
    return importlib.import_module(f"{__name__}.{name}").TASK
