"""Stores a decoder's answers to the items of a task, so that they can be graded again later.

A folder holds `settings.json`, which describes how the answers were decoded, and for each batch a
file of JSON lines and the trace. Each file is written atomically, and the first line of a batch has
the number of lines and their hash: an interrupted run resumes after its last batch, and a damaged
file is detected. The first line also has the commit and versions, because a run may be resumed
under others. Several workers can fill one folder, because each writes only files of its batches.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from llada_jax.config import require, require_counts
from llada_jax.evaluation.stored import (
    first_difference,
    parsed,
    require_object,
    stored_in_format,
    stored_object,
    stored_text,
)
from llada_jax.evaluation.task import Item
from llada_jax.io import atomic
from llada_jax.sampler.trace import Trace

FORMAT = 1
TRACE = ".trace.npz"
SETTINGS = "settings.json"
_BATCH = {
    "count": int,
    "sha256": str,
    "seconds": (int, float),
    "compiled": bool,
    "environment": (dict, type(None)),
}


class Generation(NamedTuple):
    """The answer to one item."""

    index: int  # of the item in the sequence of its seed
    item: Item  # stored, so that it can be graded even if the generator of items has changed
    text: str  # the answer, without the tokens after its end
    tokens: list[int]  # ids of the whole answer region
    length: int  # tokens of the answer, including the one that ends it
    nfe: int  # forward passes until the answer was complete


class GenerationBatch(NamedTuple):
    """Generations that were decoded together."""

    generations: list[Generation]
    seconds: float
    compiled: bool  # whether the seconds include a compilation
    environment: Mapping[str, Any] | None = None
    """Commit, versions and machine, as plain JSON; None in files that do not record it."""


@dataclass(frozen=True)
class GenerationStore:
    """The folder of one decoder on one sequence of items."""

    folder: Path
    settings: Mapping[str, Any]
    """Everything that the generations depend on, as plain JSON."""
    goes_on: bool = False  # a run is adding items, so missing ones are not an error
    is_shared: bool = False  # other processes fill the folder at the same time

    def __str__(self) -> str:
        return str(self.folder)

    @classmethod
    def load(cls, folder: Path) -> "GenerationStore":
        """Opens an existing store. Raises FileNotFoundError if there is none, and ValueError if its
        format differs or its settings cannot be read."""
        path = folder / SETTINGS
        if not path.is_file():
            raise FileNotFoundError(f"{folder} has no {SETTINGS}; allowed: a folder of generations")
        stored = stored_in_format(path, FORMAT, {"settings": dict})
        digest = _sha256([_json(stored["settings"])])
        require(
            stored.get("sha256", digest) == digest,  # older stores have no hash
            f"{path} is damaged: the hash of its settings is another; allowed: as it was written",
        )
        return cls(folder, stored["settings"])

    @classmethod
    def begin(cls, folder: Path, settings: Mapping[str, Any]) -> "GenerationStore":
        """Begins a store, or resumes the one that an interrupted run with the same settings left.
        A new store has no file before its first batch.

        Raises ValueError that names the first setting that differs from the folder's.
        """
        if (folder / SETTINGS).exists():
            existing = cls.load(folder).settings
            difference = first_difference(existing, json.loads(json.dumps(settings)))
            require(
                difference is None,
                f"{folder} holds generations with other settings: {difference}; "
                "allowed: another folder, or the same settings",
            )
        return cls(folder, settings, goes_on=True)

    def shared(self, batch_size: int) -> "GenerationStore":
        """Returns the store as several workers fill it, and writes its settings into the folder.

        Raises ValueError that names the first setting that differs from another worker's. That
        includes the batch size, since workers divide the items by batches.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        content = self._content({"items": 0, "batch_size": batch_size})
        atomic.write_text(self.folder / SETTINGS, content, only_first=True)
        store = self.begin(self.folder, self.settings)
        existing_size = self._header.get("batch_size", batch_size)
        require(
            existing_size == batch_size,
            f"{self.folder} is filled in batches of {existing_size}; allowed: "
            f"batch_size={existing_size}",
        )
        return replace(store, is_shared=True)

    def add(self, batch: GenerationBatch, trace: Trace | None = None) -> None:
        """Stores a batch and its trace, and with the first batch the settings. Those record the
        number of items, so that a file deleted later is noticed."""
        if not (self.folder / SETTINGS).exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            atomic.write_text(self.folder / SETTINGS, self._content({"items": 0}))
        lines = [_json({**g._asdict(), "item": g.item._asdict()}) for g in batch.generations]
        about = {key: getattr(batch, key) for key in GenerationBatch._fields[1:]}
        header = {"count": len(lines), "sha256": _sha256(lines), **about}
        path = self.folder / _file_of(batch.generations[0].index)
        if trace is not None:
            trace.save(path.with_suffix(TRACE))
        atomic.write_text(path, "".join([_json(header), *lines]))
        if not self.is_shared:
            self.reach(batch.generations[-1].index + 1)

    def reach(self, items: int) -> None:
        """Records that the store has this number of items, unless it has more."""
        if (header := self._header)["items"] < items:
            atomic.write_text(self.folder / SETTINGS, self._content(header | {"items": items}))

    def _content(self, header: Mapping[str, Any]) -> str:
        settings = {"sha256": _sha256([_json(self.settings)]), "settings": self.settings}
        return _json({"format": FORMAT, **header, **settings}, indent=2)

    @property
    def _header(self) -> dict[str, Any]:
        """Returns the content of the settings file. Its `items` is the highest stored index plus
        one, or 0 in new stores and in older ones, which do not record it."""
        path = self.folder / SETTINGS
        stored = stored_object(path, {}) if path.exists() else {}
        return require_object({"items": 0} | stored, path, {"items": int})

    def batches(self) -> list[GenerationBatch]:
        """Reads all batches, in the order of their items. Raises ValueError that names a file that
        is cut short, changed or duplicated or, in a loaded store, deleted."""
        return [batch for _, batch in self._files()]

    def _files(self) -> list[tuple[Path, GenerationBatch]]:
        files = [(path, _read(path)) for path in sorted(self.folder.glob("*.jsonl"))]
        holder: dict[int, Path] = {}
        for path, batch in files:
            for index in (generation.index for generation in batch.generations):
                other = holder.setdefault(index, path)
                require(
                    other == path,
                    f"{other} and {path} both have item {index}; allowed: the one that was written",
                )
        count = max([self._header["items"], *(i + 1 for i in holder)])
        missing = next((i for i in range(count) if i not in holder), None)
        require(
            self.goes_on or missing is None,
            f"{self.folder} lacks {_file_of(missing or 0)}; allowed: all files that were written "
            "(the run that wrote them decodes its items again where it goes on)",
        )
        return files

    def traces(self) -> Iterator[tuple[GenerationBatch, Trace]]:
        """Reads the batches with a stored trace, in the order of their items; generation i of a
        batch is row i of its trace. Raises ValueError as `batches`, and for a trace of another
        version.
        """
        for path, batch in self._files():
            if path.with_suffix(TRACE).exists():
                yield batch, Trace.load(path.with_suffix(TRACE))

    def generations(self) -> list[Generation]:
        """Reads all generations, in the order of their items."""
        return [generation for batch in self.batches() for generation in batch.generations]


@dataclass(frozen=True)
class GenerationMemory:
    """The interface of `GenerationStore`, in memory."""

    settings: Mapping[str, Any]
    _added: list[tuple[GenerationBatch, Trace | None]] = field(default_factory=list, repr=False)

    def __str__(self) -> str:
        return "memory"

    def add(self, batch: GenerationBatch, trace: Trace | None = None) -> None:
        self._added.append((batch, trace))

    def reach(self, items: int) -> None:
        """Does nothing, because no file can be deleted."""

    def batches(self) -> list[GenerationBatch]:
        return [batch for batch, _ in self._added]

    def generations(self) -> list[Generation]:
        return [generation for batch, _ in self._added for generation in batch.generations]

    def traces(self) -> Iterator[tuple[GenerationBatch, Trace]]:
        return ((batch, trace) for batch, trace in self._added if trace is not None)


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One of `count` processes that fill a store together; it takes every `count`-th batch,
    beginning with batch `rank`. Raises ValueError for a rank outside of the count."""

    rank: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        require_counts(self, "count")
        require(
            0 <= self.rank < self.count,
            f"worker.rank is {self.rank} of worker.count={self.count}; allowed: 0 to "
            f"{self.count - 1}",
        )

    @property
    def is_alone(self) -> bool:
        """Whether there are no other workers, so that this one may grade the answers."""
        return self.count == 1

    def takes(self, batch: int) -> bool:
        """Tells whether the batch with this index is this worker's."""
        return batch % self.count == self.rank

    def after(self, batches: int) -> "Worker":
        """Returns the worker for a store that is filled after another one of `batches` batches. The
        ranks are rotated, so that the first batch of each store is not always rank 0's."""
        return Worker(rank=(self.rank - batches) % self.count, count=self.count)


ALONE = Worker()


def _file_of(first_item: int) -> str:
    return f"{first_item:06d}.jsonl"


def _read(path: Path) -> GenerationBatch:
    # Not `str.splitlines`: JSON strings may contain other line separators than \n (U+2028).
    first, *lines = list(StringIO(stored_text(path))) or [""]
    header = require_object(parsed(first, path), path, {})
    header = require_object({"environment": None} | header, path, _BATCH)
    is_intact = len(lines) == header["count"] and _sha256(lines) == header["sha256"]
    require(
        is_intact,
        f"{path} is damaged: {len(lines)} of {header['count']} lines, or their hash is another; "
        "allowed: the file as it was written, or none (its items are then decoded again)",
    )
    generations = []
    for line in map(json.loads, lines):
        item = line["item"] | {"choices": tuple(line["item"]["choices"])}
        generations.append(Generation(**line | {"item": Item(**item)}))
    return GenerationBatch(generations, *(header[key] for key in GenerationBatch._fields[1:]))


def _sha256(lines: Sequence[str]) -> str:
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _json(content: Any, indent: int | None = None) -> str:
    return json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False) + "\n"
