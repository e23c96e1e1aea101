"""Where what can be made again is kept between runs: `$XDG_CACHE_HOME/llada_jax`."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Returns the user's folder for what this package remembers; `~/.cache/llada_jax` where
    `XDG_CACHE_HOME` is not set. It may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "llada_jax"
