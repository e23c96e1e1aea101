"""What a decoding run did, as data: decode once, then time, plot and evaluate from the trace."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from types import NoneType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from llada_jax.config import require
from llada_jax.io.archive import MOST_COUNT, ArrayField, load_archive, require_arrays, save_archive
from llada_jax.sampler.canvas import bounds_of
from llada_jax.sampler.loops import Steps
from llada_jax.sampler.record import Event
from llada_jax.sampler.replay import replay
from llada_jax.view.page import Page, page_of, phone_timeline

FORMAT = 4
_FIELDS = {
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
"""The arrays of a trace, as a file must have them; `_check` says how they depend on each other."""
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
"""Settings that are read of a trace (`replay`, `phones.workload`, pages), with their types."""


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


@dataclass(frozen=True, eq=False)
class Trace:
    """S forwards of B rows, and the events of their positions.

    Positions count from each row's own start: its prompt is at 0. Event arrays are in the order of
    steps; each has the token and the confidence that its position was left with.

    Tokens, decisions and counts of a prompt are those that it has alone. Its confidences are so up
    to rounding: a forward's shape follows all prompts that share it, and XLA sums in an order that
    depends on the shape. So an evaluation that was resumed, or shared by workers, may store other
    last bits than one that ran through.
    """

    rows: Int[np.ndarray, " S"]
    """Rows that the forward ran for each batch row: its bucket."""
    live_rows: Int[np.ndarray, "S B"]
    """Rows that were no padding; the next two are among them."""
    shadow_rows: Int[np.ndarray, "S B"]
    draft_rows: Int[np.ndarray, "S B"]
    """Masked positions beyond the current block."""
    refreshed: Int[np.ndarray, "S B"]
    """Tokens outside the window that were refreshed: by rows of this forward, or of a worker's own
    (`settings["sampler"]["refresh"]`). Each by two rows, of which the shadow is scored; with
    `rescore="token"` by one."""
    head_rows: Int[np.ndarray, "S B"]
    """Positions that this forward scored. A worker scores the tokens that it refreshes itself."""
    cache_length: Int[np.ndarray, "S B"]
    """Cached positions that the rows read."""
    block: Int[np.ndarray, "S B"]
    seconds: Float[np.ndarray, " S"]
    """Wall time of each forward; NaN where the compiled loop ran them all."""
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
        """Counts positions of each row that got a token, by a commit or as EOS behind the end."""
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
        """Returns the forward that last committed each position (0-based); -1 where none did."""
        steps = np.full(self.tokens.shape, -1, np.int32)
        commits = self.event_kind == Event.COMMIT
        steps[self.event_row[commits], self.event_position[commits]] = self.event_step[commits]
        return steps

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one .npz file, whole or not at all."""
        arrays = {name: getattr(self, name) for name in _FIELDS}
        save_archive(path, arrays, self.settings, FORMAT)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Trace":
        """Reads a file that `save` wrote. Raises ValueError for anything else, and for arrays that
        do not fit each other."""
        arrays, settings = load_archive(
            path, _FIELDS, FORMAT, kind="trace", short="trace", check=_check
        )
        return cls(settings=settings, **arrays)

    def page(self, *, row: int = 0, beside: "Trace | None" = None, timed: Any = ()) -> Page:
        """Returns a page that replays one row, and beside it that of another trace.

        Args:
          timed: runs of this trace's row on phones (`lj.phone("SM8750").time(trace, shape)`), whose
            timelines the page shows.
        """
        runs = [replay(self, row) | {"phones": [phone_timeline(each) for each in timed]}]
        return page_of([*runs, *([replay(beside, row)] if beside else [])])

    def _repr_html_(self) -> str:
        """Returns the page of the first row, for notebooks."""
        return self.page()._repr_html_()

    def same_decoding(self, other: "Trace") -> bool:
        """Tells whether both did the same; wall time, settings and kept scores aside."""
        timeless = [name for name in _FIELDS if name != "seconds"]
        return all(np.array_equal(self._done(name), other._done(name)) for name in timeless)

    def _done(self, name: str) -> np.ndarray:
        """Returns an array; of events, those that changed the canvas."""
        array = getattr(self, name)
        changed = ~np.isin(self.event_kind, (Event.SCORE, Event.MARGIN))
        return array[changed] if name.startswith("event_") else array

    def divergence(self, other: "Trace") -> Divergence | None:
        """Returns where `other`, a trace of the same prompts, first did something else, and how
        close that was; None where it never did.

        On other machines or meshes floats are rounded in another order, and a decision that was
        close may fall otherwise. Raises ValueError for a trace of other prompts, or where this one
        has no margins (`trace="margins"`).
        """
        require(
            bool((self.event_kind == Event.MARGIN).any()),
            "the first trace has no margins; allowed: that of a run with trace='margins'",
        )
        lengths = [each.prompt_lengths.tolist() for each in (self, other)]
        require(
            lengths[0] == lengths[1],
            f"the traces are of prompts of {lengths[0]} and {lengths[1]} tokens; allowed: the same "
            "prompts",
        )
        columns = [f"event_{name}" for name in ("step", "row", "position", "kind", "token")]
        one, two = (
            {*zip(*(each._done(name).tolist() for name in columns), strict=True)}
            for each in (self, other)
        )
        differing = sorted(one ^ two)
        if not differing:
            return None
        step, row, position, *_ = differing[0]
        (token, sure), (others, bound) = (t._predicted(*differing[0][:3]) for t in (self, other))
        if token != others:
            margin = self._predicted(step, row, position, margin=True)[1]
        else:
            rivals = [each[2] for each in differing if each[:2] == (step, row)]
            sures = [self._predicted(step, row, at)[1] for at in rivals if at != position]
            margin = min(abs(sure - each) for each in sures or [bound])
        return Divergence(step, row, position, (token, others), margin)

    def _predicted(
        self, step: int, row: int, position: int, *, margin: bool = False
    ) -> tuple[int, float]:
        """Returns the token that a forward predicted, or left, and its confidence, or margin; -1
        for none."""
        here = (self.event_row == row) & (self.event_position == position)
        here &= (self.event_step == step) & ((self.event_kind == Event.MARGIN) == margin)
        if not here.any():
            return -1, 0.0
        return self.event_token[here].tolist()[-1], self.event_confidence[here].tolist()[-1]


def _check(arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> None:
    """Raises ValueError unless the arrays and settings of a file can be those of one run."""
    sizes = require_arrays(arrays, _FIELDS)
    require(sizes["B"] > 0, "it has no batch row; allowed: 1 or more")
    for part, names in _READ.items():
        section: Any = settings.get(part)
        require(isinstance(section, dict), f"{part} is {section!r:.60}; allowed: settings")
        for name, kinds in names.items():
            value, allowed = section.get(name, ...), " or ".join(each.__name__ for each in kinds)
            require(type(value) in kinds, f"{part}.{name} is {value!r:.60}; allowed: {allowed}")
            least = name.endswith("_length")
            within = type(value) is not int or least <= value <= MOST_COUNT
            require(within, f"{part}.{name} is {value!r:.60}; allowed: {least:d} to {MOST_COUNT}")
    infill: Any = settings.get("infill")
    pieces: Any = settings.get("pieces", {})
    require(isinstance(infill, bool), f"infill is {infill!r:.60}; allowed: true or false")
    require(isinstance(pieces, dict), f"pieces is {pieces!r:.60}; allowed: texts by token")

    rows, live, lengths = (arrays[name] for name in ("rows", "live_rows", "prompt_lengths"))
    step, row, place = (arrays[f"event_{name}"] for name in ("step", "row", "position"))
    read: list[Any] = [SimpleNamespace(**settings[part]) for part in _READ]
    _, ends = bounds_of(lengths, *read, infill=infill)
    narrow = [n for n, field in _FIELDS.items() if field.kind == "i" and arrays[n].itemsize < 4]
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
        "event_position within its row's canvas": place < ends[row],
        "integers of 4 bytes or more, but for event_kind": {*narrow} <= {"event_kind"},
    }
    for fact, holds in facts.items():
        require(bool(np.all(holds)), f"its arrays contradict each other; allowed: {fact}")


def trace_of(
    steps: Steps,
    tokens: Int[np.ndarray, "B L"],
    generated: Bool[np.ndarray, "B L"],
    prompt_lengths: Int[np.ndarray, " B"],
    settings: dict[str, Any],
) -> Trace:
    """Returns the trace of a finished run; `generated` marks final positions that hold a token."""
    records, counts = steps.records, steps.records.counts
    useful = (counts.live_rows + counts.refreshed) > 0
    if records.predicted is not None:  # what is scored of rows that are done means nothing
        records = records._replace(predicted=np.where(useful[..., None], records.predicted, -1))
    parts = [
        _events(kind, records.events & (1 << kind), records.token, records.confidence)
        for kind in Event
        if kind <= Event.FREEZE
    ]
    filled, last_step = generated & useful.any(axis=0)[:, None], useful.sum(axis=0) - 1
    filled[parts[0]["row"], parts[0]["position"]] = False  # no step committed what is left
    row, position = np.nonzero(filled)
    of_fills = (last_step[row], row, position, tokens[filled], np.zeros(row.shape))
    parts.append(_columns(Event.FILL, *of_fills))
    predicted = records.predicted
    if predicted is not None:
        other = (predicted >= 0) & (records.events == 0)
        parts.append(_events(Event.SCORE, other, predicted, records.certainty))
        if records.margin is not None:
            parts.append(_events(Event.MARGIN, predicted >= 0, predicted, records.margin))
    merged = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(merged["step"], kind="stable")
    dtypes = {"confidence": np.float32, "kind": np.int8}
    return Trace(
        rows=steps.rows,
        **counts._asdict(),
        block=records.block,
        seconds=steps.seconds,
        **{
            f"event_{name}": values[order].astype(dtypes.get(name, np.int32))
            for name, values in merged.items()
        },
        prompt_lengths=prompt_lengths,
        tokens=tokens,
        settings=settings,
    )


def _events(
    kind: Event, where: np.ndarray, tokens: np.ndarray, confidence: np.ndarray
) -> dict[str, np.ndarray]:
    at = np.nonzero(where)
    return _columns(kind, *at, tokens[at], confidence[at])


def _columns(kind: Event, *columns: np.ndarray) -> dict[str, np.ndarray]:
    names = ("step", "row", "position", "token", "confidence", "kind")
    return dict(zip(names, (*columns, np.full(columns[0].shape, kind)), strict=True))
