"""Compiled models: one in memory, compiled as its runs need it, and one from an exported folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import ml_dtypes  # noqa: F401  (bfloat16 by name)
import numpy as np
from jaxtyping import Float, Int

from llada_jax.backend.exported.manifest import File, Manifest
from llada_jax.backend.exported.writer import buckets
from llada_jax.backend.litert.runtime import LiteRT
from llada_jax.backend.protocol import Backend, Bucket, Executable
from llada_jax.backend.resources import require_disk, require_memory
from llada_jax.backend.session import Shard
from llada_jax.backend.steps import body_step, head_chunks, head_steps
from llada_jax.backend.weights import InMemory
from llada_jax.config import ModelConfig
from llada_jax.model.params import ModelParams

ROW_BUCKETS = (1, 4, 8, 16, 32, 64, 96, 128)
_MULTIPLE = 32


class CompiledOnDemand:
    """A `Program` of one shard. Each bucket is a file of its own: for models that are small."""

    largest_head = ROW_BUCKETS[-1]

    def __init__(
        self,
        config: ModelConfig,
        params: ModelParams,
        backend: Backend,
        head: Backend | None = None,
        row_buckets: Sequence[int] = ROW_BUCKETS,
    ):
        """`head`: the backend of the head, where it is another one. Rows beyond the buckets are
        rounded up to multiples of 32."""
        self.config = config
        self.head_chunks = head_chunks(config)
        self._backend, self._head_backend = backend, head or backend
        self._row_buckets = row_buckets
        self._embedding = np.asarray(params.embedding)
        self._weights = InMemory(params)
        self._bodies: dict[Bucket, list[Shard]] = {}
        self._heads: dict[int, Mapping[str, Executable]] = {}

    def embed(self, tokens: Int[np.ndarray, " r"]) -> Float[np.ndarray, "r D"]:
        return self._embedding[tokens].astype(np.float32)

    def body(self, rows: int, cache: int) -> tuple[Bucket, Sequence[Shard]]:
        bucket = Bucket(bucket_size(rows, self._row_buckets), bucket_size(cache, ()))
        if bucket not in self._bodies:
            layers = range(self.config.n_layers)
            step = body_step(self.config, layers, bucket)
            executable = self._backend.compile([step], self._weights)[step.name]
            self._bodies[bucket] = [Shard(layers, executable)]
        return bucket, self._bodies[bucket]

    def head(self, rows: int) -> tuple[int, Mapping[str, Executable]]:
        rounded = bucket_size(rows, ROW_BUCKETS)
        if rounded not in self._heads:
            steps = head_steps(self.config, [rounded])
            self._heads[rounded] = self._head_backend.compile(steps, self._weights)
        return rounded, self._heads[rounded]


def _packed_folder(folder: Path, weights: Sequence[File]) -> Path:
    """The folder of the packed weights, with room for those that are not there yet."""
    missing = [file for file in weights if not (folder / _packed_name(file)).exists()]
    require_disk(folder, sum(file.bytes for file in missing), "packing the weights for this CPU")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _packed_name(file: File) -> str:
    # LiteRT takes a packed file by the names of its weights, whatever their numbers were.
    return f"{file.name}.{file.sha256[:16]}.xnnpack"


def bucket_size(count: int, sizes: Sequence[int]) -> int:
    """The smallest of the sizes that holds the count; beyond them, a multiple of 32."""
    larger = -(-count // _MULTIPLE) * _MULTIPLE
    return next((size for size in sizes if size >= count), larger)


class Exported:
    """A `Program` from a folder that `export` wrote, run by LiteRT.

    `packed` is the folder where LiteRT keeps the weights in the order of this CPU's kernels
    (default: `packed` in the exported one); the first run writes as many bytes there as the weights
    have.
    """

    def __init__(self, folder: Path, threads: int | None = None, packed: Path | None = None):
        """Raises FileNotFoundError or ValueError where a file is not what the manifest says, or the
        weights do not fit into memory."""
        manifest = Manifest.load(folder)
        self.config = manifest.model
        self.largest_head = manifest.settings.rows[-1]
        self.head_chunks = head_chunks(self.config, manifest.head_chunk)
        self._folder = folder
        self._settings = manifest.settings
        self._buckets = buckets(manifest.settings)
        weights = [shard.file for shard in manifest.shards] + [manifest.head]
        require_memory(sum(file.bytes for file in weights), f"running {folder}")
        for file in manifest.files:
            file.check(folder)
        self._embedding = np.memmap(
            folder / manifest.embedding.name,
            dtype=np.dtype(manifest.embedding_dtype),
            mode="r",
            shape=(self.config.vocab_size, self.config.width),
        )
        runtime = LiteRT(threads=threads)
        packed = _packed_folder(packed or folder / "packed", weights)
        self._shards = [
            (
                range(shard.start, shard.stop),
                runtime.open(folder / shard.file.name, packed / _packed_name(shard.file)),
            )
            for shard in manifest.shards
        ]
        self._head = runtime.open(folder / manifest.head.name, packed / _packed_name(manifest.head))

    def embed(self, tokens: Int[np.ndarray, " r"]) -> Float[np.ndarray, "r D"]:
        return self._embedding[tokens].astype(np.float32)

    def body(self, rows: int, cache: int) -> tuple[Bucket, Sequence[Shard]]:
        bucket = next((b for b in self._buckets if b.rows >= rows and b.cache >= cache), None)
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
