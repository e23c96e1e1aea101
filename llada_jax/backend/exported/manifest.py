"""What lies in an exported folder: one JSON file that says all a host must know."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from llada_jax import atomic
from llada_jax.config import ExportConfig, ModelConfig, read_object, require
from llada_jax.config_files import checked_dataclass
from llada_jax.content import file_hash
from llada_jax.inside import inside

MANIFEST = "manifest.json"
FORMAT = 1
CONTRACT = tuple(Path(__file__).with_name("contract.txt").read_text().splitlines())
"""What the host passes and does in each step."""


@dataclass(frozen=True)
class File:
    """A file of the folder."""

    name: str
    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "File":
        return cls(path.name, path.stat().st_size, file_hash(path))

    def check(self, folder: Path) -> Path:
        """Returns the file's path. Raises FileNotFoundError or ValueError where it has changed."""
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
    """Consecutive layers, from `start` up to, not including, `stop`."""

    file: File
    start: int
    stop: int


@dataclass(frozen=True)
class Manifest:
    """An exported model."""

    model: ModelConfig
    settings: ExportConfig
    source: str
    """Where the weights came from."""
    shards: tuple[BodyShard, ...]
    head: File
    head_chunk: int
    """Entries of the vocabulary in a chunk of the head."""
    embedding: File
    embedding_dtype: Literal["float32", "bfloat16", "float16"]
    """Dtype of the embedding file, [V, D]."""
    others: tuple[File, ...] = ()
    """Tokenizer, instructions, and what else lies in the folder."""
    contexts: tuple[dict, ...] = ()
    """Binaries for phones' NPUs: see `llada_jax.backend.qnn`."""
    checks: tuple[dict, ...] = ()
    """Error of each signature against JAX (relative, root mean square), as it was run here."""
    versions: dict = field(default_factory=dict)
    """Of the packages that made the files, by name."""
    contract: tuple[str, ...] = CONTRACT
    fingerprint: str | None = None
    """Names the content of the weights' files: see `llada_jax.checkpoint.fingerprint`."""

    @property
    def files(self) -> tuple[File, ...]:
        bodies = tuple(shard.file for shard in self.shards)
        return (*bodies, self.head, self.embedding, *self.others)

    def save(self, folder: Path) -> None:
        """Writes `manifest.json`, whole or not at all."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=2)
        atomic.write_text(folder / MANIFEST, text + "\n")

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "Manifest":
        """Reads a folder's manifest; files are checked when they are opened.

        Raises FileNotFoundError or ValueError that name the folder and what is wrong.
        """
        path = Path(folder) / MANIFEST
        if not path.is_file():
            raise FileNotFoundError(f"no {MANIFEST} in {folder}")
        record = read_object(path, "is no manifest")
        found = record.pop("format", None)
        require(found == FORMAT, f"{path} has format {found}; allowed: {FORMAT}")
        try:
            return checked_dataclass(cls, record)
        except ValueError as error:
            raise ValueError(f"{path} is no manifest: {error}") from error
