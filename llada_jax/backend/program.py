"""Programs for models in memory: one compiles shapes on demand, the other records inputs."""

from collections.abc import Mapping, Sequence

import numpy as np

from llada_jax.backend.canvases import OutputBuffers, pack_sizes
from llada_jax.backend.protocol import Backend, Bucket, Executable, Inputs
from llada_jax.backend.session import Program, Shard
from llada_jax.backend.steps import body_step, head_chunks, head_steps
from llada_jax.backend.weights import InMemory
from llada_jax.config import ModelConfig
from llada_jax.model.params import ModelParams

ROW_BUCKETS = (1, 4, 8, 16, 32, 64, 96, 128)
CANVASES = (1, 2, 4)
KEPT_LENGTHS = 2
"""Numbers of cached positions whose programs are kept: each program has buffers of its own, and if
the backend does not share them (`qnn`) a copy of the weights."""


class OnDemandProgram:
    """A `Program` of one shard that compiles each bucket when it is first needed, into a file of
    its own, and keeps those of the last canvas lengths. For small models."""

    largest_head = ROW_BUCKETS[-1]

    def __init__(
        self,
        config: ModelConfig,
        params: ModelParams,
        backend: Backend,
        head: Backend | None = None,
        row_buckets: Sequence[int] = ROW_BUCKETS,
        canvases: Sequence[int] = CANVASES,
        taps: Sequence[int] = (),
    ):
        """`head` is another backend for the head. Larger numbers of rows than `row_buckets` are
        rounded up to multiples of 32, with one canvas per forward pass. Bodies also return the
        outputs of the layers in `taps`."""
        self.config = config
        self.head_chunks = head_chunks(config)
        self._backend, self._head_backend = backend, head or backend
        self._row_buckets, self._canvases, self._taps = row_buckets, canvases, taps
        self.embedding = np.asarray(params.embedding)
        self._weights = InMemory(params)
        self.output_buffers = OutputBuffers()
        self._bodies: dict[Bucket, list[Shard]] = {}
        self._heads: dict[int, Mapping[str, Executable]] = {}

    def sizes_for(self, rows: int) -> tuple[int, Sequence[int]]:
        bucket = bucket_size(rows, self._row_buckets)
        return bucket, pack_sizes(self._canvases, bucket, self._row_buckets[-1])

    def body(self, rows: int, cache: int, canvases: int = 1) -> tuple[Bucket, Sequence[Shard]]:
        bucket = Bucket(bucket_size(rows, self._row_buckets), bucket_size(cache, ()), canvases)
        if bucket not in self._bodies:
            layers = range(self.config.n_layers)
            step = body_step(self.config, layers, bucket, self._taps)
            self._drop_oldest(bucket.cache)
            compiled = self._backend.compile([step], self._weights)
            self._bodies[bucket] = [Shard(layers, compiled[bucket.name])]
        self._bodies[bucket] = self._bodies.pop(bucket)  # the last one used is the last
        return bucket, self._bodies[bucket]

    def _drop_oldest(self, cache: int) -> None:
        """Makes room for programs of this number of cached positions."""
        used = [cache, *(bucket.cache for bucket in reversed(self._bodies))]
        kept = [*dict.fromkeys(used)][:KEPT_LENGTHS]
        self._bodies = {b: shards for b, shards in self._bodies.items() if b.cache in kept}

    def head(self, rows: int) -> tuple[int, Mapping[str, Executable]]:
        rounded = bucket_size(rows, ROW_BUCKETS)
        if rounded not in self._heads:
            steps = head_steps(self.config, [rounded])
            self._heads[rounded] = self._head_backend.compile(steps, self._weights)
        return rounded, self._heads[rounded]


def bucket_size(count: int, sizes: Sequence[int]) -> int:
    """Returns the smallest of `sizes` that is at least `count`, else the next multiple of 32."""
    larger = -(-count // 32) * 32
    return next((size for size in sizes if size >= count), larger)


class Recorder:
    """A `Program` that runs another one, of a single shard, in its largest shape, and keeps the
    inputs in order: real inputs for static quantization."""

    def __init__(self, program: Program, bucket: Bucket, limit: int):
        """Keeps the first `limit` forward passes, if their rows and canvases fit the bucket."""
        self._program, self._bucket, self._limit = program, bucket, limit
        self.config = program.config
        self.largest_head, self.head_chunks = program.largest_head, program.head_chunks
        self.embedding, self.head = program.embedding, program.head
        self.output_buffers = program.output_buffers
        self.samples: list[Inputs] = []

    def sizes_for(self, rows: int) -> tuple[int, Sequence[int]]:
        return max(rows, self._bucket.rows), (1,)

    def body(self, rows: int, cache: int, canvases: int = 1) -> tuple[Bucket, Sequence[Shard]]:
        """Returns a shard that is the recorder itself."""
        at_least = max(rows, self._bucket.rows), self._bucket.cache
        bucket, ((layers, self._executable),) = self._program.body(*at_least)
        return bucket, [Shard(layers, self)]

    def allocate(self, name: str) -> np.ndarray:
        return self._executable.allocate(name)

    def run(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        if len(self.samples) < self._limit:
            self.samples.append({name: array.copy() for name, array in arrays.items()})
        return self._executable.run(arrays)
