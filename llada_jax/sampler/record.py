"""What one step did, as arrays: the raw material of the trace."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from llada_jax.sampler.canvas import MASKED, STABLE, VISIBLE, Canvas

COMMIT, AHEAD, PROMOTE, REPLACE, REMASK, FREEZE = (1 << bit for bit in range(6))
"""What may happen to a position in a step, as bits. AHEAD comes with COMMIT."""


class StepRecord(NamedTuple):
    """What a step ran, and what happened to which position."""

    counts: Any  # `Counts`
    block: Int[Array, " B"]
    events: Int[Array, "B L"]  # bits
    token: Int[Array, "B L"]  # after the step, as is the confidence
    confidence: Float[Array, "B L"]


def record_of(
    counts: Any, before: Canvas, revised: Canvas, decided: Canvas, after: Canvas
) -> StepRecord:
    """The record of a step from the canvas at its start, after its own block's commits and
    revisions, when it had gone on to the next block, and at its end."""
    was_masked, was_visible = before.state == MASKED, before.state == VISIBLE
    filled = after.filled & ~before.filled
    committed = was_masked & (after.state >= VISIBLE) & ~filled
    return StepRecord(
        counts=counts,
        block=before.block,
        events=_bits(
            {
                COMMIT: committed,
                AHEAD: committed & (decided.state == MASKED),
                PROMOTE: was_visible & (revised.state == STABLE),
                REPLACE: was_visible & (revised.tokens != before.tokens) & (revised.state > MASKED),
                REMASK: was_visible & (revised.state == MASKED),
                FREEZE: (revised.state == VISIBLE) & (after.state == STABLE),
            }
        ),
        token=after.tokens,
        confidence=after.confidence,
    )


def _bits(flags: dict[int, Bool[Array, "B L"]]) -> Int[Array, "B L"]:
    total = sum(bit * flag.astype(jnp.int8) for bit, flag in flags.items())
    return jnp.asarray(total, jnp.int8)


def tokens_committed(events: Int[np.ndarray, "S B L"]) -> int:
    """Tokens that forwards committed and that were not masked again."""
    return int(((events & COMMIT) > 0).sum() - ((events & REMASK) > 0).sum())
