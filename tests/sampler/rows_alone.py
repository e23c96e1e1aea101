"""Compares one row of a batch with the same prompt decoded alone."""

import numpy as np

from llada_jax.sampler.generate import Result
from llada_jax.sampler.trace import Trace

COUNTS = ("live_rows", "shadow_rows", "draft_rows", "refreshed", "head_rows", "cache_length",
          "block")  # fmt: skip
EVENTS = ("step", "position", "token", "confidence", "kind")


def assert_row_is(together: Result, row: int, alone: Result) -> None:
    """Asserts equal tokens, and equal rows, scores and events in every forward."""
    np.testing.assert_array_equal(together.generated[row], alone.generated[0])
    assert together.nfe[row] == alone.nfe[0]
    ours, theirs = _story(together.trace, row), _story(alone.trace, 0)
    for name, found in ours.items():
        np.testing.assert_array_equal(found, theirs[name], err_msg=f"{name} of row {row}")


def _story(trace: Trace | None, row: int) -> dict[str, np.ndarray]:
    assert trace is not None
    forwards, mine = trace.nfe[row], trace.event_row == row
    counts = {name: getattr(trace, name)[:forwards, row] for name in COUNTS}
    return counts | {name: getattr(trace, f"event_{name}")[mine] for name in EVENTS}
