"""What may happen to a position in a forward."""

from enum import IntEnum


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
