"""The arrays of a decoding trace, and how they depend on each other."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from types import NoneType
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from llada_jax.config import Parity, require
from llada_jax.io.archive import MOST_COUNT, ArrayField, require_arrays
from llada_jax.sampler.record import Event
from llada_jax.sampler.spec import sequence_bounds

TRACE_FIELDS = {
    "tokens": ArrayField("BL", most=2**31 - 1),
    "rows": ArrayField("S"),
    "live_rows": ArrayField("SB"),
    "shadow_rows": ArrayField("SB"),
    "draft_rows": ArrayField("SB"),
    "refreshed": ArrayField("SB"),
    "head_rows": ArrayField("SB"),
    "cache_length": ArrayField("SB"),
    "block": ArrayField("SB"),
    "seconds": ArrayField("S", "f", most=1e9),
    "prompt_lengths": ArrayField("B", least=1),
    "event_step": ArrayField("X", most="S"),
    "event_row": ArrayField("X", most="B"),
    "event_position": ArrayField("X", most="L"),
    "event_token": ArrayField("X", most=2**31 - 1),
    "event_confidence": ArrayField("X", "f", -inf, inf),
    "event_kind": ArrayField("X", most=max(Event)),
}
"""The arrays of a trace in a file; `check_trace` checks how they depend on each other."""
_READ: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "sampler": {
        **{"gen_length": (int,), "block_length": (int,), "cache": (str,)},
        **{"accept": (str, NoneType), "refresh": (str, NoneType)},
        **{"eos_id": (int, NoneType), "eot_id": (int, NoneType)},
    },
    "model": {
        **{"block_length": (int, NoneType), "shift_logits": (bool,)},
        **{"family": (str,), "n_layers": (int,), "width": (int,)},
    },
}
"""Settings that are read from a trace (`replay`, `phones.workload`, pages), with their types."""


@dataclass(frozen=True, eq=False)
class TraceData:
    """S forwards of B rows, and the events of their positions.

    Positions count from each row's own start: its prompt is at 0. Event arrays are in the order of
    steps; each has the token and the confidence that its position was left with.

    Tokens, decisions and counts of a prompt do not depend on the other prompts of its batch. Its
    confidences do, in rounding: the shape of a forward depends on all prompts in it, and XLA's
    order of summation depends on the shape. So an evaluation that was resumed, or divided among
    workers, may store other last bits than an uninterrupted one.
    """

    rows: Int[np.ndarray, " S"]
    """Rows that the forward ran for each batch row: its bucket."""
    live_rows: Int[np.ndarray, "S B"]
    """Rows that were no padding; the next two are among them."""
    shadow_rows: Int[np.ndarray, "S B"]
    draft_rows: Int[np.ndarray, "S B"]
    """Masked positions beyond the current block, or drafts that the forward verified; of these, it
    accepted `count(Event.AHEAD)`."""
    refreshed: Int[np.ndarray, "S B"]
    """Tokens outside the window that were refreshed, by rows of this forward or of a worker's
    (`settings["sampler"]["refresh"]`): two rows for each token, and the shadow is scored; with
    `rescore="token"` one row."""
    head_rows: Int[np.ndarray, "S B"]
    """Positions that this forward scored. A worker scores the tokens that it refreshes itself."""
    cache_length: Int[np.ndarray, "S B"]
    """Cached positions that the rows read."""
    block: Int[np.ndarray, "S B"]
    seconds: Float[np.ndarray, " S"]
    """Wall time of each forward; NaN if the compiled loop ran them all."""
    event_step: Int[np.ndarray, " X"]
    event_row: Int[np.ndarray, " X"]
    event_position: Int[np.ndarray, " X"]
    event_token: Int[np.ndarray, " X"]
    event_confidence: Float[np.ndarray, " X"]
    event_kind: Int[np.ndarray, " X"]
    prompt_lengths: Int[np.ndarray, " B"]
    tokens: Int[np.ndarray, "B L"]
    """The final canvas, padded on the right."""
    settings: dict[str, Any]
    """Sampler, model, seed, loop, versions and total wall time: plain JSON."""

    @property
    def nfe(self) -> Int[np.ndarray, " B"]:
        """Forwards that were useful to each row."""
        return ((self.live_rows + self.refreshed) > 0).sum(axis=0)

    @property
    def filled(self) -> Int[np.ndarray, " B"]:
        """Counts positions of each row that got a token, by a commit or as EOS after the end."""
        got = np.isin(self.event_kind, (Event.COMMIT, Event.FILL))
        filled = np.zeros(self.tokens.shape, bool)
        filled[self.event_row[got], self.event_position[got]] = True
        return filled.sum(axis=1)

    def count(self, kind: Event) -> Int[np.ndarray, "S B"]:
        """Counts how often something happened in each forward, by row of the batch."""
        counts = np.zeros(self.live_rows.shape, np.int32)
        chosen = self.event_kind == kind
        np.add.at(counts, (self.event_step[chosen], self.event_row[chosen]), 1)
        return counts

    def commit_steps(self) -> Int[np.ndarray, "B L"]:
        """Returns the forward that last committed each position (0-based), or -1 for none."""
        steps = np.full(self.tokens.shape, -1, np.int32)
        commits = self.event_kind == Event.COMMIT
        steps[self.event_row[commits], self.event_position[commits]] = self.event_step[commits]
        return steps


def bounds_in(
    settings: Mapping[str, Any], lengths: np.ndarray
) -> tuple[Int[np.ndarray, " B"], Int[np.ndarray, " B"]]:
    """Returns the first position of block 0 and one past the last position of each sequence."""
    sampler, model = settings["sampler"], settings["model"]
    blocks = (sampler["gen_length"], sampler["block_length"], model["block_length"])
    layout = {name: sampler[name] for name in ("block_origin", "last_block") if name in sampler}
    return sequence_bounds(lengths, *blocks, Parity(**layout), infill=settings["infill"])


def check_trace(arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> None:
    """Raises ValueError unless the arrays and settings of a file are consistent with one run."""
    sizes = require_arrays(arrays, TRACE_FIELDS)
    require(sizes["B"] > 0, "it has no batch row; allowed: 1 or more")
    for part, names in _READ.items():
        section: Any = settings.get(part)
        require(isinstance(section, dict), f"{part} is {section!r:.60}; allowed: settings")
        for name, kinds in names.items():
            value, allowed = section.get(name, ...), " or ".join(kind.__name__ for kind in kinds)
            require(type(value) in kinds, f"{part}.{name} is {value!r:.60}; allowed: {allowed}")
            least = name.endswith("_length")
            within = type(value) is not int or least <= value <= MOST_COUNT
            require(within, f"{part}.{name} is {value!r:.60}; allowed: {least:d} to {MOST_COUNT}")
    infill: Any = settings.get("infill")
    pieces: Any = settings.get("pieces", {})
    require(isinstance(infill, bool), f"infill is {infill!r:.60}; allowed: true or false")
    require(isinstance(pieces, dict), f"pieces is {pieces!r:.60}; allowed: texts by token")

    rows, live, lengths = (arrays[name] for name in ("rows", "live_rows", "prompt_lengths"))
    step, row, position = (arrays[f"event_{name}"] for name in ("step", "row", "position"))
    _, ends = bounds_in(settings, lengths)
    narrow = [
        n for n, field in TRACE_FIELDS.items() if field.kind == "i" and arrays[n].itemsize < 4
    ]
    facts: dict[str, Any] = {
        "event_step in ascending order": step[1:] >= step[:-1],
        "event_kind of known events": np.isin(arrays["event_kind"], [*Event]),
        "live_rows up to the forward's rows": live <= rows[:, None],
        "shadow_rows up to live_rows": arrays["shadow_rows"] <= live,
        "draft_rows up to live_rows": arrays["draft_rows"] <= live,
        "head_rows up to live_rows": arrays["head_rows"] <= live,
        "cache_length up to the canvas": arrays["cache_length"] <= sizes["L"],
        "block up to the canvas": arrays["block"] <= sizes["L"],
        "prompts within their canvas": lengths <= ends,
        "canvases within tokens": ends <= sizes["L"],
        "event_position within its row's canvas": position < ends[row],
        "integers of 4 bytes or more, but for event_kind": {*narrow} <= {"event_kind"},
    }
    for fact, holds in facts.items():
        require(bool(np.all(holds)), f"its arrays contradict each other; allowed: {fact}")
