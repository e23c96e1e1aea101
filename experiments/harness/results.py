"""Result rows: the numbers of an experiment, each with its unit, kind, interval and source.

Every verb returns a list of `ResultRow`, which the harness writes to `results.json` and prints as a
table. A row that reproduces a published number carries the number as `reference` and its `source`.
"""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from numbers import Integral, Real
from typing import Any, Literal

from llada_jax.config import require, require_choice
from llada_jax.evaluation.metrics import wilson_interval
from llada_jax.table import aligned

Kind = Literal["measured", "modelled", "fitted", "informed", "repeated", "published"]
"""How a number was found. A modelled number with a reference is a prediction unless the reference
went into a fit (`fitted`), was known when the model was chosen (`informed`), or repeats another row
(`repeated`)."""


@dataclass(frozen=True)
class ResultRow:
    """One number of `results.json`. Fields that are None are left out of the file."""

    name: str
    value: float
    unit: str
    _: KW_ONLY
    kind: Kind = "measured"
    reference: float | None = None
    """A published number for the same quantity; `source` names the publication."""
    source: str | None = None
    n: int | None = None
    """The number of samples behind the value."""
    items: int | None = None
    """For a score, the number of items. They have `n` different questions; each counts once."""
    interval: tuple[float, float] | None = None
    """Its 95 % confidence interval."""
    fitted: bool | None = None
    """For a modelled value: whether its reference went into the fit."""
    band: tuple[float, float] | None = None
    """For a modelled value, its 95 % interval by the uncertainty of the model."""
    trace_source: str | None = None
    """For a modelled run, the source of its decoding trace."""
    fingerprint: str | None = None
    """Hash of the model, if it differs from the run's model (`Run.of`)."""

    def __post_init__(self) -> None:
        require_choice("kind", self.kind, Kind)
        require(
            self.fitted is None or self.kind == "modelled",
            f"fitted of {self.name} is {self.fitted} and kind {self.kind}; allowed: modelled",
        )
        for name in ("name", "unit"):
            value = getattr(self, name)
            require(isinstance(value, str) and value != "", f"{name} is {value!r}; allowed: text")
        for name in ("value", "reference"):
            value = getattr(self, name)
            if value is not None or name == "value":
                object.__setattr__(self, name, _number(f"{name} of {self.name}", value))
        needs_source = self.reference is not None or self.kind == "published"
        require(
            bool(self.source) or not needs_source,
            f"source of {self.name} is {self.source!r}; allowed: the publication of the number",
        )

    @property
    def error(self) -> float | None:
        """Returns the error relative to the reference; None without a reference or if it is 0."""
        return (self.value - self.reference) / abs(self.reference) if self.reference else None

    @property
    def is_predicted(self) -> bool:
        """Returns whether a modelled value has a reference that tests the model."""
        return self.error is not None and self.fitted is False

    @property
    def is_in_band(self) -> bool:
        """Returns whether the reference lies within the band."""
        if self.band is None or self.reference is None:
            return False
        return self.band[0] <= self.reference <= self.band[1]

    def as_dict(self) -> dict[str, Any]:
        """Returns plain JSON."""
        entries = {**asdict(self), "error": self.error}
        return {name: value for name, value in entries.items() if value is not None}


def share_row(name: str, right: int, n: int, unit: str, **fields: Any) -> ResultRow:
    """Returns the row of a share, `right` of `n`, with Wilson's interval."""
    return ResultRow(name, right / n, unit, n=n, interval=wilson_interval(right, n), **fields)


def _number(name: str, value: Any) -> float:
    """Returns a plain Python number, also for NumPy's."""
    require(
        isinstance(value, Real) and math.isfinite(value),
        f"{name} is {value!r}; allowed: a finite number",
    )
    return int(value) if isinstance(value, Integral) else float(value)


def table(rows: Sequence[ResultRow]) -> str:
    """Returns a text table of the columns that any row has, and the sources of traces."""
    right_aligned = ("value", "reference", "error", "n", "items", "interval")
    return "\n".join([aligned([cells(row) for row in rows], right_aligned), *traces(rows)])


def traces(rows: Sequence[ResultRow]) -> list[str]:
    """Returns one line with the sources of all traces, or nothing if no row has one."""
    sources = dict.fromkeys(row.trace_source for row in rows if row.trace_source)
    return [f"traces: {'; '.join(sources)}"] if sources else []


def cells(row: ResultRow) -> dict[str, str]:
    """Returns the cells of a row in a table, as text."""
    return {
        "name": row.name,
        "value": number(row.value),
        "unit": row.unit,
        "kind": row.kind,
        "reference": number(row.reference),
        "error": "" if row.error is None else f"{row.error:+.1%}",
        "n": number(row.n),
        "items": number(row.items),
        "interval": " to ".join(map(number, row.interval or ())),
        "band": " to ".join(map(number, row.band or ())),
        "fitted": {None: "", True: "yes", False: "no"}[row.fitted],
        "source": row.source or "",
    }


def number(value: float | None) -> str:
    """Formats with four significant digits; integers in full, None as empty text."""
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    decimals = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{decimals}f}"
