"""A denoiser that reads its predictions from a script, for tests of exact sequences of steps.

It runs outside JAX. A row's prediction may depend on the forward, the row's position, and whether
the row feeds [MASK], but not on the tokens that the row sees.
"""

from collections.abc import Callable

import numpy as np

from llada_jax.types import Denoiser, KVCache, RowsOut, Scores
from tests.sampler.toy import MASK

Script = Callable[[int, int, bool], tuple[int, float]]
"""(forward, position, whether [MASK] is fed) -> token and confidence."""


class Scripted:
    """A denoiser and the tokens that it was fed."""

    def __init__(self, script: Script):
        self._script = script
        self.fed: list[dict[int, list[int]]] = []
        """For each forward, the tokens that live rows fed at each position."""

    def denoiser(self) -> Denoiser:
        return Denoiser(self._forward, self._score, self._empty, traceable=False)

    def _forward(self, params, rows, cache):
        rows = rows._replace(tokens=np.asarray(rows.tokens), positions=np.asarray(rows.positions))
        forward, (batch, count) = len(self.fed), rows.tokens.shape
        live = np.asarray(rows.live)
        fed: dict[int, list[int]] = {}
        for token, position in zip(rows.tokens[live], rows.positions[live], strict=True):
            fed.setdefault(int(position), []).append(int(token))
        self.fed.append(fed)
        hidden = np.stack(
            [np.full((batch, count), forward), rows.positions, rows.tokens == MASK], axis=-1
        )
        nothing = (np.zeros((batch, count, 0, 0)),)
        return RowsOut(hidden, nothing, nothing)  # pyright: ignore

    def _score(self, params, hidden, keys):
        said = [[self._script(*map(int, state)) for state in row] for row in np.asarray(hidden)]
        token = np.array([[token for token, _ in row] for row in said], np.int32)
        confidence = np.array([[c for _, c in row] for row in said], np.float32)
        return Scores(token, confidence, confidence * 0, confidence * 0)  # pyright: ignore

    def _empty(self, params, batch, length):
        self.fed.clear()
        nothing = (np.zeros((batch, 0, length, 0), np.float32),)
        return KVCache(nothing, nothing)  # pyright: ignore
