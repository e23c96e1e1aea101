"""Ways of decoding that differ in a few settings.

Axes(theta_visible=(0.5, 0.7), theta_stable=(0.9,)).combinations()
"""

import itertools
from collections.abc import Iterator
from dataclasses import field, fields, make_dataclass
from typing import Any

from llada_jax.config import SamplerConfig


class Axes(
    make_dataclass(
        "Values",
        [
            (name, tuple[hint, ...], field(default=()))
            for name, hint in SamplerConfig.setting_types().items()
            if name not in ("gen_length", "steps")  # which a task sets
        ],
        frozen=True,
        kw_only=True,
    )
):
    """Holds values of settings of `SamplerConfig`; empty ones stay as the sampler has them."""

    @property
    def given(self) -> dict[str, tuple[Any, ...]]:
        """Returns the values of the settings that have some."""
        return {e.name: getattr(self, e.name) for e in fields(self) if getattr(self, e.name)}

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Yields all of them, less those whose theta_visible is above theta_stable."""
        axes = self.given
        for values in itertools.product(*axes.values()):
            combination: dict[str, Any] = dict(zip(axes, values, strict=True))
            low, high = (combination.get(name) for name in ("theta_visible", "theta_stable"))
            if low is None or high is None or low <= high:
                yield combination
