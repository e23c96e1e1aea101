"""The example of how to add a backend: steps on JAX itself, with weights rounded to float16.

A backend gets steps, which are functions of named arrays with static shapes, and the weights, one
tensor at a time. For each step it returns an object that allocates inputs and runs. With that,
`llada_jax.generate(model, prompts, backend=ExampleBackend())` decodes. One line in `llada_jax.api`
gives a backend a name.
"""

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from llada_jax.backend.protocol import Executable, Step, Weights
from llada_jax.backend.weights import pieces_of


class ExampleBackend:
    def compile(self, steps: Sequence[Step], weights: Weights) -> dict[str, Executable]:
        names = dict.fromkeys(name for step in steps for name in step.weights)
        shared = {name: self._rounded(weights, name) for name in names}
        return {step.name: _Compiled(step, shared) for step in steps}

    def _rounded(self, weights: Weights, name: str) -> np.ndarray:
        pieces = [np.asarray(piece).astype(np.float16) for piece in pieces_of(weights, name)]
        return np.concatenate(pieces).astype(np.float32)


class _Compiled:
    def __init__(self, step: Step, weights: Mapping[str, np.ndarray]):
        self._step, self._run = step, jax.jit(step.function)
        self._weights = {name: weights[name] for name in step.weights}

    def allocate(self, name: str) -> np.ndarray:
        return np.zeros(self._step.inputs[name], np.float32)

    def run(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        inputs = {name: arrays[name] for name in self._step.inputs}
        return jax.tree.map(np.asarray, self._run(self._weights, inputs))
