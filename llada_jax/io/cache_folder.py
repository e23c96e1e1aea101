"""The folder for data that can be recomputed, kept between runs: `$XDG_CACHE_HOME/llada_jax`."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Returns the user's cache folder for this package, which may not exist; `~/.cache/llada_jax`
    if `XDG_CACHE_HOME` is not set."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "llada_jax"
