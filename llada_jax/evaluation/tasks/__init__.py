"""Tasks that need no download: seeded generators with exact verifiers.

A module of this package is a task: it holds a `TASK`, and its file is all there is to add. Another
distribution adds one by an entry point of the group `llada_jax.tasks`: its name, and the `Task`.
"""

import importlib
import pkgutil
from functools import cache
from importlib.metadata import entry_points

from llada_jax.config import require
from llada_jax.evaluation.task import Task

GROUP = "llada_jax.tasks"


def task_names() -> tuple[str, ...]:
    """Returns names of all tasks, sorted."""
    own = {module.name for module in pkgutil.iter_modules(__path__)}
    return tuple(sorted(own | entry_points(group=GROUP).names))


@cache
def load_task(name: str) -> Task:
    """Returns a task by name; ValueError lists the names that exist."""
    names = task_names()
    require(name in names, f"task is {name!r}; allowed: {', '.join(names)}")
    for added in entry_points(group=GROUP, name=name):
        found, where = added.load(), added.value
        kind = type(found).__name__
        require(isinstance(found, Task), f"{where} is a {kind}; allowed in {GROUP}: a Task")
        return found
    return importlib.import_module(f"{__name__}.{name}").TASK
