"""Check of the setting `tiles`: weights in the NPU's layout, for the refresh worker."""

from llada_jax.config import require
from llada_jax.revision.tiles import Kind
from llada_jax.sampler.config import SamplerConfig


def check_tiles(tiles: Kind | None, backend: str, sampler: SamplerConfig) -> None:
    """Raises ValueError if no part of the run would use the tiles."""
    require(
        tiles is None or (sampler.has_worker and backend == "xla"),
        f"tiles is {tiles!r}, backend is {backend!r} and the sampler has "
        f"{'a' if sampler.has_worker else 'no'} worker; allowed: None, or tiles with backend 'xla' "
        "and a staged sampler whose refresh is 'worker'",
    )
