"""Tasks that need no download: seeded generators with exact verifiers.

Each module of this package defines one task as `TASK`; a new file needs no registration. Another
package adds a `Task` by an entry point in the group `llada_jax.tasks`, under the task's name.
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
    built_in = {module.name for module in pkgutil.iter_modules(__path__)}
    return tuple(sorted(built_in | entry_points(group=GROUP).names))


@cache
def load_task(name: str) -> Task:
    """Returns a task by name; ValueError lists the names that exist."""
    names = task_names()
    require(name in names, f"task is {name!r}; allowed: {', '.join(names)}")
    for entry_point in entry_points(group=GROUP, name=name):
        task = entry_point.load()
        require(
            isinstance(task, Task),
            f"{entry_point.value} is a {type(task).__name__}; allowed in {GROUP}: a Task",
        )
        return task
    return importlib.import_module(f"{__name__}.{name}").TASK
