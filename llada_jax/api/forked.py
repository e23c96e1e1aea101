"""JAX runs only in the process that started it: its threads do not exist in a fork of it."""

import os

from llada_jax.config import require

_started_in: int | None = None


def require_own_jax() -> None:
    """Raises ValueError in a fork of a process that has loaded or run a model: what JAX computes
    there would wait for threads that do not exist, without end."""
    global _started_in
    _started_in = _started_in or os.getpid()
    require(
        _started_in == os.getpid(),
        f"process {os.getpid()} was forked from process {_started_in}, which uses JAX, and would "
        "hang; allowed: processes that multiprocessing starts by spawn or forkserver",
    )
