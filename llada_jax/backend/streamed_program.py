"""A model whose layers run one by one, with weights that are streamed from a file."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from llada_jax.backend.program import ROW_BUCKETS, bucket_size
from llada_jax.backend.protocol import Bucket, Executable, Step
from llada_jax.backend.session import Shard
from llada_jax.backend.steps import body_step, head_chunks, head_steps
from llada_jax.backend.weights import InMemory, pieces_of
from llada_jax.config import ModelConfig
from llada_jax.model.params import ModelParams, named_specs
from llada_jax.model.quantize import QuantArray

Function = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]


class Layers(Protocol):
    """Weights of layers when they are due, as `StreamedWeights` has them."""

    def acquire(self, layer: int, /) -> Mapping[str, Any]:
        """Returns the weights of a layer, valid until `release`."""
        ...

    def release(self, layer: int, /) -> None:
        """Says that the layer has run."""
        ...


class StreamedProgram:
    """A `Program` with a shard for each layer. Embedding, final norm and head stay in memory.

    Of `params` it looks at these alone. Layers of equal shapes share one compiled function.
    """

    largest_head = ROW_BUCKETS[-1]

    def __init__(self, config: ModelConfig, params: ModelParams, weights: Layers):
        self.config = config
        self.head_chunks = head_chunks(config)
        self._weights = weights
        self._embedding = np.asarray(params.embedding)
        self._outside = InMemory(params._replace(layers=()))
        self._bodies: dict[Bucket, list[Shard]] = {}
        self._heads: dict[int, Mapping[str, Executable]] = {}

    def embed(self, tokens: Int[np.ndarray, " r"]) -> Float[np.ndarray, "r D"]:
        return self._embedding[tokens].astype(np.float32)

    def body(self, rows: int, cache: int) -> tuple[Bucket, Sequence[Shard]]:
        bucket = Bucket(bucket_size(rows, ROW_BUCKETS), bucket_size(cache, ()))
        if bucket not in self._bodies:
            self._bodies[bucket] = self._compiled(bucket)
        return bucket, self._bodies[bucket]

    def _compiled(self, bucket: Bucket) -> list[Shard]:
        shards, functions = [], {}
        for layer, alike in enumerate(first_layers_alike(self.config)):
            step = body_step(self.config, range(alike, alike + 1), bucket)
            function = functions.setdefault(alike, jax.jit(step.function))
            outside = {
                name: _in_memory(self._outside, name)
                for name in step.weights
                if not name.startswith("layers.")
            }
            executable = _StreamedLayer(step, function, outside, self._weights, layer, alike)
            shards.append(Shard(range(layer, layer + 1), executable))
        return shards

    def head(self, rows: int) -> tuple[int, Mapping[str, Executable]]:
        size = bucket_size(rows, ROW_BUCKETS)
        if size not in self._heads:
            steps = head_steps(self.config, [size])
            names = dict.fromkeys(name for step in steps for name in step.weights)
            weights = {name: _in_memory(self._outside, name) for name in names}
            self._heads[size] = {step.name: _Jitted(step, weights) for step in steps}
        return size, self._heads[size]


def first_layers_alike(config: ModelConfig) -> list[int]:
    """Returns for each layer the first one whose function is the same, up to names.

    The last layer is followed by the final norm, and so is like no other.
    """
    first: dict[Any, int] = {}
    specs = named_specs(config)
    alike = []
    for layer in range(config.n_layers):
        prefix = f"layers.{layer}."
        shapes = [
            (k.removeprefix(prefix), s.shape) for k, s in specs.items() if k.startswith(prefix)
        ]
        kind = (tuple(shapes), layer == config.n_layers - 1)
        alike.append(first.setdefault(kind, layer))
    return alike


def _in_memory(weights: InMemory, name: str) -> Any:
    """Returns a whole weight; floats in float32."""
    (piece,) = pieces_of(weights, name)
    if isinstance(piece, QuantArray):
        return QuantArray(jnp.asarray(piece.values), jnp.asarray(piece.scale, jnp.float32))
    return jnp.asarray(np.asarray(piece).astype(np.float32))


class _StreamedLayer:
    """An `Executable` that takes its weights when it runs, by the function of a layer alike."""

    def __init__(
        self,
        step: Step,
        function: Function,
        outside: Mapping[str, Any],
        weights: Layers,
        layer: int,
        alike: int,
    ):
        self._step, self._function, self._outside = step, function, outside
        self._weights, self._layer, self._alike = weights, layer, alike

    def allocate(self, name: str) -> np.ndarray:
        return np.zeros(self._step.inputs[self._theirs(name)], np.float32)

    def run(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        inputs = {self._theirs(name): array for name, array in arrays.items()}
        inputs = {name: inputs[name] for name in self._step.inputs}
        mine, theirs = f"layers.{self._layer}.", f"layers.{self._alike}."
        acquired = self._weights.acquire(self._layer)
        weights = {name.replace(mine, theirs, 1): leaf for name, leaf in acquired.items()}
        outputs = self._function({**weights, **self._outside}, inputs)
        found = {self._ours(name): np.asarray(array) for name, array in outputs.items()}
        self._weights.release(self._layer)  # the numbers are there, so the weights were read
        return found

    def _theirs(self, name: str) -> str:
        return _renumbered(name, self._layer, self._alike)

    def _ours(self, name: str) -> str:
        return _renumbered(name, self._alike, self._layer)


def _renumbered(name: str, old: int, new: int) -> str:
    """Turns `keys_<old>` into `keys_<new>`; names without that number stay."""
    return f"{name.removesuffix(f'_{old}')}_{new}" if name.endswith(f"_{old}") else name


class _Jitted:
    """An `Executable` with its weights in memory."""

    def __init__(self, step: Step, weights: Mapping[str, Any]):
        self._step, self._function = step, jax.jit(step.function)
        self._weights = {name: weights[name] for name in step.weights}

    def allocate(self, name: str) -> np.ndarray:
        return np.zeros(self._step.inputs[name], np.float32)

    def run(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        inputs = {name: arrays[name] for name in self._step.inputs}
        return jax.tree.map(np.asarray, self._function(self._weights, inputs))
