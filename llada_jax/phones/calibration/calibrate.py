"""Fits a phone's numbers to rows that were measured on it.

The fit is Bayesian, linear about its mode. The prior is the profile of a similar phone, the parent:
the logarithm of each number is normal, independent, with the doubt of the profile as its standard
deviation. A row is a graph's measured time, which the cost model predicts up to the row's spread
and `MODEL_DOUBT`. Numbers that no row depends on keep the parent's value and doubt.

Numbers in whole steps (tiles and passes) have no derivative. They are compared by the evidence, and
change only if the rows support another choice strongly.
"""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

from llada_jax.config import Quant, require
from llada_jax.lowered import product_step
from llada_jax.phones.calibration.implausible_rows import (
    MIN_ROWS,
    RowErrors,
    contradictions,
    describe_misfit,
    doubt_of_misfit,
    misfit_likelihoods,
    refuse_implausible,
)
from llada_jax.phones.calibration.measurements import Measurement
from llada_jax.phones.cost import price_on_cpu, price_on_npu
from llada_jax.phones.graphs import Shape, graphs_of
from llada_jax.phones.profile import Profile, SourcedNumber, profile_of
from llada_jax.phones.uncertainty import COUNTED, TWO_SIDED, doubt_of

MODEL_DOUBT = 0.03
"""Error of the cost model itself: assumed standard deviation of the logarithm of a row's time."""
_LEARNED = 0.9
"""A number is identified if its doubt falls to this fraction of the parent's doubt."""
_STRONG = 3.0
"""Gain in log evidence that another tile or pass needs to replace the parent's, and that a misfit
needs for a warning."""
TILES, PASSES = (32, 64), (32, 64, 128, 256, 1024)
_QUANTS: Mapping[str, Quant] = {"fp16": "float32", "int8": "int8", "int4": "int4"}
_STEP = 0.02  # of the numerical derivative, in doubts
_MIN_SLOPE = 1e-4
"""A number counts as unused if its doubt changes no row's log time by more than this."""


class IdentifiedNumber(NamedTuple):
    """A number that the rows changed or confirmed. Doubts are standard deviations of logarithms."""

    number: str
    parent: float
    value: float
    parent_doubt: float
    doubt: float


class RowPrediction(NamedTuple):
    """A held-out row with its predicted time; `low` to `high` is the 95 % interval."""

    measurement: Measurement
    ms: float
    low: float
    high: float

    @property
    def is_inside(self) -> bool:
        """Whether the measured median is in the interval."""
        return self.low <= self.measurement.median_ms <= self.high


@dataclass(frozen=True)
class Calibration:
    """The profile of a measured phone, and the numbers that the rows identified."""

    profile: Profile
    identified: tuple[IdentifiedNumber, ...]
    correlations: tuple[tuple[str, str, float], ...]
    """Posterior correlation of each pair of identified numbers, the strongest first. Strongly
    correlated numbers are known together only: an error of one is compensated by the other."""
    predicted: tuple[RowPrediction, ...]
    misfit_doubt: float
    """Standard deviation of the logarithm of a row's time beyond `MODEL_DOUBT`, from how well the
    rows agree with the cost model. The bands of predictions include it."""
    counted: Mapping[str, tuple[float, float]]
    """Numbers in whole steps that changed, by path: the parent's value and the phone's."""


class CostModel:
    """Predicts how long a measured graph takes on a phone, for one shape and software."""

    def __init__(self, shape: Shape, kernels: str, cpu: str) -> None:
        self._model = graphs_of(shape).model
        self.kernels, self.cpu = kernels, cpu

    def seconds(self, profile: Profile, row: Measurement) -> float:
        """Returns the predicted time of a row. Raises ValueError for an unknown matrix."""
        graphs = graphs_of(self._model, _QUANTS[row.precision])
        npu, cpu = profile.kernels(self.kernels), profile.cpu_kernels(self.cpu)
        price = partial(price_on_cpu, kernels=cpu, memory=profile.memory)
        call = 0.0
        if row.processor == "npu":
            price = partial(price_on_npu, kernels=npu, memory=profile.memory, host=cpu)
            call = npu.step_overhead_us * 1e-6
        if row.graph == "layers":
            return call + row.layers * price(graphs.layer(row.rows, row.cache)).seconds
        if row.graph == "head":
            return call + graphs.head_chunks * price(graphs.head(row.rows)).seconds
        matrices = {
            name.split(".", 2)[-1]: weight
            for name, weight in graphs.layer(32, 0).weights.items()
            if len(weight.shape) == 2
        }
        known = ", ".join(matrices)
        require(row.weight in matrices, f"weight of {row.name} is {row.weight!r}; allowed: {known}")
        weight = matrices[row.weight]
        outputs, inputs = weight.shape
        step = product_step(row.rows, inputs, outputs, weight, f"layers.0.{row.weight}")
        return call + price(step).seconds

    def numbers(self, parent: Profile) -> dict[str, SourcedNumber]:
        """Returns the continuous numbers that predictions can depend on, by path."""
        prefixes = ("memory.", f"npu.{self.kernels}.", f"cpu.{self.cpu}.")
        return {
            path: entry
            for path, entry in parent.numbers.items()
            if path.startswith(prefixes) and entry.unit not in COUNTED and entry.value
        }


class _Fit:
    """The fit's functions of `z`: the log of each number relative to the parent's, in doubts."""

    def __init__(
        self,
        parent: Profile,
        cost_model: CostModel,
        rows: Sequence[Measurement],
        misfit_doubt: float = 0.0,
    ) -> None:
        self._parent, self._cost_model, self.rows = parent, cost_model, rows
        self.entries = cost_model.numbers(parent)
        self.doubts = np.array([doubt_of(entry) for entry in self.entries.values()])
        self._measured = np.log([1e-3 * row.median_ms for row in rows])
        # 5 and 95 % quantiles of a normal distribution are 1.645 standard deviations off.
        spreads = [math.log(row.p95_ms / row.p5_ms) / (2 * 1.645) for row in rows]
        self.noise = np.hypot(spreads, math.hypot(MODEL_DOUBT, misfit_doubt))

    def profile(self, z: np.ndarray) -> Profile:
        factors = np.exp(z * self.doubts)
        values = {
            path: entry.value * factor
            for (path, entry), factor in zip(self.entries.items(), factors, strict=True)
        }
        return self._parent.with_values(values)

    def log_seconds(self, z: np.ndarray, rows: Sequence[Measurement] | None = None) -> np.ndarray:
        """Returns the logarithm of each row's predicted seconds."""
        profile = self.profile(z)
        rows = self.rows if rows is None else rows
        return np.log([self._cost_model.seconds(profile, row) for row in rows])

    def misfit(self, z: np.ndarray) -> np.ndarray:
        return (self.log_seconds(z) - self._measured) / self.noise

    def slopes(self, z: np.ndarray) -> np.ndarray:
        """Returns the derivatives of `log_seconds`, [rows, numbers]."""
        base = self.log_seconds(z)
        columns = [(self.log_seconds(z + _STEP * unit) - base) / _STEP for unit in np.eye(len(z))]
        return np.stack(columns, axis=1)

    def evidence(self) -> float:
        """Returns the log likelihood of the rows under the prior, up to a constant, averaged over
        errors of the cost model, so that a misfit is not taken for other whole steps."""
        likelihoods = misfit_likelihoods(self.errors(np.zeros(len(self.doubts))))
        return float(np.logaddexp.reduce(likelihoods))

    def posterior(self, start: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns the mode, searched from `start` or the parent, and the covariance."""
        n = len(self.doubts)
        start = np.zeros(n) if start is None else start

        def residuals(z: np.ndarray) -> np.ndarray:
            return np.concatenate([self.misfit(z), z])

        def jacobian(z: np.ndarray) -> np.ndarray:
            return np.concatenate([self.slopes(z) / self.noise[:, None], np.eye(n)])

        solver: Any = optimize.least_squares  # SciPy's type stubs refuse a callable jacobian
        mode = solver(residuals, start, jacobian, xtol=1e-6, ftol=1e-6).x
        slopes = self.slopes(mode) / self.noise[:, None]
        return mode, np.linalg.inv(slopes.T @ slopes + np.eye(n))

    def errors(self, z: np.ndarray) -> RowErrors:
        """Returns how far each row is from the parent's prediction, linear about `z`."""
        slopes, predicted = self.slopes(z), self.log_seconds(z)
        errors = self._measured - predicted + slopes @ z
        exchanged = [
            replace(row, rows=row.cache, cache=row.rows) if row.rows > row.cache > 0 else row
            for row in self.rows
        ]
        swapped = self.log_seconds(z, exchanged) - predicted
        return RowErrors(self.rows, errors, slopes, self.noise, swapped)


def calibrate(
    measurements: Sequence[Measurement],
    parent: Profile,
    shape: Shape,
    *,
    kernels: str = "vendor",
    cpu: str = "tuned",
    name: str = "mine",
) -> Calibration:
    """Returns a phone's profile from rows that were measured on it; see `Phone.calibrate`."""
    fitted = [row for row in measurements if not row.held_out]
    held_out = [row for row in measurements if row.held_out]
    require(
        len(fitted) >= MIN_ROWS,
        f"{len(fitted)} rows to fit; allowed: {MIN_ROWS} or more that are not held out, since "
        "fewer rows cannot show which one is wrong",
    )
    cost_model = CostModel(shape, kernels, cpu)
    stepped, counted = _choose_whole_steps(parent, cost_model, fitted)
    everything = _Fit(stepped, cost_model, measurements)
    refuse_implausible(everything.errors(np.zeros(len(everything.doubts))), parent.soc)
    fit = _Fit(stepped, cost_model, fitted)
    mode, covariance = fit.posterior()
    errors = fit.errors(mode)
    faults, (misfit_doubt, gain) = contradictions(errors), doubt_of_misfit(errors)
    fit = _Fit(stepped, cost_model, fitted, misfit_doubt)
    mode, covariance = fit.posterior(mode)
    if gain > _STRONG:
        faults.append(describe_misfit(fitted, -fit.misfit(mode) * fit.noise, misfit_doubt))
    if faults:
        warnings.warn("; ".join(faults), stacklevel=2)
    deviations = np.sqrt(np.diag(covariance))
    used = np.abs(fit.slopes(mode)).max(axis=0) > _MIN_SLOPE
    learned = np.flatnonzero(used & (deviations <= _LEARNED))
    source = f"calibrated on {len(fitted)} rows measured on {name}; parent {parent.soc}"
    profile, paths = fit.profile(mode), [*fit.entries]
    numbers = dict(parent.numbers)
    for path, (_, value) in counted.items():
        numbers[path] = SourcedNumber(int(value), parent.numbers[path].unit, "measured", source)
    # The rows are of this export, so only what they leave unexplained is unknown.
    spread = f"npu.{kernels}.export_spread"
    numbers[spread] = replace(numbers[spread], value=misfit_doubt, tag="measured", source=source)
    identified = []
    for i in learned:
        entry, parent_doubt = fit.entries[paths[i]], float(fit.doubts[i])
        value, doubt = float(profile.numbers[paths[i]].value), float(parent_doubt * deviations[i])
        numbers[paths[i]] = SourcedNumber(value, entry.unit, "measured", source, doubt)
        identified.append(IdentifiedNumber(paths[i], entry.value, value, parent_doubt, doubt))
    return Calibration(
        profile_of(name, parent.phone, numbers),
        tuple(identified),
        tuple(_correlations(paths, covariance, learned)),
        tuple(_predictions(_Fit(stepped, cost_model, held_out, misfit_doubt), mode, covariance)),
        misfit_doubt,
        counted,
    )


def _choose_whole_steps(
    parent: Profile, cost_model: CostModel, rows: Sequence[Measurement]
) -> tuple[Profile, dict[str, tuple[float, float]]]:
    """Returns the parent with the tiles and passes of the highest evidence, and the changes."""
    paths = [f"npu.{cost_model.kernels}.{name}" for name in ("tile_rows", "pass_rows")]
    old = tuple(parent.numbers[path].value for path in paths)
    evidence = {old: _Fit(parent, cost_model, rows).evidence() + _STRONG}
    for choice in product(TILES, PASSES):
        if choice[0] <= choice[1] and choice != old:
            changed = parent.with_values(dict(zip(paths, choice, strict=True)))
            evidence[choice] = _Fit(changed, cost_model, rows).evidence()
    best = max(evidence, key=lambda choice: evidence[choice])
    changes = {
        path: (before, after)
        for path, before, after in zip(paths, old, best, strict=True)
        if before != after
    }
    return parent.with_values({path: after for path, (_, after) in changes.items()}), changes


def _correlations(
    paths: Sequence[str], covariance: np.ndarray, learned: np.ndarray
) -> list[tuple[str, str, float]]:
    scale = np.sqrt(np.diag(covariance))
    pairs = [
        (paths[i], paths[j], float(covariance[i, j] / scale[i] / scale[j]))
        for i, j in combinations(map(int, learned), 2)
    ]
    return sorted(pairs, key=lambda pair: -abs(pair[2]))


def _predictions(held_out: _Fit, z: np.ndarray, covariance: np.ndarray) -> Iterator[RowPrediction]:
    slopes = held_out.slopes(z)
    variance = np.einsum("rn,nm,rm->r", slopes, covariance, slopes) + held_out.noise**2
    factors, ms = np.exp(TWO_SIDED * np.sqrt(variance)), 1e3 * np.exp(held_out.log_seconds(z))
    for row, middle, factor in zip(held_out.rows, ms, factors, strict=True):
        yield RowPrediction(row, float(middle), float(middle / factor), float(middle * factor))
