"""Compiled programs outlive a run, so that the next one starts in seconds.

They lie in `programs/<CPU>` of `cache_folder()`, at most 1 GiB. `JAX_COMPILATION_CACHE_DIR` names
another folder, or with an empty value none.
"""

import os
from pathlib import Path

import jax

from llada_jax.backend.resources import this_cpu
from llada_jax.io.cache_folder import cache_folder

LIMIT = 1 << 30
SHORTEST = 0.02
"""Seconds that a compilation takes at least, for its program to be kept."""


def keep_compiled_programs(folder: Path | None = None) -> None:
    """Has JAX keep what it compiles in `folder`, by default the user's, and the processes that this
    one starts, too. Settings that are in the environment hold. To be called before anything is
    compiled."""
    folder = (folder or cache_folder() / "programs") / this_cpu()
    settings = {
        "compilation_cache_dir": str(folder),
        "compilation_cache_max_size": LIMIT,  # with a limit, processes that share it lock it
        "persistent_cache_min_compile_time_secs": SHORTEST,
    }
    for name, value in settings.items():
        variable = f"jax_{name}".upper()
        if variable not in os.environ:
            os.environ[variable] = str(value)
            jax.config.update(f"jax_{name}", value)
