"""The manifest of an exported folder: one JSON file with all that a host needs to run the model.

While an export is unfinished, its folder has a temporary name and `progress.json`, a record of the
finished files and of the settings that they were made with, so that it can be resumed.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from llada_jax.backend.exported.contents import Export
from llada_jax.config import ExportConfig, ModelConfig, read_object, require
from llada_jax.config_files import checked_dataclass
from llada_jax.io import atomic
from llada_jax.io.content import file_hash
from llada_jax.io.inside import inside

MANIFEST = "manifest.json"
FORMAT = 2
ROTATION = "rotation.bin"
"""Cosines and sines of RoPE's angles, float32 [2, positions, rotary_dims / 2]."""


def max_positions(settings: ExportConfig) -> int:
    """Returns the length of the longest canvas that an export can decode."""
    return max(settings.rows[-1], settings.caches[-1])


def context_files(context: Mapping[str, Any]) -> list[str]:
    """Returns the files of an entry of `contexts`: for LiteRT, for QNN, and for ONNX Runtime."""
    return [context["compiled"], context["file"], *(graph["onnx"] for graph in context["graphs"])]


@dataclass(frozen=True)
class File:
    """A file of the folder, with its hash."""

    name: str
    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "File":
        return cls(path.name, path.stat().st_size, file_hash(path))

    def check(self, folder: Path) -> Path:
        """Returns the file's path. Raises FileNotFoundError or ValueError if it has changed."""
        path = inside(folder, self.name)
        if not path.is_file():
            raise FileNotFoundError(f"{folder} lacks {self.name}, which its {MANIFEST} names")
        size = path.stat().st_size
        require(
            size == self.bytes,
            f"{path} is cut short or changed: it has {size} bytes, {MANIFEST} says {self.bytes}",
        )
        require(
            File.of(path).sha256 == self.sha256,
            f"{path} is not the file that {MANIFEST} describes: its SHA-256 differs",
        )
        return path


@dataclass(frozen=True)
class BodyShard:
    """A file with layers `start` to `stop` (exclusive)."""

    file: File
    start: int
    stop: int


@dataclass(frozen=True)
class Manifest:
    """An exported model."""

    model: ModelConfig
    settings: ExportConfig
    source: str
    """Name of the weights."""
    shards: tuple[BodyShard, ...]
    head: File
    head_chunk: int
    """Vocabulary entries in a chunk of the head."""
    embedding: File
    embedding_dtype: Literal["float32", "bfloat16", "float16"]
    """Dtype of the embedding file, [V, D]."""
    others: tuple[File, ...] = ()
    """Tokenizer, instructions, and all other files of the folder."""
    contexts: tuple[dict, ...] = ()
    """Binaries for phones' NPUs: see `llada_jax.backend.qnn`."""
    checks: tuple[dict, ...] = ()
    """Error of each signature against JAX (relative root mean square), measured at export."""
    versions: dict = field(default_factory=dict)
    """Versions of the packages that made the files, by name."""
    contract: dict = field(default_factory=dict)
    """What a host program does in each step: see `llada_jax.api.contract`."""
    fingerprint: str | None = None
    """Hash of the weights' files: see `llada_jax.checkpoint.fingerprint`."""

    @property
    def files(self) -> tuple[File, ...]:
        bodies = tuple(shard.file for shard in self.shards)
        return (*bodies, self.head, self.embedding, *self.others)

    def save(self, folder: Path) -> None:
        """Writes `manifest.json` atomically."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=2)
        atomic.write_text(folder / MANIFEST, text + "\n")

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "Manifest":
        """Reads a folder's manifest; files are checked when they are opened.

        Raises FileNotFoundError or ValueError that name the folder and the problem.
        """
        path = Path(folder) / MANIFEST
        if not path.is_file():
            raise FileNotFoundError(f"no {MANIFEST} in {folder}")
        record = read_object(path, "is no manifest")
        version = record.pop("format", None)
        require(version == FORMAT, f"{path} has format {version}; allowed: {FORMAT}")
        try:
            return checked_dataclass(cls, record)
        except ValueError as error:
            raise ValueError(f"{path} is no manifest: {error}") from error


_RECORD = "progress.json"
_PACKAGES = ("jax", "litert-converter", "ai-edge-litert", "llada_jax")


class UnfinishedExport:
    """The unfinished folder of an export, which can be resumed after an interruption."""

    def __init__(self, target: Path, export: Export):
        """Raises ValueError if the folder was begun with other weights, settings or packages."""
        self.folder = target.with_name(f".{target.name}.partial")
        self.target = target
        self._record = self.folder / _RECORD
        self._fingerprint = export.fingerprint
        self.fingerprint = export.fingerprint()
        """Hash of the weights at the begin, from `Export`."""
        self.versions = {package: version(package) for package in _PACKAGES}
        made_with = {
            "source": export.source,
            "fingerprint": self.fingerprint,
            "model": asdict(export.model),
            "settings": asdict(export.settings),
            "versions": self.versions,
        }
        self._made_with = json.loads(json.dumps(made_with))  # tuples become lists
        self._files: dict[str, File] = {}
        self.contexts: dict[str, dict[str, Any]] = {}
        """Entries of the manifest for compiled binaries."""
        self._resume()

    def _resume(self) -> None:
        if not self._record.is_file():
            return
        record = json.loads(self._record.read_text())
        for part, ours in self._made_with.items():
            self._require_same(part, record["made_with"].get(part), ours)
        self._files = {name: File(**file) for name, file in record["files"].items()}
        self.contexts = record["contexts"]

    def _require_same(self, part: str, theirs: object, ours: object) -> None:
        require(
            theirs == ours,
            f"{self.folder} is an interrupted export with other {part}: "
            f"{_difference(theirs, ours)}; go on with the same, or remove the folder",
        )

    @property
    def bytes(self) -> int:
        """The size of all finished files."""
        return sum(file.bytes for file in self._files.values())

    def begin(self) -> None:
        """Reads the record again, since another process may have finished files, and deletes files
        that are not in it. The caller holds the target's lock."""
        self._resume()
        self.folder.mkdir(parents=True, exist_ok=True)
        compiled = [name for entry in self.contexts.values() for name in context_files(entry)]
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name not in {_RECORD, *self._files, *compiled}:
                path.unlink()
        self._save()

    def file(self, name: str, write: Callable[[Path], None]) -> File:
        """Writes a file, unless an earlier attempt has finished it."""
        known = self._files.get(name)
        path = self.folder / name
        if known is None or not path.is_file() or path.stat().st_size != known.bytes:
            write(path)
            self._files[name] = File.of(path)
            self._save()
        return self._files[name]

    def add_context(self, name: str, entry: dict[str, Any]) -> None:
        """Records a compiled binary."""
        self.contexts[name] = entry
        self._save()

    def finish(self) -> None:
        """Gives the folder its final name. Raises ValueError if the weights were replaced since the
        export began."""
        self._require_same("fingerprint", self.fingerprint, self._fingerprint())
        # Takes long. The record is deleted after it, so a process killed before can be resumed.
        atomic.sync(self.folder)
        self._record.unlink()
        atomic.rename(self.folder, self.target)

    def _save(self) -> None:
        files = {name: asdict(file) for name, file in self._files.items()}
        record = {"made_with": self._made_with, "files": files, "contexts": self.contexts}
        atomic.write_text(self._record, json.dumps(record, indent=2))


def _difference(theirs: object, ours: object) -> str:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = [key for key in ours if theirs.get(key) != ours[key]]
        return ", ".join(f"{key} was {theirs.get(key)!r}, is {ours[key]!r}" for key in keys)
    return f"was {theirs!r}, is {ours!r}"
