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
    """Rows that do not repeat the same place of the forward before: same position, same token."""
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
    """The trace of a run.

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
    blocks = [
        _blocks(step, now, origin, block_length)
        for step, now in zip(steps, current_block, strict=True)
    ]
    changed = [changed_rows(s, b) for s, b in zip(steps, [None, *steps[:-1]], strict=True)]
    live = [step.live.reshape(-1) for step in steps]
    return RoutingTrace(
        experts=np.stack([
            _rows(_where_live(s.experts, on, ABSENT), most, ABSENT)
            for s, on in zip(steps, live, strict=True)
        ]).astype(np.int16),
        weights=np.stack([
            _rows(_where_live(s.weights, on, 0), most, 0) for s, on in zip(steps, live, strict=True)
        ]),
        scores=np.stack([s.scores[:, on].mean(axis=1) for s, on in zip(steps, live, strict=True)]),
        foreseen=np.stack([
            _rows(_where_live(s.foreseen, on, ABSENT), most, ABSENT)
            for s, on in zip(steps, live, strict=True)
        ]).astype(np.int16),
        changed=np.stack([np.pad(c, (0, most - c.size), constant_values=True) for c in changed]),
        block=np.stack([
            np.pad(b, (0, most - b.size), constant_values=b.min()) for b in blocks
        ]).astype(np.int32),
        committed=np.asarray(committed, np.int32),
        settings=settings,
    )  # fmt: skip


def _blocks(
    step: RecordedStep,
    current: Int[np.ndarray, " B"],
    origin: Int[np.ndarray, " B"],
    block_length: int,
) -> Int[np.ndarray, " T"]:
    """Guided decoding runs each canvas row twice; its copies decode the same block."""
    copies = len(step.positions) // len(current)
    now, start = np.tile(current, copies)[:, None], np.tile(origin, copies)[:, None]
    block = np.maximum((step.positions - start) // block_length, now)
    return np.where(step.live, block, now).reshape(-1)


def _where_live(values: np.ndarray, live: Bool[np.ndarray, " T"], otherwise: int) -> np.ndarray:
    return np.where(live[:, None], values, otherwise)


def _rows(values: np.ndarray, most: int, otherwise: int) -> np.ndarray:
    """`values` [..., T, k] with rows appended up to `most`."""
    widths = [(0, 0)] * values.ndim
    widths[-2] = (0, most - values.shape[-2])
    return np.pad(values, widths, constant_values=otherwise)
