"""What may happen to a position in a forward, and the state in which it leaves the position."""

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from llada_jax.config.policies import take_policy
from llada_jax.sampler.canvas import MASKED, STABLE, VISIBLE

if TYPE_CHECKING:
    from llada_jax.sampler.trace import Trace


class Event(IntEnum):
    """What happened to a position."""

    COMMIT = 0
    FILL = 1
    """Became EOS without a prediction, because the row had stopped."""
    AHEAD = 2
    """The commit came from a draft: the position had no forward of its own."""
    PROMOTE = 3
    """A visible token became stable, by its confidence."""
    REPLACE = 4
    """A visible token gave way to another one."""
    REMASK = 5
    """A committed token was masked again."""
    FREEZE = 6
    """A visible token became stable as it was: nothing would revise it any more."""
    SCORE = 8
    """The forward's prediction for a position to which nothing else happened: its token, and the
    confidence in it. Only where the run kept its scores (`trace="scores"`)."""
    MARGIN = 9
    """How far a prediction was from the second one: its token, and the difference of their
    probabilities. Only where the run kept it (`trace="margins"`)."""


KEPT = -1
"""The state that an event leaves as it was."""
_AFTER = {Event.FILL: STABLE, Event.PROMOTE: STABLE, Event.FREEZE: STABLE, Event.REMASK: MASKED}
_OF_VISIBLE = (Event.PROMOTE, Event.REPLACE, Event.FREEZE)


def event_states(trace: "Trace") -> Int[np.ndarray, " X"]:
    """Returns `MASKED`, `VISIBLE` or `STABLE` of the canvas for each event, or `KEPT`.

    What was committed was visible if the next thing that happened to it happens to visible tokens
    alone. Where nothing did, the rule says so; one of the user's own is not imported, and what it
    left so counts as stable.
    """
    sampler = dict(trace.settings["sampler"])
    rule = None if ":" in (sampler["accept"] or "") else take_policy("rule", sampler)
    confidence = np.asarray(trace.event_confidence, np.float32)
    is_open = (
        np.zeros(len(confidence), bool) if rule is None else ~np.asarray(rule.stable(confidence))
    )
    states, following = [], {}
    columns = (trace.event_kind, trace.event_row, trace.event_position, is_open)
    for kind, *place, stays in zip(*(each[::-1].tolist() for each in columns), strict=True):
        after = following.get(tuple(place))
        if kind == Event.COMMIT:
            drafted = after == Event.AHEAD and rule is not None and rule.revises
            masked_again = after == Event.REMASK and (rule is None or stays)
            visible = after in _OF_VISIBLE or drafted or masked_again or (after is None and stays)
            states.append(VISIBLE if visible else STABLE)
        else:
            states.append(_AFTER.get(kind, KEPT))
        if kind not in (Event.SCORE, Event.MARGIN) and (kind != Event.AHEAD or after is None):
            following[tuple(place)] = kind
    return np.array(states[::-1], np.int8)
