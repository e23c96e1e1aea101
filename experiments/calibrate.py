"""Fits a phone's profile to times measured on it, or tests the fit on synthetic phones.

    python -m experiments.calibrate measurements=phone.csv parent=SM8750
    python -m experiments.calibrate measurements=pulled/llada8b shape=llada_8b name=my-phone
    python -m experiments.calibrate synthetic=12

The run folder gets `<name>.yaml`, which `phone=` of every verb and `lj.phone` load, and the
measurements in one file, `measured.csv`. Result rows are the identified parameters, correlations
between uncertain ones, and the held-out measurements, each with its 95 % band. `synthetic` draws
phones from the parent's uncertainty instead, and reports how well a fit to 16 and 30 measurements
predicts the rest.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median

from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from llada_jax.backend.exported.calibration_export import calibration_rows
from llada_jax.config import require
from llada_jax.phones.calibration.calibrate import Calibration, CostModel, calibrate
from llada_jax.phones.calibration.measurements import (
    hold_out,
    read_measurements,
    write_measurements,
)
from llada_jax.phones.calibration.synthetic import draw_measurements, draw_phone
from llada_jax.phones.profile import Profile, load_profile

SHOWN_CORRELATIONS = 5
COUNTS = (0, 16, 30)
"""Numbers of a synthetic phone's measurements to fit; with 0 the parent's profile is used."""
ROW = partial(ResultRow, kind="modelled")


@dataclass(frozen=True, kw_only=True)
class CalibrateConfig:
    """Settings of the verb; conf/calibrate.yaml explains each."""

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
    """Writes a phone's profile, or the table of synthetic phones."""
    if config.measurements is None:
        parent = load_profile(config.parent)
        run.begin()
        run.finish(list(_drawn(config, parent)))
        return
    rows = hold_out(read_measurements(config.measurements), config.hold_every)
    calibration = calibrate(
        rows, load_profile(config.parent), config.shape, kernels=config.kernels, cpu=config.cpu,
        name=config.name,
    )  # fmt: skip
    run.begin()
    write_measurements(run.folder / "measured.csv", rows)
    path = run.folder / f"{config.name}.yaml"
    calibration.profile.save(path)
    run.finish(list(_rows(calibration)))
    print(f"\n{path} is the phone's profile: lj.phone({str(path)!r})")


def _rows(calibration: Calibration) -> Iterator[ResultRow]:
    profile = calibration.profile
    for path, (before, after) in calibration.counted.items():
        yield ROW(f"changed/{path}", after, f"{profile.numbers[path].unit}, for {before:g}")
    for path, parent, value, before, relative in calibration.identified:
        factor = math.exp(1.96 * relative)
        yield ROW(
            f"identified/{path}", value, profile.numbers[path].unit, reference=parent,
            interval=(value / factor, value * factor), source=f"parent, known to {before:.0%}",
        )  # fmt: skip
    for one, other, correlation in calibration.correlations[:SHOWN_CORRELATIONS]:
        yield ROW(f"correlation/{one}, {other}", correlation, "-")
    for row, ms, low, high in calibration.predicted:
        yield ROW(
            f"held_out/{row.name}", ms, "ms", reference=row.median_ms, band=(low, high),
            fitted=False, source="measured, not fitted",
        )  # fmt: skip
    yield from _in_band("held_out", [row.is_inside for row in calibration.predicted])


def _in_band(name: str, inside: Sequence[bool]) -> Iterator[ResultRow]:
    if inside:
        yield ROW(f"{name}/in_band", 100 * fmean(inside), "% of rows", n=len(inside))


def _drawn(config: CalibrateConfig, parent: Profile) -> Iterator[ResultRow]:
    """Yields the errors of the predictions for held-out rows, and the share within their bands."""
    cost_model, plan = CostModel(config.shape, config.kernels, config.cpu), calibration_rows()
    for count in COUNTS:
        errors, inside = [], []
        for seed in range(config.synthetic):
            phone = draw_phone(parent, cost_model, seed)
            rows = list(draw_measurements(phone, cost_model, plan, seed))
            held = [replace(row, held_out=True) for row in rows[max(COUNTS) :]]
            if count:
                fit = calibrate([*rows[:count], *held], parent, config.shape,
                                kernels=config.kernels, cpu=config.cpu)  # fmt: skip
                errors += [abs(p.ms / p.measurement.median_ms - 1) for p in fit.predicted]
                inside += [p.is_inside for p in fit.predicted]
            else:
                errors += [abs(1e3 * cost_model.seconds(parent, m) / m.median_ms - 1) for m in held]
        name, n = f"drawn/{count}_rows", len(errors)
        yield ROW(f"{name}/median_error", 100 * median(errors), "%", n=n)
        yield ROW(f"{name}/error_of_95_%", 100 * sorted(errors)[int(0.95 * n)], "%", n=n)
        yield from _in_band(name, inside)


main = entry_point("calibrate", calibrate_phone, CalibrateConfig)
