"""Work in a process of its own, so that what one piece of work leaves behind is not in the next."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")

_GIVEN_BACK_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""glibc keeps what was freed for later use, unless it was larger than this many bytes."""


def in_own_process(function: Callable[..., T], *arguments: object) -> T:
    """Returns what a function of some module gives in a new process; raises what it raises.

    Arrays that are freed there leave the process, so that its memory can be measured.
    """
    with _environment(_GIVEN_BACK_AT_ONCE), ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


@contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    """Variables that a new process starts with; this one's are as before afterwards."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
