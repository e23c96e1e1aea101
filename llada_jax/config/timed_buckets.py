"""Time of a step by its number of rows: measured on a machine, or modelled for a phone."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from numbers import Real

from llada_jax.config.checks import ascending_counts, require

ROWS = (32, 64, 128, 256)
MODELLED = {
    "SM8650": (587.1, 1028.8, 1912.1, 3678.8),
    "SM8750": (508.4, 871.4, 1597.4, 3049.6),
    "SM8850": (484.1, 831.2, 1525.5, 2914.0),
}
"""Modelled milliseconds of a step of LLaDA-8B, by chip. A copy of the results of
`lj.phone(chip).latency_table("llada_8b")`, because samplers do not import the phone model."""


@dataclass(frozen=True, kw_only=True)
class LatencyTable:
    """Time of a step by its number of rows, measured by `lj.latency_table` or modelled by
    `Phone.latency_table`."""

    rows: tuple[int, ...]
    """Numbers of rows, ascending."""
    ms: tuple[float, ...]
    """Milliseconds of a step with each number of rows."""

    @classmethod
    def named(cls, soc: str) -> "LatencyTable":
        """Returns the modelled table of LLaDA-8B on a phone. Raises ValueError for another name."""
        require(soc in MODELLED, f"latency_table is {soc!r}; allowed: {', '.join(MODELLED)}")
        return cls(rows=ROWS, ms=MODELLED[soc])

    def draft_length(self, acceptance: float) -> int:
        """Returns the number of rows that decodes most tokens per time with a drafter: the
        `block_length` of draft and verify (presets `lookup` and `draft`).

        R rows verify R - 1 drafts. If the model confirms each with probability a, given the ones
        before it, a forward gives 1 + a + ... + a^(R - 1) tokens.

        Args:
          acceptance: a, from 0 to 1, as measured or assumed; 0.7 is a good drafter.
        """
        require(
            isinstance(acceptance, Real) and 0 <= acceptance <= 1,
            f"acceptance is {acceptance!r}; allowed: 0 to 1",
        )
        tokens = [sum(acceptance**n for n in range(rows)) for rows in self.rows]
        speeds = [count / ms for count, ms in zip(tokens, self.ms, strict=True)]
        return self.rows[speeds.index(max(speeds))]

    def __post_init__(self) -> None:
        rows = ascending_counts("latency_table.rows", self.rows)
        times = list(self.ms) if isinstance(self.ms, Iterable) else []
        require(
            len(times) == len(rows)
            and all(isinstance(ms, Real) and isfinite(ms) and ms > 0 for ms in times),
            f"latency_table.ms is {times or self.ms!r}; allowed: {len(rows)} numbers above 0, one "
            "for each of latency_table.rows",
        )
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "ms", tuple(float(ms) for ms in times))
