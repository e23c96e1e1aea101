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


def in_own_process(
    function: Callable[..., T], *arguments: object, environment: Mapping[str, str] = NOTHING
) -> T:
    """Returns what a function of some module gives in a new process; raises what it raises."""
    alone = ProcessPoolExecutor(1, get_context("spawn"))
    with patch.dict(os.environ, environment), alone as process:
        return process.submit(function, *arguments).result()
