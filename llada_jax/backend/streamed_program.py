"""A model whose layers run one by one, with weights that are streamed from a file."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from llada_jax.backend.program import CompiledOnDemand
from llada_jax.backend.protocol import Bucket, Executable, Step, Weights
from llada_jax.backend.session import Shard
from llada_jax.backend.steps import body_step
from llada_jax.backend.streamed_weights import StreamedWeights
from llada_jax.backend.weights import pieces_of
from llada_jax.config import ModelConfig
from llada_jax.model.params import ModelParams
from llada_jax.model.quantize import QuantArray


class StreamedProgram(CompiledOnDemand):
    """A `Program` with a shard for each layer. Embedding, final norm and head stay in memory.

    Of `params` it looks at these alone. Layers of equal shapes share one compiled function.
    `weights` may be exchanged between runs.
    """

    def __init__(
        self, config: ModelConfig, params: ModelParams, weights: StreamedWeights | None = None
    ):
        super().__init__(config, params._replace(layers=()), _OnJax())
        self.weights = weights

    def _compiled(self, bucket: Bucket) -> list[Shard]:
        @cache
        def compiled(alike: int) -> tuple[Step, Callable[..., Any]]:
            step = body_step(self.config, range(alike, alike + 1), bucket)
            return step, jax.jit(step.function)

        shards = []
        for layer, alike in enumerate(first_layers_alike(self.config)):
            step, function = compiled(alike)
            names = [name for name in step.weights if not name.startswith("layers.")]
            outside = {name: _in_memory(self._weights, name) for name in names}
            executable = _StreamedLayer(self, step, function, outside, layer, alike)
            shards.append(Shard(range(layer, layer + 1), executable))
        return shards


def first_layers_alike(config: ModelConfig) -> list[int]:
    """Returns for each layer the first one whose function is the same, up to names.

    The last layer is followed by the final norm, and so is like no other.
    """
    first: dict[Any, int] = {}
    alike = []
    for layer in range(config.n_layers):
        weights = body_step(config, range(layer, layer + 1), Bucket(1, 0)).weights
        prefix = f"layers.{layer}."
        kind = tuple((name.removeprefix(prefix), shape) for name, shape in weights.items())
        alike.append(first.setdefault(kind, layer))
    return alike


def _in_memory(weights: Weights, name: str) -> Any:
    """Returns a whole weight; floats in float32."""
    (piece,) = pieces_of(weights, name)
    if isinstance(piece, QuantArray):
        return QuantArray(jnp.asarray(piece.values), jnp.asarray(piece.scale, jnp.float32))
    return jnp.asarray(np.asarray(piece).astype(np.float32))


class _StreamedLayer:
    """An `Executable` that takes its weights when it runs, by the function of a layer alike."""

    def __init__(
        self,
        program: StreamedProgram,
        step: Step,
        function: Callable[..., Any],
        outside: Mapping[str, Any],
        layer: int,
        alike: int,
    ):
        self._program, self._step, self._function = program, step, function
        self._outside, self._layer, self._alike = outside, layer, alike

    def allocate(self, name: str) -> np.ndarray:
        return np.zeros(self._step.inputs[self._theirs(name)], np.float32)

    def run(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        inputs = {self._theirs(name): array for name, array in arrays.items()}
        inputs = {name: inputs[name] for name in self._step.inputs}
        mine, theirs = f"layers.{self._layer}.", f"layers.{self._alike}."
        store = self._program.weights
        assert store is not None
        acquired = store.acquire(self._layer)
        weights = {name.replace(mine, theirs, 1): leaf for name, leaf in acquired.items()}
        outputs = self._function({**weights, **self._outside}, inputs)
        found = {
            _renumbered(name, self._alike, self._layer): np.asarray(array)
            for name, array in outputs.items()
        }
        store.release(self._layer)  # the numbers are there, so the weights were read
        return found

    def _theirs(self, name: str) -> str:
        return _renumbered(name, self._layer, self._alike)


def _renumbered(name: str, old: int, new: int) -> str:
    """Turns `keys_<old>` into `keys_<new>`; names without that number stay."""
    return f"{name.removesuffix(f'_{old}')}_{new}" if name.endswith(f"_{old}") else name


class _OnJax:
    """The backend of what stays in memory."""

    def compile(self, steps: Sequence[Step], weights: Weights) -> dict[str, Executable]:
        names = dict.fromkeys(name for step in steps for name in step.weights)
        shared = {name: _in_memory(weights, name) for name in names}
        return {step.name: _Jitted(step, shared) for step in steps}


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
