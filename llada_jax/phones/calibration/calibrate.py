"""Measured rows into a phone's numbers: a posterior, linear about its middle.

The parent profile's numbers, each with its doubt, are the prior: logarithms, independent. A row
says how long a graph takes, to its own spread and to `MODEL_DOUBT`. What the rows say nothing of
keeps the parent's value and doubt. Tiles and passes, which come in whole steps, are compared by the
evidence that the rows give for each, and change only where it is strong.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

from llada_jax.config import Quant, require
from llada_jax.lowered import product_step
from llada_jax.phones.calibration.measurements import Measurement
from llada_jax.phones.cost import price_on_cpu, price_on_npu
from llada_jax.phones.graphs import Shape, graphs_of
from llada_jax.phones.profile import Profile, Sourced, profile_of
from llada_jax.phones.uncertainty import COUNTED, TWO_SIDED, doubt_of

MODEL_DOUBT = 0.03
"""What the cost model itself misses in a row: a standard deviation of the logarithm, assumed."""
LEARNED = 0.9
"""A number is identified where its doubt falls to this share of the parent's, or below."""
STRONG = 3.0
"""Logarithm of the evidence that another tile or pass must have over the parent's."""
TILES, PASSES = (32, 64), (32, 64, 128, 256, 1024)
QUANTS: Mapping[str, Quant] = {"fp16": "float32", "int8": "int8", "int4": "int4"}
_STEP = 0.02
_FELT = 1e-4
"""A number matters where its doubt moves some row's logarithm by more."""


class Identified(NamedTuple):
    """A number that the rows say something of; doubts are deviations of its logarithm."""

    number: str
    parent: float
    value: float
    parent_doubt: float
    doubt: float


class Predicted(NamedTuple):
    """A row that was kept from the fit, in milliseconds; `low` to `high` holds 95 %."""

    measurement: Measurement
    ms: float
    low: float
    high: float

    @property
    def is_inside(self) -> bool:
        """Tells whether the measured median lies in the band."""
        return self.low <= self.measurement.median_ms <= self.high


@dataclass(frozen=True)
class Calibration:
    """A phone's own profile, and how much of it its rows told."""

    profile: Profile
    identified: tuple[Identified, ...]
    correlations: tuple[tuple[str, str, float], ...]
    """Of what is left open in pairs of identified numbers, the strongest first: what one of them
    is too high by, the other makes up for."""
    predicted: tuple[Predicted, ...]
    counted: Mapping[str, tuple[float, float]]
    """Numbers in whole steps that changed: the parent's and the phone's."""


class CostModel:
    """Prices measured rows of a shape by a profile's classes of kernels."""

    def __init__(self, shape: Shape, kernels: str, cpu: str) -> None:
        self._model = graphs_of(shape).model
        self.kernels, self.cpu = kernels, cpu

    def seconds(self, profile: Profile, row: Measurement) -> float:
        """Returns how long a row takes by the profile. Raises ValueError for an unknown matrix."""
        graphs = graphs_of(self._model, QUANTS[row.precision])
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
        weights = graphs.layer(32, 0).weights.items()
        matrices = {name.split(".", 2)[-1]: each for name, each in weights if len(each.shape) == 2}
        known = ", ".join(matrices)
        require(row.weight in matrices, f"weight of {row.name} is {row.weight!r}; allowed: {known}")
        weight = matrices[row.weight]
        outputs, inputs = weight.shape
        step = product_step(row.rows, inputs, outputs, weight, f"layers.0.{row.weight}")
        return call + price(step).seconds

    def numbers(self, parent: Profile) -> dict[str, Sourced]:
        """Returns the numbers that rows can depend on, by path."""
        rooms = ("memory.", f"npu.{self.kernels}.", f"cpu.{self.cpu}.")
        return {
            path: entry
            for path, entry in parent.numbers.items()
            if path.startswith(rooms) and entry.unit not in COUNTED and entry.value
        }


class _Prior:
    """The parent's numbers in units of their doubts, and what rows say of them."""

    def __init__(
        self, parent: Profile, cost_model: CostModel, measured: Sequence[Measurement]
    ) -> None:
        self._parent, self._cost_model, self.measured = parent, cost_model, measured
        self.entries = cost_model.numbers(parent)
        self.doubts = np.array([doubt_of(each) for each in self.entries.values()])
        self._wanted = np.log([1e-3 * each.median_ms for each in measured])
        spreads = [math.log(m.p95_ms / m.p5_ms) / (2 * 1.645) for m in measured]
        self.noise = np.hypot(spreads, MODEL_DOUBT)

    def profile(self, z: np.ndarray) -> Profile:
        moved = np.exp(z * self.doubts)
        values = {p: e.value * f for (p, e), f in zip(self.entries.items(), moved, strict=True)}
        return self._parent.with_values(values)

    def logs(self, z: np.ndarray) -> np.ndarray:
        """Returns logarithms of the rows' seconds."""
        moved = self.profile(z)
        return np.log([self._cost_model.seconds(moved, each) for each in self.measured])

    def misfit(self, z: np.ndarray) -> np.ndarray:
        return (self.logs(z) - self._wanted) / self.noise

    def slopes(self, z: np.ndarray) -> np.ndarray:
        """Returns changes of `logs` with each number's doubt, rows by numbers."""
        base = self.logs(z)
        moved = [(self.logs(z + _STEP * unit) - base) / _STEP for unit in np.eye(len(z))]
        return np.stack(moved, axis=1)

    def evidence(self) -> float:
        """Returns the logarithm of how likely the rows are, linear about the parent."""
        zero = np.zeros(len(self.doubts))
        slopes = self.slopes(zero) / self.noise[:, None]
        covariance = slopes @ slopes.T + np.eye(len(slopes))
        left = self.misfit(zero)
        _, determinant = np.linalg.slogdet(covariance)
        return float(-0.5 * (left @ np.linalg.solve(covariance, left) + determinant))

    def posterior(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the middle and the covariance."""
        n = len(self.doubts)

        def residuals(z: np.ndarray) -> np.ndarray:
            return np.concatenate([self.misfit(z), z])

        def jacobian(z: np.ndarray) -> np.ndarray:
            return np.concatenate([self.slopes(z) / self.noise[:, None], np.eye(n)])

        solver: Any = optimize.least_squares  # whose stubs know no jacobian of one's own
        found = solver(residuals, np.zeros(n), jacobian, xtol=1e-6, ftol=1e-6)
        slopes = self.slopes(found.x) / self.noise[:, None]
        return found.x, np.linalg.inv(slopes.T @ slopes + np.eye(n))


def calibrate(
    measurements: Sequence[Measurement],
    parent: Profile,
    shape: Shape,
    *,
    kernels: str = "vendor",
    cpu: str = "tuned",
    name: str = "mine",
) -> Calibration:
    """Returns a phone's profile from rows that were measured on it, as `Phone.calibrate` does."""
    fitted = [each for each in measurements if not each.held_out]
    require(bool(fitted), "no row is left to fit; allowed: at least one that is not held out")
    cost_model = CostModel(shape, kernels, cpu)
    stepped, counted = _whole_steps(parent, cost_model, fitted)
    prior = _Prior(stepped, cost_model, fitted)
    z, covariance = prior.posterior()
    deviations = np.sqrt(np.diag(covariance))
    felt = np.abs(prior.slopes(z)).max(axis=0) > _FELT
    learned = felt & (deviations <= LEARNED)
    source = f"calibrated on {len(fitted)} rows measured on {name}; parent {parent.soc}"
    profile, paths = prior.profile(z), [*prior.entries]
    numbers = dict(parent.numbers)
    for path, (_, value) in counted.items():
        numbers[path] = Sourced(int(value), parent.numbers[path].unit, "measured", source)
    identified = []
    for i in np.flatnonzero(learned):
        entry, before = prior.entries[paths[i]], float(prior.doubts[i])
        value, doubt = float(profile.numbers[paths[i]].value), float(before * deviations[i])
        numbers[paths[i]] = Sourced(value, entry.unit, "measured", source, doubt)
        identified.append(Identified(paths[i], entry.value, value, before, doubt))
    held = [each for each in measurements if each.held_out]
    return Calibration(
        profile_of(name, parent.phone, numbers),
        tuple(identified),
        tuple(_correlations(paths, covariance, np.flatnonzero(learned))),
        tuple(_predictions(_Prior(stepped, cost_model, held), z, covariance)),
        counted,
    )


def _whole_steps(
    parent: Profile, cost_model: CostModel, measured: Sequence[Measurement]
) -> tuple[Profile, dict[str, tuple[float, float]]]:
    """Returns the parent with the tiles and passes that the rows speak for, and what changed."""
    paths = [f"npu.{cost_model.kernels}.{each}" for each in ("tile_rows", "pass_rows")]
    now = tuple(parent.numbers[path].value for path in paths)
    found = {now: _Prior(parent, cost_model, measured).evidence() + STRONG}
    for choice in product(TILES, PASSES):
        if choice[0] <= choice[1] and choice != now:
            changed = parent.with_values(dict(zip(paths, choice, strict=True)))
            found[choice] = _Prior(changed, cost_model, measured).evidence()
    best = max(found, key=lambda choice: found[choice])
    changed = parent.with_values(dict(zip(paths, best, strict=True)))
    pairs = zip(paths, now, best, strict=True)
    return changed, {path: (old, new) for path, old, new in pairs if old != new}


def _correlations(
    names: Sequence[str], covariance: np.ndarray, learned: np.ndarray
) -> list[tuple[str, str, float]]:
    scale = np.sqrt(np.diag(covariance))
    pairs = [
        (names[i], names[j], float(covariance[i, j] / scale[i] / scale[j]))
        for i, j in combinations(map(int, learned), 2)
    ]
    return sorted(pairs, key=lambda pair: -abs(pair[2]))


def _predictions(held: _Prior, z: np.ndarray, covariance: np.ndarray) -> Iterator[Predicted]:
    slopes = held.slopes(z)
    spread = np.sqrt(np.einsum("rn,nm,rm->r", slopes, covariance, slopes) + held.noise**2)
    factors, ms = np.exp(TWO_SIDED * spread), 1e3 * np.exp(held.logs(z))
    for row, m, f in zip(held.measured, ms, factors, strict=True):
        yield Predicted(row, float(m), float(m / f), float(m * f))
