"""JAX's persistent compilation cache, so that the second run of a command starts in seconds.

Programs are stored in `programs/<CPU>` of `cache_folder()`, at most 1 GiB. The environment variable
`JAX_COMPILATION_CACHE_DIR` chooses another folder; an empty value turns the cache off.
"""

import os
from pathlib import Path

import jax

from llada_jax.backend.resources import this_cpu
from llada_jax.io.cache_folder import cache_folder

MAX_BYTES = 1 << 30
_MIN_SECONDS = 0.02  # programs that compile faster are not stored


def enable_compilation_cache(folder: Path | None = None) -> None:
    """Turns the cache on in this process and its children, in `folder` or the user's cache folder.
    Environment variables that are set already win. Call it before anything is compiled."""
    folder = (folder or cache_folder() / "programs") / this_cpu()
    settings = {
        "compilation_cache_dir": str(folder),
        "compilation_cache_max_size": MAX_BYTES,  # a limit also makes JAX lock the folder
        "persistent_cache_min_compile_time_secs": _MIN_SECONDS,
    }
    for name, value in settings.items():
        variable = f"jax_{name}".upper()
        if variable not in os.environ:
            os.environ[variable] = str(value)
            jax.config.update(f"jax_{name}", value)
