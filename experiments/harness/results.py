"""The results of an experiment: rows of numbers that say what they are and where they come from."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from numbers import Integral, Real
from typing import Any, Literal

from llada_jax.config import require, require_choice
from llada_jax.evaluation.metrics import wilson_interval

Kind = Literal["measured", "modelled", "fitted", "informed", "repeated", "published"]
"""Modelled rows are `fitted` where the reference went into a fit, `informed` where the model was
chosen with it in view, `repeated` where another row says the same; the rest are predictions."""


@dataclass(frozen=True)
class ResultRow:
    """One number of `results.json`. Fields that are None are left out of the file."""

    name: str
    value: float
    unit: str
    _: KW_ONLY
    kind: Kind = "measured"
    reference: float | None = None
    """What somebody else reports for the same thing; `source` says who."""
    source: str | None = None
    n: int | None = None
    """How many samples the value is a mean of."""
    items: int | None = None
    """Of a score: how many items it was found on. They ask `n` questions; each counts once."""
    interval: tuple[float, float] | None = None
    """Its 95 % confidence interval."""
    fitted: bool | None = None
    """Of a modelled value: whether the reference, or a figure that shares it, went into the fit."""
    band: tuple[float, float] | None = None
    """Of a modelled value: what it should lie within at 95 %, by the doubts of the model."""
    trace_source: str | None = None
    """Of a modelled run: where its decoding dynamics come from."""
    fingerprint: str | None = None
    """Of the model that it was found with, where the other rows are not (else `Run.of`)."""

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
            f"source of {self.name} is {self.source!r}; allowed: where the number was published",
        )

    @property
    def error(self) -> float | None:
        """Returns the error relative to the reference; None where there is none, or it is 0."""
        return (self.value - self.reference) / abs(self.reference) if self.reference else None

    @property
    def is_predicted(self) -> bool:
        """Tells whether a modelled value has a reference that tests the model."""
        return self.error is not None and self.fitted is False

    @property
    def is_in_band(self) -> bool:
        """Tells whether the reference lies within the band."""
        if self.band is None or self.reference is None:
            return False
        return self.band[0] <= self.reference <= self.band[1]

    def as_dict(self) -> dict[str, Any]:
        """Returns plain JSON."""
        entries = {**asdict(self), "error": self.error}
        return {name: value for name, value in entries.items() if value is not None}


def share_row(name: str, right: int, n: int, unit: str, **told: Any) -> ResultRow:
    """Returns the share of `n` that is right, with Wilson's interval."""
    return ResultRow(name, right / n, unit, n=n, interval=wilson_interval(right, n), **told)


def _number(name: str, value: Any) -> float:
    """Returns a plain Python number, also for NumPy's."""
    require(
        isinstance(value, Real) and math.isfinite(value),
        f"{name} is {value!r}; allowed: a finite number",
    )
    return int(value) if isinstance(value, Integral) else float(value)


def table(rows: Sequence[ResultRow]) -> str:
    """Writes aligned text, of columns that at least one row fills, and where traces are from."""
    to_the_right = ("value", "reference", "error", "n", "items", "interval")
    return "\n".join([aligned([cells(row) for row in rows], to_the_right), *traces(rows)])


def aligned(rows: Sequence[Mapping[str, str]], to_the_right: Collection[str] = ()) -> str:
    """Writes a table as text: under its name each column of the first row that at least one row
    fills. Columns `to_the_right` end, and do not begin, at one place."""
    columns = [name for name in rows[0] if any(row[name] for row in rows)] if rows else []
    lines = [dict(zip(columns, columns, strict=True)), *rows]
    widths = {name: max(len(line[name]) for line in lines) for name in columns}
    padded = {name: str.rjust if name in to_the_right else str.ljust for name in columns}
    shown = ([padded[name](line[name], widths[name]) for name in columns] for line in lines)
    return "\n".join("  ".join(line).rstrip() for line in shown)


def traces(rows: Sequence[ResultRow]) -> list[str]:
    """Returns a line that names the sources of all traces; none where no row has one."""
    sources = dict.fromkeys(row.trace_source for row in rows if row.trace_source)
    return [f"traces: {'; '.join(sources)}"] if sources else []


def cells(row: ResultRow) -> dict[str, str]:
    """Returns what tables show of a row, as text."""
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
    """Writes four significant digits; whole numbers in full, and nothing for None."""
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    decimals = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{decimals}f}"
