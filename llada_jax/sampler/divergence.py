"""Where two runs of the same prompts part: on other machines or meshes, floats are rounded in
another order, and a decision that was close may fall otherwise."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from llada_jax.config import require
from llada_jax.sampler.event import Event

if TYPE_CHECKING:
    from llada_jax.sampler.trace import Trace


class Divergence(NamedTuple):
    """The first event that only one of two runs has. Steps and positions count from 0."""

    step: int
    row: int
    position: int
    tokens: tuple[int, int]
    """What each run predicted there."""
    margin: float
    """How close it was: of other tokens, the probability of the best less that of the second; of
    other positions, the distance of the confidences that decided."""


def first_divergence(one: "Trace", other: "Trace") -> Divergence | None:
    """Returns where two traces first did something else; None where they never did.

    Raises ValueError for traces of other prompts, and for a first one without margins
    (`trace="margins"`).
    """
    require(
        bool((one.event_kind == Event.MARGIN).any()),
        "the first trace has no margins; allowed: that of a run with trace='margins'",
    )
    require(
        one.prompt_lengths.tolist() == other.prompt_lengths.tolist(),
        f"the traces are of prompts of {one.prompt_lengths.tolist()} and "
        f"{other.prompt_lengths.tolist()} tokens; allowed: the same prompts",
    )
    done = [_events(each) for each in (one, other)]
    differing = sorted(done[0] ^ done[1])
    if not differing:
        return None
    step, row, position, *_ = differing[0]
    found = [_predicted(each, step, row, position) for each in (one, other)]
    tokens, sure = (found[0][0], found[1][0]), found[0][1]
    if tokens[0] != tokens[1]:
        _, margin = _predicted(one, step, row, position, margin=True)
        return Divergence(step, row, position, tokens, margin)
    rivals = [each[2] for each in differing if each[:2] == (step, row) and each[2] != position]
    bounds = [_predicted(one, step, row, each)[1] for each in rivals] or [found[1][1]]
    return Divergence(step, row, position, tokens, min(abs(sure - each) for each in bounds))


def _events(trace: "Trace") -> set[tuple[int, ...]]:
    """Returns step, row, position, kind and token of what changed the canvas."""
    changed = ~np.isin(trace.event_kind, (Event.SCORE, Event.MARGIN))
    names = ("step", "row", "position", "kind", "token")
    columns = (getattr(trace, f"event_{name}")[changed].tolist() for name in names)
    return set(zip(*columns, strict=True))


def _predicted(
    trace: "Trace", step: int, row: int, position: int, margin: bool = False
) -> tuple[int, float]:
    """Returns the token that a forward predicted, or left, and its confidence, or margin; -1 for
    none."""
    here = (trace.event_row == row) & (trace.event_position == position)
    here &= (trace.event_step == step) & ((trace.event_kind == Event.MARGIN) == margin)
    last = np.flatnonzero(here)[-1:]
    told = zip(trace.event_token[last].tolist(), trace.event_confidence[last].tolist(), strict=True)
    return next(told, (-1, 0.0))
