"""Runs an exported folder as a program: on this machine's CPU, or on a phone's emulated NPU.

Opening a folder checks the manifest, the hashes of all files and the available memory, and packs
the weights for this CPU on first use. After that a `Session` can drive the program like one that
was compiled in memory, with the buckets that were chosen at export.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import ml_dtypes  # noqa: F401  (bfloat16 by name)
import numpy as np

from llada_jax.backend.canvases import OutputBuffers, pack_sizes
from llada_jax.backend.exported.calibration_export import emulated_name
from llada_jax.backend.exported.contents import buckets
from llada_jax.backend.exported.manifest import MANIFEST, File, Manifest
from llada_jax.backend.litert.first_opening import pack_in_child
from llada_jax.backend.litert.install import litert_runtime
from llada_jax.backend.litert.runtime import LiteRT
from llada_jax.backend.protocol import Bucket, Executable
from llada_jax.backend.qnn.context import read_context, require_qnn
from llada_jax.backend.qnn.emulated_npu import Emulator
from llada_jax.backend.resources import require_disk, require_memory, this_cpu
from llada_jax.backend.session import Shard
from llada_jax.backend.steps import head_chunks
from llada_jax.config import require, require_counts
from llada_jax.io.inside import inside


class ExportedProgram:
    """A `Program` from a folder that `export` wrote, run by LiteRT.

    LiteRT stores the weights in the order of this CPU's kernels in the subfolder `packed`, about as
    many bytes as the weights. The first run does so in a separate process, which a damaged file may
    crash. Another CPU or version of LiteRT has its own files; all of them may be deleted.
    """

    def __init__(self, folder: Path):
        """Raises FileNotFoundError or ValueError if a file does not match the manifest, or the
        weights do not fit into memory or, packed, on the disk."""
        manifest = Manifest.load(folder)
        self.config = manifest.model
        _require_consistent(manifest, folder)
        self.largest_head = manifest.settings.rows[-1]
        self.head_chunks = head_chunks(self.config, manifest.head_chunk)
        self._folder, self.output_buffers = folder, OutputBuffers()
        self._settings = manifest.settings
        weights = [shard.file for shard in manifest.shards] + [manifest.head]
        require_memory(sum(file.bytes for file in weights), f"running {folder}")
        paths = {file.name: file.check(folder) for file in manifest.files}
        self.embedding: np.ndarray = np.memmap(
            paths[manifest.embedding.name],
            dtype=np.dtype(manifest.embedding_dtype),
            mode="r",
            shape=(self.config.vocab_size, self.config.width),
        )
        # LiteRT identifies packed weights by name only, so the file's name has a hash of them.
        packed = {
            paths[file.name]: inside(folder, f"packed/{file.name}.{_packing(file)}.xnnpack")
            for file in weights
        }
        new = {path: cache for path, cache in packed.items() if not cache.exists()}
        if new:
            size = sum(path.stat().st_size for path in new)
            require_disk(folder, size, "packing the weights for this CPU")
            (folder / "packed").mkdir(exist_ok=True)
            pack_in_child(new)
        runtime = LiteRT()
        *shards, self._head = (runtime.open(path, cache) for path, cache in packed.items())
        layers = [range(shard.start, shard.stop) for shard in manifest.shards]
        self._shards = list(zip(layers, shards, strict=True))
        names = [bucket.name for bucket in buckets(self._settings)]
        missing = [name for name in names for steps in shards if name not in steps]
        missing += {f"rows{rows}" for rows in self._settings.rows} - self._head.keys()
        require(not missing, f"{folder} has no graph {missing[:1]}, which {MANIFEST} requires")

    def sizes_for(self, rows: int) -> tuple[int, Sequence[int]]:
        bucket = next((size for size in self._settings.rows if size >= rows), rows)
        return bucket, pack_sizes(self._settings.canvases, bucket, self.largest_head)

    def body(self, rows: int, cache: int, canvases: int = 1) -> tuple[Bucket, Sequence[Shard]]:
        candidates = (b for b in buckets(self._settings) if b.canvases == canvases)
        bucket = next((b for b in candidates if b.rows >= rows and b.cache >= cache), None)
        if bucket is None:
            raise ValueError(
                f"a forward of {rows} rows against {cache} cached positions is beyond the buckets "
                f"of {self._folder}; allowed: up to {max(self._settings.rows)} rows (of "
                f"{list(self._settings.rows)}) and {max(self._settings.caches)} positions (of "
                f"{list(self._settings.caches)})"
            )
        return bucket, [Shard(layers, steps[bucket.name]) for layers, steps in self._shards]

    def head(self, rows: int) -> tuple[int, Mapping[str, Executable]]:
        return next(size for size in self._settings.rows if size >= rows), self._head


def _packing(file: File) -> str:
    """Hashes the inputs of packing: the weights, the CPU's instruction set, LiteRT's version."""
    parts = file.sha256, this_cpu(), litert_runtime().__version__
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


def _require_consistent(manifest: Manifest, folder: Path) -> None:
    """Raises ValueError unless the files have the sizes and layers of the model."""
    config, dtype = manifest.model, manifest.embedding_dtype
    size = config.vocab_size * config.width * np.dtype(dtype).itemsize
    require(
        manifest.embedding.bytes == size,
        f"{folder / manifest.embedding.name} has {manifest.embedding.bytes} bytes; allowed: "
        f"{size}, for {config.vocab_size} by {config.width} numbers in {dtype}",
    )
    starts = [shard.start for shard in manifest.shards]
    stops = [shard.stop for shard in manifest.shards]
    require(
        [*starts, config.n_layers] == [0, *stops] and all(map(int.__lt__, starts, stops)),
        f"shards of {folder / MANIFEST} have layers from {starts} to {stops}; allowed: each of the "
        f"{config.n_layers} layers once, in order",
    )
    require_counts(manifest, "head_chunk")


class EmulatedExport(ExportedProgram):
    """A `Program` from a calibration export: embedding and head on the CPU, layers on the emulated
    NPU of the first phone of the export."""

    def __init__(self, folder: Path) -> None:
        """Raises the errors of `ExportedProgram`, and ValueError for a folder without buckets for
        the emulator."""
        manifest = Manifest.load(folder)
        require_qnn()
        require(
            manifest.settings.phones.calibration and bool(manifest.contexts),
            f"{folder} has no graphs that the emulator runs; allowed: an export with "
            "phones.calibration=true and phones.socs",
        )
        super().__init__(folder)
        soc = manifest.contexts[0]["soc"]
        contexts = [context for context in manifest.contexts if context["soc"] == soc]
        self._layers = [range(context["start"], context["stop"]) for context in contexts]
        self._emulator = cache(
            lambda *bucket: Emulator(read_context(folder / emulated_name(soc, *bucket)))
        )

    def body(self, rows: int, cache: int, canvases: int = 1) -> tuple[Bucket, Sequence[Shard]]:
        bucket, _ = super().body(rows, cache, canvases)
        shards = [Shard(layers, self._emulator(i, bucket)) for i, layers in enumerate(self._layers)]
        return bucket, shards
