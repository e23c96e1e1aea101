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
_LOOK_EVERY = 8  # new shapes: a look at twenty thousand lines takes milliseconds
_kept: OrderedDict[Hashable, Any] = OrderedDict()
_lock = RLock()
_new_shapes = count(1)


def own_jit(
    function: Callable[..., Any], *, rounds: bool = False, **options: Any
) -> Callable[..., Any]:
    """Returns `jax.jit(function, **options)` whose programs are dropped when it is: JAX keeps them
    by the function, which is a new one here.

    One that `rounds` rounds every result to its dtype, as written; XLA otherwise keeps more bits
    wherever one of its fusions has them, and fusions depend on the number of devices.
    """
    if rounds:
        options["compiler_options"] = {"xla_allow_excess_precision": False}

    return jax.jit(partial(function), **options)


def kept(make: Callable[..., T]) -> Callable[..., T]:
    """Returns `make`, which makes functions of `own_jit` for a shape, as one that gives the same
    ones for the same shape (hashable), until they are the oldest and room is needed."""

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
    """Drops the programs of the shapes that were used longest ago, until at most `MAX_MAPPINGS`
    regions are mapped; all that JAX keeps, where those of `kept` are not what takes the room."""
    with _lock:
        while _mappings() > MAX_MAPPINGS:
            if not _kept:
                return jax.clear_caches()
            for _ in range(len(_kept) // 8 + 1):
                _kept.popitem(last=False)


def _mappings() -> int:
    """Counts regions; 0 where the system does not list them, and sets no such limit."""
    return _MAPPINGS.read_bytes().count(b"\n") if _MAPPINGS.exists() else 0
