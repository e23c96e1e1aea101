"""A phone's own profile from rows that were measured on it, or a table of drawn phones.

    python -m experiments.calibrate measurements=phone.csv parent=SM8750
    python -m experiments.calibrate measurements=pulled/llada8b shape=llada_8b name=my-phone
    python -m experiments.calibrate synthetic=12

The run folder gets `<name>.yaml`, which `phone=` of every verb and `lj.phone` load, and what was
measured in one file, `measured.csv`. Rows are the numbers that were identified, correlations of
what is left open, and the rows that were held out, each with its band of 95 %. `synthetic` draws
phones from what the parent leaves open instead, and says how far 10 and 30 rows bring the others.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median
from typing import Any

import numpy as np

from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from llada_jax.backend.exported.calibration_export import calibration_rows
from llada_jax.config import require
from llada_jax.phones.calibration.calibrate import MODEL_DOUBT, Calibration, CostModel, calibrate
from llada_jax.phones.calibration.measurements import (
    Measurement,
    hold_out,
    read_measurements,
    write_measurements,
)
from llada_jax.phones.profile import Profile, load_profile
from llada_jax.phones.uncertainty import doubt_of

SHOWN_CORRELATIONS = 5
COUNTS = (0, 10, 30)
"""Rows of a drawn phone that the fit sees; 0: the parent alone."""
ROW = partial(ResultRow, kind="modelled")


@dataclass(frozen=True, kw_only=True)
class CalibrateConfig:
    """What was measured, and on what it builds. The comments are in conf/calibrate.yaml."""

    measurements: str | None = None
    parent: str = "SM8750"
    shape: str = "llada_8b"
    kernels: str = "vendor"
    cpu: str = "tuned"
    hold_every: int = 5
    name: str = "mine"
    synthetic: int = 0

    def __post_init__(self) -> None:
        require(
            (self.measurements is None) == (self.synthetic > 0),
            f"measurements is {self.measurements!r} and synthetic {self.synthetic}; allowed: "
            "a file or folder of measurements, or a number of drawn phones, not both",
        )
        require(
            self.hold_every >= 0 and self.hold_every != 1,
            f"hold_every is {self.hold_every}; allowed: 0 (none is held out), or 2 and more",
        )
        require(
            re.fullmatch(r"[\w .-]{1,100}", self.name) is not None,
            f"name is {self.name!r:.100}; allowed: up to 100 letters, digits, '_', '-', '.' and "
            "spaces, since it names a file of the run folder",
        )


def calibrate_phone(config: CalibrateConfig, run: Run) -> None:
    """Writes a phone's profile, or the table of drawn phones."""
    if config.measurements is None:
        parent = load_profile(config.parent)
        run.begin()
        run.finish(list(_drawn(config, parent)))
        return
    rows = hold_out(read_measurements(config.measurements), config.hold_every)
    found = calibrate(
        rows, load_profile(config.parent), config.shape, kernels=config.kernels, cpu=config.cpu,
        name=config.name,
    )  # fmt: skip
    run.begin()
    write_measurements(run.folder / "measured.csv", rows)
    path = run.folder / f"{config.name}.yaml"
    found.profile.save(path)
    run.finish(list(_rows(found)))
    print(f"\n{path} is the phone's profile: lj.phone({str(path)!r})")


def _rows(found: Calibration) -> Iterator[ResultRow]:
    profile = found.profile
    for path, (before, after) in found.counted.items():
        yield ROW(f"changed/{path}", after, f"{profile.numbers[path].unit}, for {before:g}")
    for path, parent, value, before, doubt in found.identified:
        factor = math.exp(1.96 * doubt)
        yield ROW(
            f"identified/{path}", value, profile.numbers[path].unit, reference=parent,
            interval=(value / factor, value * factor), source=f"parent, known to {before:.0%}",
        )  # fmt: skip
    for one, other, correlation in found.correlations[:SHOWN_CORRELATIONS]:
        yield ROW(f"correlation/{one}, {other}", correlation, "-")
    for row, ms, low, high in found.predicted:
        yield ROW(
            f"held_out/{row.name}", ms, "ms", reference=row.median_ms, band=(low, high),
            fitted=False, source="measured, not fitted",
        )  # fmt: skip
    yield from _in_band("held_out", [each.is_inside for each in found.predicted])


def _in_band(name: str, inside: Sequence[bool]) -> Iterator[ResultRow]:
    if inside:
        yield ROW(f"{name}/in_band", 100 * fmean(inside), "% of rows", n=len(inside))


def drawn_phone(parent: Profile, cost_model: CostModel, seed: int) -> Profile:
    """Draws a phone from what the parent leaves open: each number by its doubt, alone."""
    draw, numbers = np.random.default_rng(seed).standard_normal, cost_model.numbers(parent)
    return parent.with_values(
        {path: each.value * math.exp(doubt_of(each) * draw()) for path, each in numbers.items()}
    )


def measured(
    phone: Profile,
    cost_model: CostModel,
    plan: Sequence[Mapping[str, Any]],
    seed: int,
    noise: float = 0.02,
) -> Iterator[Measurement]:
    """Yields rows as a phone would give them: to `noise`, and to what the model misses. `plan` has
    fields of `Measurement`; those that it does not know are left out."""
    draw = np.random.default_rng([seed, 1]).standard_normal
    state: dict[str, Any] = {"runs": 50, "thermal": 0, "version": "drawn"}
    for row in plan:
        each = {name: row[name] for name in row.keys() & Measurement.__annotations__.keys()}
        unknown = Measurement(**each, **state, median_ms=1.0, p5_ms=1.0, p95_ms=1.0)
        off = math.hypot(noise, MODEL_DOUBT) * draw()
        median = 1e3 * cost_model.seconds(phone, unknown) * math.exp(off)
        yield replace(unknown, median_ms=median, p5_ms=0.98 * median, p95_ms=1.04 * median)


def _drawn(config: CalibrateConfig, parent: Profile) -> Iterator[ResultRow]:
    """Yields how far the rows that the fit did not see are off, and how many bands hold them."""
    cost_model, plan = CostModel(config.shape, config.kernels, config.cpu), calibration_rows()
    for count in COUNTS:
        errors, inside = [], []
        for seed in range(config.synthetic):
            phone = drawn_phone(parent, cost_model, seed)
            found = list(measured(phone, cost_model, plan, seed))
            held = [replace(row, held_out=True) for row in found[max(COUNTS) :]]
            if count:
                fit = calibrate([*found[:count], *held], parent, config.shape,
                                kernels=config.kernels, cpu=config.cpu)  # fmt: skip
                errors += [abs(each.ms / each.measurement.median_ms - 1) for each in fit.predicted]
                inside += [each.is_inside for each in fit.predicted]
            else:
                errors += [abs(1e3 * cost_model.seconds(parent, m) / m.median_ms - 1) for m in held]
        name, n = f"drawn/{count}_rows", len(errors)
        yield ROW(f"{name}/median_error", 100 * median(errors), "%", n=n)
        yield ROW(f"{name}/error_of_95_%", 100 * sorted(errors)[int(0.95 * n)], "%", n=n)
        yield from _in_band(name, inside)


main = entry_point("calibrate", calibrate_phone, CalibrateConfig)
