"""What a page shows of a trace: one row of its batch, forward by forward, as plain JSON."""

from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from llada_jax.config import require
from llada_jax.sampler.canvas import MASKED, PROMPT, STABLE, VISIBLE, bounds_of
from llada_jax.sampler.event import Event, event_states
from llada_jax.sampler.record import StepCounts

if TYPE_CHECKING:
    from llada_jax.sampler.trace import Trace

_TOLD = ("gen_length", "block_length", "accept", "window", "cache", "threshold", "theta_visible",
         "theta_stable", "temperature")  # fmt: skip


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
    settings, infill = trace.settings, trace.settings["infill"]
    told: list[Any] = [SimpleNamespace(**settings[name]) for name in ("sampler", "model")]
    sampler, model = told
    lengths = trace.prompt_lengths[row : row + 1]
    origin, end = (int(each[0]) for each in bounds_of(lengths, sampler, model, infill=infill))
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
    forwards |= _windows(trace, row, sampler, origin - int(model.shift_logits))
    seconds = None if np.isnan(trace.seconds).any() else trace.seconds[useful].round(5).tolist()
    return {
        "title": "A canvas, replayed",
        "model": {name: settings["model"][name] for name in ("family", "n_layers", "width")},
        "sampler": {name: settings["sampler"].get(name) for name in _TOLD},
        "kinds": {kind.name: int(kind) for kind in Event},
        "states": {"PROMPT": PROMPT, "MASKED": MASKED, "VISIBLE": VISIBLE, "STABLE": STABLE},
        "ids": ids.tolist(),
        "pieces": [pieces.get(str(each), f"[{each}]") for each in ids],
        "ends": [each for each in (sampler.eos_id, sampler.eot_id) if each is not None],
        "tokens": places[:end].tolist(),
        "masked": np.flatnonzero(masked).tolist(),
        "origin": origin,
        "block_length": sampler.block_length,
        "forwards": {name: column[useful].tolist() for name, column in forwards.items()}
        | {"seconds": seconds},
        "events": [events[begin:stop].ravel().tolist() for begin, stop in pairwise(bounds)],
    }


def _windows(
    trace: "Trace", row: int, sampler: Any, first: int
) -> dict[str, Int[np.ndarray, " S"]]:
    """Returns where the window of each forward began and ended: its rows are those that do not
    stand beside it, and it begins where a cache of finished tokens ends, or else with the block, of
    which block 0 begins at `first`."""
    beside = trace.shadow_rows + trace.refreshed * (sampler.refresh == "rows")
    start = cached = trace.cache_length[:, row]
    if sampler.cache != "blockwise":
        block = np.maximum(first + trace.block[:, row] * sampler.block_length, 0)
        start = np.where(cached > 0, block, 0)
    return {"start": start, "stop": start + (trace.live_rows - beside)[:, row]}
