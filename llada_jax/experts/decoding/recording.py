"""Routing traces from forwards that were run: what each one routed, put in the form of a trace."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from llada_jax.experts.decoding.recorded_forward import RoutingRecord
from llada_jax.experts.routing import ABSENT, RoutingTrace
from llada_jax.types import Rows


class RecordedStep(NamedTuple):
    """One forward, in NumPy."""

    routing: RoutingRecord
    rows: Rows


def changed_rows(rows: Rows, before: Rows | None) -> Bool[np.ndarray, " T"]:
    """Marks rows that do not repeat a row of the forward before: same position, same token."""
    if before is None or before.tokens.shape != rows.tokens.shape:
        return np.ones(rows.tokens.size, bool)
    same = (rows.tokens == before.tokens) & (rows.positions == before.positions)
    return ~np.asarray(same & rows.live & before.live).reshape(-1)


def trace_of_steps(
    steps: Sequence[RecordedStep],
    *,
    current_block: Int[np.ndarray, "S B"],
    committed: Int[np.ndarray, " S"],
    origin: Int[np.ndarray, " B"],
    block_length: int,
    settings: dict[str, Any],
) -> RoutingTrace:
    """Returns the trace of a run.

    Rows before a canvas row's current block count as part of it, those after it are drafts.

    Args:
      current_block: the block that each canvas row decoded in each step.
      committed: tokens that became final in each step.
      origin: where each canvas row's blocks begin.

    Raises ValueError for router scores that are NaN.
    """
    most = max(step.rows.tokens.size for step in steps)
    live = [np.asarray(step.rows.live).reshape(-1) for step in steps]

    def padded(values: np.ndarray, otherwise: int, axis: int = -1) -> np.ndarray:
        widths = [(0, 0)] * values.ndim
        widths[axis] = (0, most - values.shape[axis])
        return np.pad(values, widths, constant_values=otherwise)

    def taken(name: str) -> np.ndarray:
        """Stacks experts [..., T, k] of `most` rows; those that are not live are absent."""
        every = [np.asarray(getattr(step.routing, name)) for step in steps]
        chosen = [np.where(on[:, None], each, ABSENT) for each, on in zip(every, live, strict=True)]
        return np.stack([padded(each, ABSENT, axis=-2) for each in chosen]).astype(np.int16)

    blocks = [
        _blocks(step.rows, now, origin, block_length)
        for step, now in zip(steps, current_block, strict=True)
    ]
    rows = [step.rows for step in steps]
    changed = map(changed_rows, rows, [None, *rows[:-1]])
    scores = [
        np.asarray(step.routing.scores)[:, on].mean(axis=1)
        for step, on in zip(steps, live, strict=True)
    ]
    return RoutingTrace(
        experts=taken("experts"),
        scores=np.stack(scores),
        foreseen=taken("foreseen"),
        changed=np.stack([padded(each, True) for each in changed]),
        block=np.stack([padded(each, each.min()) for each in blocks]).astype(np.int32),
        committed=np.asarray(committed, np.int32),
        settings=settings,
    )


def _blocks(
    rows: Rows, current: Int[np.ndarray, " B"], origin: Int[np.ndarray, " B"], block_length: int
) -> Int[np.ndarray, " T"]:
    """Returns each row's block. Guided decoding runs a canvas row twice, in the same block."""
    copies = len(rows.positions) // len(current)
    now, start = np.tile(current, copies)[:, None], np.tile(origin, copies)[:, None]
    block = np.maximum((rows.positions - start) // block_length, now)
    return np.where(rows.live, block, now).reshape(-1)
