"""An export in the making: a folder under another name, and a record of what is finished in it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from llada_jax import atomic
from llada_jax.backend.exported.contents import Export
from llada_jax.backend.exported.manifest import File
from llada_jax.config import require

_RECORD = "progress.json"
_PACKAGES = ("jax", "litert-converter", "ai-edge-litert", "llada_jax")


def require_new(folder: Path) -> None:
    """Raises ValueError where the folder exists."""
    require(not folder.exists(), f"{folder} exists already; allowed: a new folder")


class UnfinishedExport:
    """The unfinished folder, which an export that is started again goes on with."""

    def __init__(self, target: Path, export: Export):
        """Raises ValueError where the folder was begun with other weights, settings or packages."""
        self.folder = target.with_name(f".{target.name}.partial")
        self.target = target
        self._record = self.folder / _RECORD
        self._fingerprint = export.fingerprint
        self.fingerprint = export.fingerprint()
        """Names the weights that it is made of, as `Export` has it."""
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
        """Entries of the manifest for the binaries that are compiled."""
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
        """Counts the bytes of the files that are finished."""
        return sum(file.bytes for file in self._files.values())

    def begin(self) -> None:
        """Goes on with what another process has finished since, and takes away what is not
        recorded. The target's lock is held."""
        require_new(self.target)
        self._resume()
        self.folder.mkdir(parents=True, exist_ok=True)
        twins = [entry["compiled"] for entry in self.contexts.values()]
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name not in {_RECORD, *self._files, *self.contexts, *twins}:
                path.unlink()
        self._save()

    def file(self, name: str, write: Callable[[Path], None]) -> File:
        """Writes a file, unless it is there from an earlier attempt."""
        known = self._files.get(name)
        path = self.folder / name
        if known is None or not path.is_file() or path.stat().st_size != known.bytes:
            write(path)
            self._files[name] = File.of(path)
            self._save()
        return self._files[name]

    def add_context(self, name: str, entry: dict[str, Any]) -> None:
        """Records a binary that is compiled."""
        self.contexts[name] = entry
        self._save()

    def finish(self) -> None:
        """Raises ValueError where the weights were replaced since the export began."""
        self._require_same("fingerprint", self.fingerprint, self._fingerprint())
        atomic.sync(self.folder)  # which takes long: who is killed behind it writes all again
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
