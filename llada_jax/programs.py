"""Compiled programs, kept within a bound: the oldest are dropped first.

XLA maps some hundred regions of memory for each program that it compiles for a CPU. Linux allows a
process 65,530 of them, beyond which LLVM ends it, and JAX itself keeps thousands of programs.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial, wraps
from itertools import count
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

import jax

T = TypeVar("T")

MAX_MAPPINGS = 20_000
_MAPPINGS = Path("/proc/self/maps")
_LOOK_EVERY = 8  # new shapes, because reading twenty thousand lines takes milliseconds
_kept: OrderedDict[Hashable, Any] = OrderedDict()
_lock = RLock()
_new_shapes = count(1)


def own_jit(
    function: Callable[..., Any], *, rounds: bool = False, **options: Any
) -> Callable[..., Any]:
    """Returns `jax.jit(function, **options)` as a new function: JAX keeps compiled programs by the
    function, so they are dropped with this one.

    With `rounds` every result is rounded to its dtype, as written. Otherwise XLA keeps more bits
    inside its fusions, which depend on the number of devices.
    """
    if rounds:
        options["compiler_options"] = {"xla_allow_excess_precision": False}

    return jax.jit(partial(function), **options)


def kept(make: Callable[..., T]) -> Callable[..., T]:
    """Caches `make(*shape)`, which makes functions of `own_jit` for a hashable shape, until it is
    the oldest entry and room is needed."""

    @wraps(make)
    def keep(*shape: Hashable) -> T:
        key = (make, shape)
        with _lock:
            if key not in _kept:
                if next(_new_shapes) % _LOOK_EVERY == 0:
                    drop_old_programs()
                _kept[key] = make(*shape)
            _kept.move_to_end(key)
            return _kept[key]

    return keep


def drop_old_programs() -> None:
    """Drops the programs of the least recently used shapes, until at most `MAX_MAPPINGS` regions
    are mapped. If that is not enough, drops all programs that JAX keeps."""
    with _lock:
        while _mappings() > MAX_MAPPINGS:
            if not _kept:
                return jax.clear_caches()
            for _ in range(len(_kept) // 8 + 1):
                _kept.popitem(last=False)


def _mappings() -> int:
    """Counts mapped regions; 0 on systems without such a list, which have no such limit."""
    return _MAPPINGS.read_bytes().count(b"\n") if _MAPPINGS.exists() else 0
