"""A phone's ways to make weights visible to its NPU, as planners take them: from its profile."""

import math
from collections.abc import Mapping

from llada_jax.config import require
from llada_jax.phone.profile import Profile
from llada_jax.swap.address_budget import MappingPath

_GIB = 1 << 30


def mapping_paths(profile: Profile) -> Mapping[str, MappingPath]:
    """Returns all ways by name. Published costs differ a thousandfold: results name their path."""
    costs = profile.mapping

    def path(number: str, map_ms: float, step_ms: float, bytes_per_second: float) -> MappingPath:
        entry = profile.numbers[f"mapping.{number}"]
        return MappingPath(
            round(map_ms * 1e6), round(step_ms * 1e6), bytes_per_second, entry.tag, entry.source
        )

    delayed_seconds = costs.delayed_ms_per_gib * 1e-3
    return {
        "immediate": path("event_ms", costs.event_ms, 0, math.inf),
        "copy": path("copy_gbps", 0, costs.copy_ms, costs.copy_gbps * 1e9),
        "delayed": path("delayed_ms_per_gib", 0, 0, _GIB / delayed_seconds),
    }


def mapping_path(profile: Profile, name: str) -> MappingPath:
    """Returns a path by name; raises ValueError for an unknown one."""
    paths = mapping_paths(profile)
    require(name in paths, f"path is {name!r}; allowed: {', '.join(map(repr, paths))}")
    return paths[name]
