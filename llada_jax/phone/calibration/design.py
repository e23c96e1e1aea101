"""Phones that are drawn from what a profile leaves open, and rows as they would be measured."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from llada_jax.phone.calibration.calibrate import MODEL_DOUBT, Rows
from llada_jax.phone.calibration.measurements import Measurement
from llada_jax.phone.profile import Profile
from llada_jax.phone.uncertainty import doubt_of


def drawn_phone(parent: Profile, rows: Rows, seed: int) -> Profile:
    """Draws a phone from what the parent leaves open: each number by its doubt, alone."""
    draw = np.random.default_rng(seed).standard_normal
    return parent.with_values(
        {
            path: entry.value * math.exp(doubt_of(entry) * draw())
            for path, entry in rows.numbers(parent).items()
        }
    )


def measured(
    phone: Profile,
    rows: Rows,
    plan: Sequence[Mapping[str, Any]],
    seed: int,
    noise: float = 0.02,
) -> Iterator[Measurement]:
    """Yields rows as a phone would give them: to `noise`, and to what the model misses.

    `plan` has fields of `Measurement`; those that it does not know are left out.
    """
    draw = np.random.default_rng([seed, 1]).standard_normal
    state: dict[str, Any] = {"runs": 50, "thermal": 0, "version": "drawn"}
    for row in plan:
        each = {name: row[name] for name in row.keys() & Measurement.__annotations__.keys()}
        unknown = Measurement(**each, **state, median_ms=1.0, p5_ms=1.0, p95_ms=1.0)
        off = math.hypot(noise, MODEL_DOUBT) * draw()
        median = 1e3 * rows.seconds(phone, unknown) * math.exp(off)
        yield replace(unknown, median_ms=median, p5_ms=0.98 * median, p95_ms=1.04 * median)
