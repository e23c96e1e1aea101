"""Which rows to measure on a phone, the most telling first."""

from collections.abc import Sequence
from itertools import product
from typing import Any

ROWS = (1, 32, 33, 64, 65, 96, 128)
"""Both sides of every edge of a tile, and a single row."""
CACHES = (256, 1024)
"""Two, as one alone hides what an attention score costs."""
SHARDS = (1, 4)
MATRICES = ("ffn.down", "ffn.gate")
"""One whose unpacking may be faster, and another."""
_PRECISIONS = ("fp16", "int8", "int4")


def calibration_rows(
    caches: Sequence[int] = CACHES,
    shards: Sequence[int] = SHARDS,
    body: str = "int4",
    products: Sequence[str] = _PRECISIONS,
    head_rows: Sequence[int] = (1, 8, 64),
) -> list[dict[str, Any]]:
    """Returns rows as fields of a measurement without times; `file` and `signature` say what runs.

    Args:
      caches: two lengths of the cache, ascending; shards: two numbers of layers.
      body, products: how the weights of layers and of single products are stored.
      head_rows: of `head.tflite`, which is int8.
    """
    (short, long), (one, more) = caches, shards
    first = [(1, short, one), (1, short, more), (64, short, one), (64, long, one)]
    first += [(128, short, one), (33, short, one)]
    rows = [_layers(*each, body) for each in first]
    rows += [_product(matrix, 32, products[-1]) for matrix in MATRICES]
    rows += [_product(MATRICES[0], 1, products[0])]
    rows += [_row("head", "head", f"rows{n}", n, "int8") for n in head_rows]
    rows += [_layers(*each, body) for each in product(ROWS, (short, long), (one, more))]
    rows += [_product(*each) for each in product(MATRICES, (1, 32, 64, 128), products)]
    return [*{row["name"]: row for row in rows}.values()]


def _layers(rows: int, cache: int, layers: int, precision: str) -> dict[str, Any]:
    return _row("layers", f"layers{layers}", f"rows{rows}_cache{cache}", rows, precision,
                cache=cache, layers=layers)  # fmt: skip


def _product(weight: str, rows: int, precision: str) -> dict[str, Any]:
    file = f"{weight.replace('.', '_')}_{precision}"
    return _row("product", file, f"rows{rows}", rows, precision, weight=weight)


def _row(
    graph: str, file: str, signature: str, rows: int, precision: str, **more: Any
) -> dict[str, Any]:
    return {
        "name": f"{file}-{signature}", "file": file, "signature": signature, "graph": graph,
        "processor": "cpu" if graph == "head" else "npu", "rows": rows, "precision": precision,
        **more,
    }  # fmt: skip
