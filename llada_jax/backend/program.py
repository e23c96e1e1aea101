"""A model in memory, compiled by a backend for the buckets that its runs turn out to need."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jaxtyping import Float, Int

from llada_jax.backend.protocol import Backend, Bucket, Executable
from llada_jax.backend.session import Shard
from llada_jax.backend.steps import body_step, head_parts, head_steps, weight_name
from llada_jax.backend.weights import ParamsInMemory
from llada_jax.config import ModelConfig
from llada_jax.model.params import ModelParams

ROW_BUCKETS = (1, 4, 8, 16, 32, 64, 96, 128)
_MULTIPLE = 32


class CompiledOnDemand:
    """A `Program` of one shard. Each bucket is a file of its own: for models that are small."""

    largest_head = ROW_BUCKETS[-1]

    def __init__(self, config: ModelConfig, params: ModelParams, backend: Backend):
        self.config = config
        self._backend = backend
        leaves = {weight_name(path): leaf for path, leaf in _leaves(params)}
        self._embedding = np.asarray(params.embedding)
        self._weights = ParamsInMemory(leaves, head_parts(config))
        self._bodies: dict[Bucket, list[Shard]] = {}
        self._heads: dict[int, Mapping[str, Executable]] = {}

    def embed(self, tokens: Int[np.ndarray, " r"]) -> Float[np.ndarray, "r D"]:
        return self._embedding[tokens].astype(np.float32)

    def body(self, rows: int, cache: int) -> tuple[Bucket, Sequence[Shard]]:
        bucket = Bucket(_rounded(rows), -(-cache // _MULTIPLE) * _MULTIPLE)
        if bucket not in self._bodies:
            layers = range(self.config.n_layers)
            step = body_step(self.config, layers, bucket)
            executable = self._backend.compile([step], self._weights)[step.name]
            self._bodies[bucket] = [Shard(layers, executable)]
        return bucket, self._bodies[bucket]

    def head(self, rows: int) -> tuple[int, Mapping[str, Executable]]:
        rounded = _rounded(rows)
        if rounded not in self._heads:
            steps = head_steps(self.config, [rounded])
            self._heads[rounded] = self._backend.compile(steps, self._weights)
        return rounded, self._heads[rounded]


def _leaves(params: ModelParams):
    from llada_jax.model.quantize import QuantArray

    return jax.tree.leaves_with_path(params, is_leaf=lambda leaf: isinstance(leaf, QuantArray))


def _rounded(rows: int) -> int:
    """The smallest bucket that holds the rows; beyond the buckets, a multiple of 32."""
    larger = -(-rows // _MULTIPLE) * _MULTIPLE
    return next((bucket for bucket in ROW_BUCKETS if bucket >= rows), larger)
