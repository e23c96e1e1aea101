"""Synthetic phones and their measurements, to test a calibration for which the truth is known."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from llada_jax.phones.calibration.calibrate import MODEL_DOUBT, CostModel
from llada_jax.phones.calibration.measurements import Measurement
from llada_jax.phones.profile import Profile
from llada_jax.phones.uncertainty import doubt_of


def draw_phone(parent: Profile, cost_model: CostModel, seed: int) -> Profile:
    """Draws a phone: each parameter of the parent independently, by its uncertainty."""
    draw, numbers = np.random.default_rng(seed).standard_normal, cost_model.numbers(parent)
    return parent.with_values(
        {path: n.value * math.exp(doubt_of(n) * draw()) for path, n in numbers.items()}
    )


def draw_measurements(
    phone: Profile,
    cost_model: CostModel,
    plan: Sequence[Mapping[str, Any]],
    seed: int,
    noise: float = 0.02,
) -> Iterator[Measurement]:
    """Yields measurements of a phone as the cost model predicts them, with a relative error from
    `noise` and the model's own error. Keys of `plan` that `Measurement` lacks are ignored."""
    draw = np.random.default_rng([seed, 1]).standard_normal
    state: dict[str, Any] = {"runs": 50, "thermal": 0, "version": "drawn"}
    for row in plan:
        fields = {name: row[name] for name in row.keys() & Measurement.__annotations__.keys()}
        unknown = Measurement(**fields, **state, median_ms=1.0, p5_ms=1.0, p95_ms=1.0)
        error = math.hypot(noise, MODEL_DOUBT) * draw()
        median = 1e3 * cost_model.seconds(phone, unknown) * math.exp(error)
        yield replace(unknown, median_ms=median, p5_ms=0.98 * median, p95_ms=1.04 * median)
