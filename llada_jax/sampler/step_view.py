"""What the host loop shows of a step, to whom asks for it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from llada_jax.sampler.canvas import Canvas


class StepView(NamedTuple):
    """What `on_step` is shown after each forward, as numpy arrays."""

    step: int
    rows: int
    tokens: Int[np.ndarray, "B L"]
    state: Int[np.ndarray, "B L"]
    confidence: Float[np.ndarray, "B L"]
    fresh: Bool[np.ndarray, "B L"]
    """Positions that this step committed."""
    nfe: Int[np.ndarray, " B"]


OnStep = Callable[[StepView], None]


def view_of(step: int, rows: int, canvas: Canvas, before: Any) -> StepView:
    """Returns the view of a canvas whose states were others `before`."""
    length = int(canvas.end.max())

    def shown(array: Array) -> np.ndarray:  # a copy: the next step reuses the canvas's memory
        return np.array(array)[:, :length]

    state = shown(canvas.state)
    return StepView(
        step=step,
        rows=rows,
        tokens=shown(canvas.tokens),
        state=state,
        confidence=shown(canvas.confidence),
        fresh=state != before[:, :length],
        nfe=np.array(canvas.nfe),
    )
