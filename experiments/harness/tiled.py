"""Weights in the NPU's tiles, which the backend runs, or the worker refreshes from."""

from typing import get_args

import llada_jax as lj
from llada_jax.config import SamplerConfig, require
from llada_jax.revision.tiles import Kind

BACKEND = "tiles"


def check_tiles(tiles: Kind | None, backend: str, sampler: SamplerConfig) -> None:
    """Raises ValueError where nothing would read the tiles, and where the backend has none."""
    require(
        tiles is not None or backend != BACKEND,
        f"tiles is None and backend is {backend!r}; allowed: "
        + ", ".join(map(repr, get_args(Kind))),
    )
    require(
        tiles is None or backend == BACKEND or sampler.has_worker,
        f"tiles is {tiles!r}, backend is {backend!r} and the sampler has no worker; allowed: None, "
        f"or tiles with backend {BACKEND!r} or with a staged sampler whose refresh is 'worker'",
    )
    require(
        tiles is None or backend in ("xla", BACKEND),
        f"tiles is {tiles!r} and backend is {backend!r}, whose keys and values no worker can read; "
        f"allowed: 'xla', {BACKEND!r}",
    )


def models_for(
    model: lj.Model, tiles: Kind | None, backend: str, sampler: SamplerConfig
) -> tuple[lj.Model, lj.Model | None]:
    """Returns what a run decodes with, in tiles where that is asked for, and what its worker runs:
    None for the same, or where there is no worker."""
    if tiles is None:
        return model, None
    tiled = lj.tiled(model)
    return tiled if backend == BACKEND else model, tiled if sampler.has_worker else None
