"""Work in a process of its own, so that what one piece of work leaves behind is not in the next."""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import MappingProxyType
from typing import TypeVar
from unittest.mock import patch

T = TypeVar("T")

NOTHING: Mapping[str, str] = MappingProxyType({})
FREED_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""glibc keeps what was freed for later use, unless it was larger than this many bytes. So freed
arrays leave the process, whose memory can be measured."""


def in_own_process(
    function: Callable[..., T], *arguments: object, environment: Mapping[str, str] = NOTHING
) -> T:
    """Returns what a function of some module gives in a new process; raises what it raises."""
    alone = ProcessPoolExecutor(1, get_context("spawn"))
    with patch.dict(os.environ, environment), alone as process:
        return process.submit(function, *arguments).result()
