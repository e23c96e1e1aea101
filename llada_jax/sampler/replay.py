"""What a page shows of a trace: one row of its batch, forward by forward, as plain JSON."""

from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Int

from llada_jax.config import require
from llada_jax.config.policies import take_policy
from llada_jax.sampler.canvas import MASKED, PROMPT, STABLE, VISIBLE, block_origin, canvas_end
from llada_jax.sampler.event import Event

if TYPE_CHECKING:
    from llada_jax.sampler.trace import Trace

KEPT = -1
"""The state that an event leaves as it was."""
_AFTER = {
    Event.FILL: STABLE,
    Event.PROMOTE: STABLE,
    Event.FREEZE: STABLE,
    Event.REMASK: MASKED,
    Event.REOPEN: VISIBLE,
}
_TOLD = ("gen_length", "block_length", "accept", "window", "cache", "threshold", "factor",
         "entropy_bound", "theta_visible", "theta_stable", "temperature")  # fmt: skip
_ONLY_VISIBLE = (Event.PROMOTE, Event.REPLACE, Event.REMASK, Event.FREEZE)


def replay(trace: "Trace", row: int = 0) -> dict[str, Any]:
    """Returns the canvas of a row of the batch at its start, and its S useful forwards.

    Columns of `forwards` have an entry for each. `events` has, for each, five whole numbers an
    event: position, kind (`kinds` names them), the state afterwards (-1: as before), the place of
    its token in `ids` and `pieces`, and its confidence in thousandths. `start` and `stop` bound the
    window; `block` is the current one, of `block_length` positions, which count from `origin`.

    Raises ValueError for a row that the trace does not have.
    """
    n_rows = len(trace.prompt_lengths)
    require(0 <= row < n_rows, f"row is {row}; allowed: 0 to {n_rows - 1}")
    settings = trace.settings
    sampler: Any = SimpleNamespace(**settings["sampler"])
    model: Any = SimpleNamespace(**settings["model"])
    lengths, infill = trace.prompt_lengths[row : row + 1], settings["infill"]
    end = int(canvas_end(lengths, sampler, model, infill=infill)[0])
    origin = int(block_origin(lengths, sampler, model, infill=infill)[0])
    mine = np.flatnonzero(trace.event_row == row)
    kinds, positions = trace.event_kind[mine], trace.event_position[mine]
    masked = np.arange(end) >= end if infill else np.arange(end) >= lengths[0]
    masked[positions[np.isin(kinds, (Event.COMMIT, Event.FILL))]] = True
    tokens = trace.tokens[row, :end]
    ids, places = np.unique(np.concatenate([tokens, trace.event_token[mine]]), return_inverse=True)
    pieces = settings.get("pieces", {})
    useful = np.flatnonzero(trace.live_rows[:, row] + trace.refreshed[:, row])
    confidence = np.clip(np.nan_to_num(trace.event_confidence[mine]), 0, 1)
    rule = None if ":" in (sampler.accept or "") else take_policy("rule", dict(settings["sampler"]))
    revises = rule is not None and rule.revises
    open_at_end = ~np.asarray(rule.stable(confidence)) if rule else np.zeros(len(mine), bool)
    states = _states(kinds, positions, open_at_end, revises)
    thousandths = np.round(1000 * confidence).astype(int)
    events = np.stack((positions, kinds, states, places[end:], thousandths), axis=1)
    bounds = np.searchsorted(trace.event_step[mine], np.append(useful, len(trace.rows)))
    counts = ("live_rows", "shadow_rows", "draft_rows", "branch_rows", "refreshed", "head_rows",
              "cache_length", "block")  # fmt: skip
    forwards = {name: getattr(trace, name)[useful, row].tolist() for name in counts}
    start, stop = _windows(trace, row, sampler, origin, int(model.shift_logits))
    seconds = trace.seconds[useful]
    return {
        "title": "A canvas, replayed",
        "model": {name: settings["model"][name] for name in ("family", "n_layers", "width")},
        "sampler": {name: settings["sampler"].get(name) for name in _TOLD},
        "kinds": {kind.name: int(kind) for kind in Event},
        "states": {"PROMPT": PROMPT, "MASKED": MASKED, "VISIBLE": VISIBLE, "STABLE": STABLE},
        "ids": ids.tolist(),
        "pieces": [pieces.get(str(each), f"[{each}]") for each in ids.tolist()],
        "ends": [each for each in (sampler.eos_id, sampler.eot_id) if each is not None],
        "tokens": places[:end].tolist(),
        "masked": np.flatnonzero(masked).tolist(),
        "origin": origin,
        "block_length": sampler.block_length,
        "forwards": forwards | {
            "rows": trace.rows[useful].tolist(),
            "start": start[useful].tolist(),
            "stop": stop[useful].tolist(),
            "seconds": None if np.isnan(seconds).any() else np.round(seconds, 5).tolist(),
        },
        "events": [events[a:b].ravel().tolist() for a, b in pairwise(bounds)],
    }  # fmt: skip


def _windows(
    trace: "Trace", row: int, sampler: Any, origin: int, shift: int
) -> tuple[Int[np.ndarray, " S"], Int[np.ndarray, " S"]]:
    """Returns where the window of each forward began and ended: its rows are those that do not
    stand beside it, and it begins where a cache of finished tokens ends, or else with the block."""
    beside = trace.shadow_rows + trace.branch_rows
    beside = beside + trace.refreshed * (sampler.refresh == "rows")
    cached, block = trace.cache_length[:, row], trace.block[:, row]
    start = cached
    if sampler.cache != "blockwise":
        first = np.maximum(origin + block * sampler.block_length - shift, 0)
        start = np.where(cached > 0, first, 0)
    return start, start + (trace.live_rows - beside)[:, row]


def _states(
    kinds: np.ndarray, positions: np.ndarray, open_at_end: Bool[np.ndarray, " X"], revises: bool
) -> list[int]:
    """Returns the state that each event left. What was committed was visible, and not stable yet,
    if the next thing that happened to it happens to visible tokens alone; where nothing did, if it
    is `open_at_end`, or was a draft of a rule that revises."""
    states, following = [], {}
    columns = (each[::-1].tolist() for each in (kinds, positions, open_at_end))
    for kind, position, is_open in zip(*columns, strict=True):
        if kind == Event.COMMIT:
            after = following.get(position)
            ahead = after == Event.AHEAD and revises
            visible = after in _ONLY_VISIBLE or ahead or (after is None and is_open)
            states.append(VISIBLE if visible else STABLE)
        else:
            states.append(_AFTER.get(Event(kind), KEPT))
        if kind == Event.AHEAD:
            following.setdefault(position, kind)
        elif kind != Event.SCORE:
            following[position] = kind
    return states[::-1]
