"""The content of a page that replays one row of a trace, forward by forward, as plain JSON."""

import re
from collections.abc import Iterable
from itertools import pairwise
from textwrap import shorten
from types import SimpleNamespace
from typing import Any

import numpy as np
from jaxtyping import Int

from llada_jax.config import require
from llada_jax.sampler.flat import rule_of
from llada_jax.sampler.record import Event, StepCounts
from llada_jax.sampler.state import MASKED, PROMPT, STABLE, VISIBLE
from llada_jax.sampler.trace_data import TraceData, bounds_in

KEPT = -1
"""Marks an event that changes no state."""
_AFTER = {Event.FILL: STABLE, Event.PROMOTE: STABLE, Event.FREEZE: STABLE, Event.REMASK: MASKED}
_OF_VISIBLE = (Event.PROMOTE, Event.REPLACE, Event.FREEZE)
_SHOWN = ("gen_length", "block_length", "accept", "window", "cache", "threshold", "theta_visible",
         "theta_stable", "temperature")  # fmt: skip


def replay(trace: TraceData, row: int = 0) -> dict[str, Any]:
    """Returns the canvas of a row of the batch at its start, and its S useful forwards.

    Columns of `forwards` have an entry for each forward. `events` has five whole numbers for each
    event of a forward: position, kind (named by `kinds`), the state afterwards (-1 if unchanged),
    the index of its token in `ids` and `pieces`, and its confidence in thousandths. `start` and
    `stop` bound the window; `block` is the current one, of `block_length` positions, which count
    from `origin`.

    Raises ValueError for a row that the trace does not have.
    """
    n_rows = len(trace.prompt_lengths)
    require(0 <= row < n_rows, f"row is {row}; allowed: 0 to {n_rows - 1}")
    settings, infill = trace.settings, trace.settings["infill"]
    sampler: Any = SimpleNamespace(**settings["sampler"])
    shift = int(settings["model"]["shift_logits"])
    lengths = trace.prompt_lengths[row : row + 1]
    origin, end = (int(bound[0]) for bound in bounds_in(settings, lengths))
    mine = np.flatnonzero((trace.event_row == row) & (trace.event_kind != Event.MARGIN))
    kinds, positions = trace.event_kind[mine], trace.event_position[mine]
    masked = np.arange(end) >= (end if infill else lengths[0])
    masked[positions[np.isin(kinds, (Event.COMMIT, Event.FILL))]] = True
    tokens = np.concatenate([trace.tokens[row, :end], trace.event_token[mine]])
    ids, places = np.unique(tokens, return_inverse=True)
    pieces = settings.get("pieces", {})
    thousandths = 1000 * np.clip(np.nan_to_num(trace.event_confidence[mine]), 0, 1)
    columns = (positions, kinds, event_states(trace)[mine], places[end:], thousandths.round())
    events = np.stack(columns, axis=1).astype(int)
    useful = np.flatnonzero(trace.live_rows[:, row] + trace.refreshed[:, row])
    bounds = np.searchsorted(trace.event_step[mine], np.append(useful, len(trace.rows)))
    names = (*StepCounts._fields, "block")
    forwards = {name: getattr(trace, name)[:, row] for name in names} | {"rows": trace.rows}
    forwards |= _windows(trace, row, sampler, origin - shift)
    seconds = None if np.isnan(trace.seconds).any() else trace.seconds[useful].round(5).tolist()
    return {
        "title": prompt_text([pieces.get(str(token), "") for token in tokens[:end][~masked]]),
        "model": {name: settings["model"][name] for name in ("family", "n_layers", "width")},
        "sampler": {name: settings["sampler"].get(name) for name in _SHOWN},
        "kinds": {kind.name: int(kind) for kind in Event},
        "states": {"PROMPT": PROMPT, "MASKED": MASKED, "VISIBLE": VISIBLE, "STABLE": STABLE},
        "ids": ids.tolist(),
        "pieces": [pieces.get(str(id_), f"[{id_}]") for id_ in ids],
        "ends": [id_ for id_ in (sampler.eos_id, sampler.eot_id) if id_ is not None],
        "tokens": places[:end].tolist(),
        "masked": np.flatnonzero(masked).tolist(),
        "origin": origin,
        "block_length": sampler.block_length,
        "forwards": {name: column[useful].tolist() for name, column in forwards.items()}
        | {"seconds": seconds},
        "events": [events[begin:stop].ravel().tolist() for begin, stop in pairwise(bounds)],
    }


def prompt_text(pieces: Iterable[str]) -> str:
    """Returns a prompt as a heading of at most 100 characters, without the chat template's roles
    and special tokens; "A canvas, replayed" if nothing is left."""
    plain = re.sub(r"<\|(start_header_id|im_start)\|>\s*\w+|<\|.*?\|>", " ", "".join(pieces))
    return shorten(plain, 100, placeholder=" ...") or "A canvas, replayed"


def _windows(
    trace: TraceData, row: int, sampler: Any, first: int
) -> dict[str, Int[np.ndarray, " S"]]:
    """Returns the first and last position of each forward's window.

    The window has all rows but the extra ones. It starts after the cache of finished tokens, or
    with the block; block 0 starts at `first`.
    """
    beside = trace.shadow_rows + trace.refreshed * (sampler.refresh == "rows")
    start = cached = trace.cache_length[:, row]
    if sampler.cache != "blockwise":
        block = np.maximum(first + trace.block[:, row] * sampler.block_length, 0)
        start = np.where(cached > 0, block, 0)
    return {"start": start, "stop": start + (trace.live_rows - beside)[:, row]}


def event_states(trace: TraceData) -> Int[np.ndarray, " X"]:
    """Returns `MASKED`, `VISIBLE` or `STABLE` of the canvas for each event, or `KEPT`.

    A committed token was visible if its next event can only happen to visible tokens. If it has no
    next event, the rule decides; a custom rule is not imported, and its tokens count as stable, as
    do all tokens of a run with a drafter.
    """
    sampler = dict(trace.settings["sampler"])
    known = ":" not in (sampler["accept"] or "") and not sampler.get("drafter")
    rule = rule_of(sampler) if known else None
    confidence: Any = np.asarray(trace.event_confidence, np.float32)
    is_open = (
        np.zeros(len(confidence), bool) if rule is None else ~np.asarray(rule.is_stable(confidence))
    )
    states, following = [], {}
    columns = (trace.event_kind, trace.event_row, trace.event_position, is_open)
    for kind, *position, stays in zip(*(column[::-1].tolist() for column in columns), strict=True):
        after = following.get(tuple(position))
        if kind == Event.COMMIT:
            drafted = after == Event.AHEAD and rule is not None and rule.revises
            masked_again = after == Event.REMASK and (rule is None or stays)
            visible = after in _OF_VISIBLE or drafted or masked_again or (after is None and stays)
            states.append(VISIBLE if visible else STABLE)
        else:
            states.append(_AFTER.get(kind, KEPT))
        if kind not in (Event.SCORE, Event.MARGIN) and (kind != Event.AHEAD or after is None):
            following[tuple(position)] = kind
    return np.array(states[::-1], np.int8)
