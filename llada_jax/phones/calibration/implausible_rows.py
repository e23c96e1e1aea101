"""Finds measured rows that are probably mistakes, and names the likely cause.

Each row is compared with two predictions of the logarithm of its time. The first one is the prior:
the parent profile with its doubts. It finds wrong units and swapped columns even if the whole file
has them, and such rows are refused. The second one is from the other rows. It is far more precise,
and finds a throttled row or a contradiction. These only cause a warning, because a real phone may
do something that the cost model does not include. The leave-one-out prediction of a Gaussian model
has a closed form (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, section
5.4.2).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from llada_jax.config import require
from llada_jax.phones.calibration.measurements import Measurement

MIN_ROWS = 3
"""With two rows that contradict each other, nothing shows which one is wrong."""
_PRIOR_LIMIT = 8.0
"""Standard deviations. The profiles of the package predict each other's rows to 6; microseconds
instead of milliseconds are off by 25 or more."""
_PRIOR_FACTOR = 3.0
"""No row within this factor of the parent's prediction is refused, however sure the parent is: a
phone may be that different, which the fit then reports as misfit."""
_OTHERS_LIMIT = 5.0
"""Standard deviations. Throttling to two thirds of the speed is off by about 10."""
_UNEXPLAINED = 0.4
"""Largest share of a row's log error that its likely cause may leave."""
_MISFITS = np.linspace(0.0, 1.0, 101)
"""Possible errors of the cost model in log time, for `doubt_of_misfit`."""
_SHOWN = 3  # rows in one warning


class RowErrors(NamedTuple):
    """Measured rows against the prior: logarithms of times, linear in the phone's numbers."""

    rows: Sequence[Measurement]
    errors: np.ndarray
    """Measured minus predicted by the parent's numbers, [rows]."""
    slopes: np.ndarray
    """Change of the prediction by one doubt of each number, [rows, numbers]."""
    noise: np.ndarray
    """Standard deviation of the error of each row alone."""
    swapped: np.ndarray
    """Change of the prediction if `rows` and `cache` of a row that has more rows than cached
    positions are exchanged; 0 for other rows, which are as decoders run them."""

    @property
    def covariance(self) -> np.ndarray:
        """Covariance of `errors`, [rows, rows]: doubts are shared, noise is not."""
        return self.slopes @ self.slopes.T + np.diag(self.noise**2)


def refuse_implausible(row_errors: RowErrors, parent: str) -> None:
    """Raises ValueError if a row is over `_PRIOR_LIMIT` deviations and over `_PRIOR_FACTOR` off the
    parent's prediction."""
    deviations = np.sqrt(np.diag(row_errors.covariance))
    deviations = np.maximum(deviations, math.log(_PRIOR_FACTOR) / _PRIOR_LIMIT)
    off = np.abs(row_errors.errors / deviations)
    worst, n_bad = int(off.argmax()), int((off > _PRIOR_LIMIT).sum())
    text = _describe(
        row_errors, worst, row_errors.errors[worst], deviations[worst], _PRIOR_LIMIT, parent
    )
    require(n_bad == 0, f"{text} ({n_bad} of {len(off)} rows are too far off)")


def contradictions(row_errors: RowErrors) -> list[str]:
    """Returns a sentence for each row that is over `_OTHERS_LIMIT` deviations off the prediction of
    the others.

    One bad row also spoils the prediction of its neighbours. So only the worst row is taken out,
    and the rest is predicted again.
    """
    remaining, messages = list(range(len(row_errors.rows))), []
    while len(remaining) > 1:
        inverse = np.linalg.inv(row_errors.covariance[np.ix_(remaining, remaining)])
        deviations = np.diag(inverse) ** -0.5
        errors = inverse @ row_errors.errors[remaining] * deviations**2
        worst = int(np.abs(errors / deviations).argmax())
        if abs(errors[worst]) <= _OTHERS_LIMIT * deviations[worst]:
            break
        error, deviation, row = errors[worst], deviations[worst], remaining.pop(worst)
        messages.append(
            _describe(row_errors, row, error, deviation, _OTHERS_LIMIT, "the other rows")
        )
    more = len(messages) - _SHOWN
    return [*messages[:_SHOWN], *[f"and {more} more rows"] * (more > 0)]


def misfit_likelihoods(row_errors: RowErrors) -> np.ndarray:
    """Returns the log likelihood of all rows under the prior, up to a constant, for each error of
    the cost model in `_MISFITS`."""
    variances, axes = np.linalg.eigh(row_errors.covariance)
    variances = variances + _MISFITS[:, None] ** 2
    squares = (row_errors.errors @ axes) ** 2
    return -0.5 * (squares / variances + np.log(variances)).sum(axis=1)


def doubt_of_misfit(row_errors: RowErrors) -> tuple[float, float]:
    """Returns the error of the cost model that the rows show beyond `noise`, as the standard
    deviation of a log time, and the gain in log likelihood of the most probable one over none.

    It is the root mean square over its posterior, under a prior that is flat in `_MISFITS`.
    """
    logs = misfit_likelihoods(row_errors)
    weights = np.exp(logs - logs.max())
    return float(np.sqrt(weights @ _MISFITS**2 / weights.sum())), float(logs.max() - logs[0])


def describe_misfit(rows: Sequence[Measurement], residuals: np.ndarray, misfit: float) -> str:
    """Returns a sentence that names the rows with the largest residuals, which are logarithms of
    measured over fitted times."""
    order = np.argsort(-np.abs(residuals))[:_SHOWN]
    named = ", ".join(f"{rows[i].name} ({np.expm1(residuals[i]):+.0%})" for i in order)
    return (
        f"the cost model does not fit these rows, measured against fitted: {named}; the bands of "
        f"all predictions are wider for this, by {np.expm1(misfit):.0%} a standard deviation"
    )


def _describe(
    row_errors: RowErrors, i: int, error: float, deviation: float, limit: float, by: str
) -> str:
    """Returns a sentence about row `i`, whose log time is off by `error` from a prediction."""
    row = row_errors.rows[i]
    predicted, factor = row.median_ms * math.exp(-error), math.exp(limit * deviation)
    # The log error of the row after correcting each possible mistake.
    causes = {
        "the times are microseconds": error - math.log(1000),
        "the times are seconds": error + math.log(1000),
        "rows and cache are swapped": error - row_errors.swapped[i],
    }
    cause = min(causes, key=lambda name: abs(causes[name]))
    # A wrong row also distorts the prediction, so a cause need not explain all of the error.
    if abs(causes[cause]) > max(limit * deviation, _UNEXPLAINED * abs(error)):
        slow = "the phone was throttled or busy, or " if error > 0 else ""
        cause = f"{slow}the row describes another graph"
    return (
        f"median_ms of {row.name} is {row.median_ms:.4g}; allowed: {predicted / factor:.3g} to "
        f"{predicted * factor:.3g}, as predicted from {by}; likely cause: {cause}"
    )
