"""What a decoding run did, as data: decode once, then time, plot and evaluate from the trace."""

import json
import os
from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Bool, Float, Int

from llada_jax.config import require
from llada_jax.sampler.loops import Steps

FORMAT = 1


class Event(IntEnum):
    """What happened to a position."""

    COMMIT = 0
    FILL = 1
    """Became EOS without a prediction, because the row had stopped."""


@dataclass(frozen=True, eq=False)
class Trace:
    """S forwards of B rows, and the events of their positions.

    Positions count from each row's own start: its prompt is at 0. Event arrays are in the order in
    which things happened.
    """

    rows: Int[np.ndarray, " S"]
    """Rows that the forward ran for each batch row: its bucket."""
    live_rows: Int[np.ndarray, "S B"]
    shadow_rows: Int[np.ndarray, "S B"]
    head_rows: Int[np.ndarray, "S B"]
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
        return (self.live_rows > 0).sum(axis=0)

    def commit_steps(self) -> Int[np.ndarray, "B L"]:
        """The forward that committed each position (0-based); -1 where none did."""
        steps = np.full(self.tokens.shape, -1, np.int32)
        commits = self.event_kind == Event.COMMIT
        steps[self.event_row[commits], self.event_position[commits]] = self.event_step[commits]
        return steps

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one .npz file, whole or not at all."""
        path = Path(path)
        arrays = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "settings"}
        settings = json.dumps({"format": FORMAT, **self.settings}, sort_keys=True)
        temporary = path.with_name(f".{path.name}.partial")
        with temporary.open("wb") as file:
            np.savez_compressed(file, settings=np.array(settings), **arrays)
        temporary.replace(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Trace":
        """Read a file that `save` wrote. Raises ValueError for anything else."""
        with Path(path).open("rb") as file:
            try:
                archive = np.load(file, allow_pickle=False)
                arrays = {f.name: archive[f.name] for f in fields(cls)}
            except (EOFError, KeyError, IndexError, ValueError, BadZipFile) as error:
                raise ValueError(f"{path} is no trace of llada_jax: {error}") from error
        settings = json.loads(str(arrays.pop("settings")))
        found = settings.pop("format", None)
        require(found == FORMAT, f"{path} has trace format {found!r}; allowed: {FORMAT}")
        return cls(settings=settings, **arrays)

    def same_decoding(self, other: "Trace") -> bool:
        """Whether both did the same, wall time and settings aside."""
        timeless = [f.name for f in fields(self) if f.name not in ("seconds", "settings")]
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in timeless)


def trace_of(
    steps: Steps,
    tokens: Int[np.ndarray, "B L"],
    generated: Bool[np.ndarray, "B L"],
    prompt_lengths: Int[np.ndarray, " B"],
    settings: dict[str, Any],
) -> Trace:
    """Assemble the trace of a finished run; `generated` marks final positions that hold a token."""
    records = steps.records
    step, row, candidate = np.nonzero(records.committed)
    position = records.first_candidate[step, row] + candidate
    events = {
        "step": step,
        "row": row,
        "position": position,
        "token": records.token[step, row, candidate],
        "confidence": records.confidence[step, row, candidate],
        "kind": np.full(step.shape, Event.COMMIT),
    }
    fill_row, fill_position = _filled(generated, row, position)
    last_step = (records.live_rows > 0).sum(axis=0) - 1
    fills = {
        "step": last_step[fill_row],
        "row": fill_row,
        "position": fill_position,
        "token": tokens[fill_row, fill_position],
        "confidence": np.zeros(fill_row.shape),
        "kind": np.full(fill_row.shape, Event.FILL),
    }
    merged = {name: np.concatenate([events[name], fills[name]]) for name in events}
    order = np.argsort(merged["step"], kind="stable")
    dtypes = {"confidence": np.float32, "kind": np.int8}
    return Trace(
        rows=steps.rows,
        live_rows=records.live_rows,
        shadow_rows=np.zeros_like(records.live_rows),
        head_rows=records.head_rows,
        cache_length=records.cache_length,
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


def _filled(
    generated: Bool[np.ndarray, "B L"], row: np.ndarray, position: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    committed = np.zeros_like(generated)
    committed[row, position] = True
    rows, positions = np.nonzero(generated & ~committed)
    return rows, positions
