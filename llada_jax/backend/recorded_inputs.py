"""Real inputs of a body step, recorded while a model decodes, for static quantization."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llada_jax.backend.protocol import Bucket
from llada_jax.backend.session import Program, Shard
from llada_jax.config import ModelConfig

Inputs = dict[str, np.ndarray]


class Recorder:
    """A `Program` that runs one of a single shard in its largest shape, and keeps what it is given,
    in the order of the forwards."""

    def __init__(self, program: Program, bucket: Bucket, limit: int):
        """Keeps the first `limit` forwards, of rows and canvases that fit the bucket."""
        self._program, self._bucket, self._limit = program, bucket, limit
        self.config: ModelConfig = program.config
        self.largest_head, self.head_chunks = program.largest_head, program.head_chunks
        self.embed, self.head = program.embed, program.head
        self.samples: list[Inputs] = []

    def sizes_for(self, rows: int) -> tuple[int, Sequence[int]]:
        return max(rows, self._bucket.rows), (1,)

    def body(self, rows: int, cache: int, canvases: int = 1) -> tuple[Bucket, Sequence[Shard]]:
        at_least = max(rows, self._bucket.rows), self._bucket.cache
        bucket, ((layers, executable),) = self._program.body(*at_least)

        def run(arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
            if len(self.samples) < self._limit:
                self.samples.append({name: array.copy() for name, array in arrays.items()})
            return executable.run(arrays)

        return bucket, [Shard(layers, Watched(executable.allocate, run))]


@dataclass(frozen=True)
class Watched:
    """An `Executable` with another `run`."""

    allocate: Callable[[str], np.ndarray]
    run: Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
