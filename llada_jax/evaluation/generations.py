"""What a decoder generated for the items of a task, on disk, so that it can be judged again.

A folder holds `settings.json`, which says what was decoded how, and for each batch one file of JSON
lines and the trace. Each file appears whole or not at all, and one of lines says how many it has
and what their hash is: so an interrupted run goes on where it stopped, and a damaged file is
noticed. It also says which commit and versions decoded it, since a run may go on under others.
Workers fill a folder together: each writes files of its own, and none the others'.
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
    """What was generated for one item."""

    index: int  # the item's place in the sequence of its seed
    item: Item  # as it was asked, so that it can be judged even where the generator has changed
    text: str  # the answer, without what follows the token that ends it
    tokens: list[int]  # ids of the whole answer region
    length: int  # tokens of the answer, the one that ends it included
    nfe: int  # forwards until the answer was complete


class GenerationBatch(NamedTuple):
    """Generations that were decoded together."""

    generations: list[Generation]
    seconds: float
    compiled: bool  # whether these seconds have a compilation in them
    environment: Mapping[str, Any] | None = None
    """Commit, versions and machine, as plain JSON; None in files of versions that did not say."""


@dataclass(frozen=True)
class GenerationStore:
    """The folder of one decoder on one sequence of items."""

    folder: Path
    settings: Mapping[str, Any]
    """Everything that the generations depend on, as plain JSON."""
    goes_on: bool = False  # items may lack, since they are then decoded
    is_shared: bool = False  # other processes fill the folder as well

    def __str__(self) -> str:
        return str(self.folder)

    @classmethod
    def load(cls, folder: Path) -> "GenerationStore":
        """Opens an existing store. Raises FileNotFoundError where there is none, and ValueError
        where it is of another format or its settings cannot be read."""
        path = folder / SETTINGS
        if not path.is_file():
            raise FileNotFoundError(f"{folder} has no {SETTINGS}; allowed: a folder of generations")
        stored = stored_in_format(path, FORMAT, {"settings": dict})
        digest = _sha256([_json(stored["settings"])])
        require(
            stored.get("sha256", digest) == digest,  # versions before did not say it
            f"{path} is damaged: the hash of its settings is another; allowed: as it was written",
        )
        return cls(folder, stored["settings"])

    @classmethod
    def begin(cls, folder: Path, settings: Mapping[str, Any]) -> "GenerationStore":
        """Begins a store, or goes on with the one of the same settings that an interrupted run
        left. A new one leaves no file before its first batch.

        Raises ValueError that names the first setting which differs from the folder's.
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
        """Returns the store as several workers fill it, with its settings in the folder.

        Raises ValueError that names the first setting which another worker has otherwise; the size
        of batches, which nothing else depends on, is one of them here.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        content = self._content({"items": 0, "batch_size": batch_size})
        atomic.write_text(self.folder / SETTINGS, content, only_first=True)
        store = self.begin(self.folder, self.settings)
        found = self._told.get("batch_size", batch_size)
        require(
            found == batch_size,
            f"{self.folder} is filled in batches of {found}; allowed: batch_size={found}",
        )
        return replace(store, is_shared=True)

    def add(self, batch: GenerationBatch, trace: Trace | None = None) -> None:
        """Stores a batch, and what decoding it did; the first one also the settings. They say how
        far the items go, so that a file which is deleted later is missed."""
        if not (self.folder / SETTINGS).exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            atomic.write_text(self.folder / SETTINGS, self._content({"items": 0}))
        lines = [_json({**g._asdict(), "item": g.item._asdict()}) for g in batch.generations]
        told = {key: getattr(batch, key) for key in GenerationBatch._fields[1:]}
        header = {"count": len(lines), "sha256": _sha256(lines), **told}
        path = self.folder / _file_of(batch.generations[0].index)
        if trace is not None:
            trace.save(path.with_suffix(TRACE))
        atomic.write_text(path, "".join([_json(header), *lines]))
        if not self.is_shared:
            self.reach(batch.generations[-1].index + 1)

    def reach(self, items: int) -> None:
        """Says how far the items go, unless they are known to go further."""
        if (told := self._told)["items"] < items:
            atomic.write_text(self.folder / SETTINGS, self._content(told | {"items": items}))

    def _content(self, told: Mapping[str, Any]) -> str:
        own = {"sha256": _sha256([_json(self.settings)]), "settings": self.settings}
        return _json({"format": FORMAT, **told, **own}, indent=2)

    @property
    def _told(self) -> dict[str, Any]:
        """Returns what the folder says, `items` among it: one more than the last one that was ever
        stored; 0 in stores that did not say so, and in new ones."""
        path = self.folder / SETTINGS
        stored = stored_object(path, {}) if path.exists() else {}
        return require_object({"items": 0} | stored, path, {"items": int})

    def batches(self) -> list[GenerationBatch]:
        """Reads all batches, in the order of their items. Raises ValueError that names a file
        which is cut short, was changed or copied, or, in a store that was loaded, was deleted."""
        return [batch for _, batch in self._files()]

    def _files(self) -> list[tuple[Path, GenerationBatch]]:
        found = [(path, _read(path)) for path in sorted(self.folder.glob("*.jsonl"))]
        holder: dict[int, Path] = {}
        for path, batch in found:
            for index in (each.index for each in batch.generations):
                other = holder.setdefault(index, path)
                require(
                    other == path,
                    f"{other} and {path} both have item {index}; allowed: the one that was written",
                )
        count = max([self._told["items"], *(i + 1 for i in holder)])
        lacking = next((i for i in range(count) if i not in holder), None)
        require(
            self.goes_on or lacking is None,
            f"{self.folder} lacks {_file_of(lacking or 0)}; allowed: all files that were written "
            "(the run that wrote them decodes its items again where it goes on)",
        )
        return found

    def traces(self) -> Iterator[tuple[GenerationBatch, Trace]]:
        """Reads the batches whose trace was stored, in the order of their items; the batch row of a
        generation is its place. Raises ValueError as `batches`, and for no trace of this version.
        """
        for path, batch in self._files():
            if path.with_suffix(TRACE).exists():
                yield batch, Trace.load(path.with_suffix(TRACE))

    def generations(self) -> list[Generation]:
        """Reads all generations, in the order of their items."""
        return [generation for batch in self.batches() for generation in batch.generations]


@dataclass(frozen=True)
class GenerationMemory:
    """As a `GenerationStore`, in memory alone."""

    settings: Mapping[str, Any]
    _added: list[tuple[GenerationBatch, Trace | None]] = field(default_factory=list, repr=False)

    def __str__(self) -> str:
        return "memory"

    def add(self, batch: GenerationBatch, trace: Trace | None = None) -> None:
        self._added.append((batch, trace))

    def reach(self, items: int) -> None:
        """Does nothing: no file can be deleted."""

    def batches(self) -> list[GenerationBatch]:
        return [batch for batch, _ in self._added]

    def traces(self) -> Iterator[tuple[GenerationBatch, Trace]]:
        return ((batch, trace) for batch, trace in self._added if trace is not None)


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One of `count` processes that fill a store together: each takes every `count`-th batch from
    its `rank` on.

    Raises ValueError for a rank outside of the count.
    """

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
        """Tells whether there are no others, so that it may judge what it decoded."""
        return self.count == 1

    def takes(self, batch: int) -> bool:
        """Tells whether a batch is its own, by its place."""
        return batch % self.count == self.rank

    def after(self, batches: int) -> "Worker":
        """Returns the worker as it takes the batches that follow on so many others, so that the
        first batch of each store is not always that of the first rank."""
        return Worker(rank=(self.rank - batches) % self.count, count=self.count)


ALONE = Worker()


def _file_of(first_item: int) -> str:
    return f"{first_item:06d}.jsonl"


def _read(path: Path) -> GenerationBatch:
    # Of the ends of `str.splitlines`, a string in JSON may hold all but the line feed (U+2028).
    first, *lines = list(StringIO(stored_text(path))) or [""]
    told = require_object(parsed(first, path), path, {})
    header = require_object({"environment": None} | told, path, _BATCH)
    whole = len(lines) == header["count"] and _sha256(lines) == header["sha256"]
    require(
        whole,
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
