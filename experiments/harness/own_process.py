"""Work in a process of its own, so that what one piece of work leaves behind is not in the next."""

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar
from unittest.mock import patch

T = TypeVar("T")

_GIVEN_BACK_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""glibc keeps what was freed for later use, unless it was larger than this many bytes."""


def in_own_process(function: Callable[..., T], *arguments: object) -> T:
    """Returns what a function of some module gives in a new process; raises what it raises.

    Arrays that are freed there leave the process, so that its memory can be measured.
    """
    alone = ProcessPoolExecutor(1, get_context("spawn"))
    with patch.dict(os.environ, _GIVEN_BACK_AT_ONCE), alone as process:
        return process.submit(function, *arguments).result()
