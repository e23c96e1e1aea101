"""Routing traces from forwards that were run: what each one routed, put in the form of a trace."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from llada_jax.config import require
from llada_jax.experts.routing import ABSENT, RoutingTrace


class RecordedStep(NamedTuple):
    """One forward: N routed layers, A layers ahead; T = B * R rows of the whole batch."""

    experts: Int[np.ndarray, "N T k"]
    weights: Float[np.ndarray, "N T k"]
    scores: Float[np.ndarray, "N T E"]
    foreseen: Int[np.ndarray, "N A T k"]
    tokens: Int[np.ndarray, "B R"]
    positions: Int[np.ndarray, "B R"]
    live: Bool[np.ndarray, "B R"]


def changed_rows(step: RecordedStep, before: RecordedStep | None) -> Bool[np.ndarray, " T"]:
    """Marks rows that do not repeat a row of the forward before: same position, same token."""
    if before is None or before.tokens.shape != step.tokens.shape:
        return np.ones(step.tokens.size, bool)
    same = (step.tokens == before.tokens) & (step.positions == before.positions)
    return ~(same & step.live & before.live).reshape(-1)


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

    Raises ValueError for router scores that are NaN, and where the numbers of steps differ.
    """
    require(
        0 < len(steps) == len(current_block) == len(committed),
        f"{len(steps)} forwards, {len(current_block)} blocks, {len(committed)} counts are given; "
        "allowed: the same number of each, from 1 on",
    )
    most = max(step.tokens.size for step in steps)
    live = [step.live.reshape(-1) for step in steps]

    def rows(name: str, absent: int) -> np.ndarray:
        """Stacks a field [..., T, k] of `most` rows; those that are not live are absent."""
        return np.stack([
            _padded(np.where(on[:, None], getattr(step, name), absent), most, absent, axis=-2)
            for step, on in zip(steps, live, strict=True)
        ])  # fmt: skip

    blocks = [
        _blocks(step, now, origin, block_length)
        for step, now in zip(steps, current_block, strict=True)
    ]
    changed = [changed_rows(s, b) for s, b in zip(steps, [None, *steps[:-1]], strict=True)]
    return RoutingTrace(
        experts=rows("experts", ABSENT).astype(np.int16),
        weights=rows("weights", 0),
        scores=np.stack([s.scores[:, on].mean(axis=1) for s, on in zip(steps, live, strict=True)]),
        foreseen=rows("foreseen", ABSENT).astype(np.int16),
        changed=np.stack([_padded(each, most, True) for each in changed]),
        block=np.stack([_padded(each, most, each.min()) for each in blocks]).astype(np.int32),
        committed=np.asarray(committed, np.int32),
        settings=settings,
    )


def _blocks(
    step: RecordedStep,
    current: Int[np.ndarray, " B"],
    origin: Int[np.ndarray, " B"],
    block_length: int,
) -> Int[np.ndarray, " T"]:
    """Returns each row's block. Guided decoding runs a canvas row twice, in the same block."""
    copies = len(step.positions) // len(current)
    now, start = np.tile(current, copies)[:, None], np.tile(origin, copies)[:, None]
    block = np.maximum((step.positions - start) // block_length, now)
    return np.where(step.live, block, now).reshape(-1)


def _padded(values: np.ndarray, most: int, otherwise: int, axis: int = -1) -> np.ndarray:
    widths = [(0, 0)] * values.ndim
    widths[axis] = (0, most - values.shape[axis])
    return np.pad(values, widths, constant_values=otherwise)
