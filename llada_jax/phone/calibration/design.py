"""Which rows to measure, the most telling first, and phones that are drawn to try them on."""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from llada_jax.phone.calibration.calibrate import MODEL_DOUBT, Rows
from llada_jax.phone.calibration.measurements import Measurement
from llada_jax.phone.profile import Profile
from llada_jax.phone.uncertainty import doubt_of

ROWS = (1, 32, 33, 64, 65, 96, 128)
"""Both sides of every edge of a tile, and a single row."""
CACHES = (256, 1024)
"""Two, as one alone hides what an attention score costs."""
SHARDS = (1, 4)
MATRICES = ("ffn.down", "ffn.gate")
"""One whose unpacking may be faster, and another."""
HEAD_ROWS = (1, 8, 64)
_FIRST = (
    *(("layers", 1, 256, 1), ("layers", 1, 256, 4), ("layers", 64, 256, 1)),
    *(("layers", 64, 1024, 1), ("layers", 128, 256, 1), ("layers", 33, 256, 1)),
)


def design(caches: Sequence[int] = CACHES) -> list[dict[str, Any]]:
    """Returns rows to measure, as fields of `Measurement` without times, the most telling first."""
    short, long = min(caches), max(caches)
    place = {256: short, 1024: long}
    first = [_layers(rows, place[cache], layers) for _, rows, cache, layers in _FIRST]
    first += [_product(matrix, 32, "int4") for matrix in MATRICES]
    first += [_product("ffn.down", 1, "fp16"), _head(1)]
    rest = [_head(rows) for rows in HEAD_ROWS]
    rest += [_layers(*each) for each in product(ROWS, (short, long), SHARDS)]
    rest += [
        _product(*each) for each in product(MATRICES, (1, 32, 64, 128), ("fp16", "int8", "int4"))
    ]
    found = {row["name"]: row for row in (*first, *rest)}
    return [*found.values()]


def _layers(rows: int, cache: int, layers: int) -> dict[str, Any]:
    name = f"layers{layers}_rows{rows}_cache{cache}"
    return _row(name, "layers", "npu", rows, "int4", cache=cache, layers=layers)


def _product(weight: str, rows: int, precision: str) -> dict[str, Any]:
    name = f"{weight.replace('.', '_')}_{precision}_rows{rows}"
    return _row(name, "product", "npu", rows, precision, weight=weight)


def _head(rows: int) -> dict[str, Any]:
    return _row(f"head_rows{rows}", "head", "cpu", rows, "int8")


def _row(
    name: str, graph: str, processor: str, rows: int, precision: str, **more: Any
) -> dict[str, Any]:
    shape = {"graph": graph, "processor": processor, "rows": rows, "precision": precision}
    return {"name": name} | shape | more


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
    phone: Profile, rows: Rows, plan: Sequence[dict[str, Any]], seed: int, noise: float = 0.02
) -> Iterator[Measurement]:
    """Yields rows as they would be measured on a phone: to `noise`, and to what the model misses."""
    draw = np.random.default_rng([seed, 1]).standard_normal
    state = {"runs": 50, "thermal": 0, "version": "drawn"}
    for each in plan:
        unknown = Measurement(**each, **state, median_ms=1.0, p5_ms=1.0, p95_ms=1.0)
        off = math.hypot(noise, MODEL_DOUBT) * draw()
        median = 1e3 * rows.seconds(phone, unknown) * math.exp(off)
        times = {"median_ms": median, "p5_ms": median * 0.98, "p95_ms": median * 1.04}
        yield Measurement(**each, **state, **times)
