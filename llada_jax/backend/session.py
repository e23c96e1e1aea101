"""The host's side of a step: what it passes to the executables, and what it keeps.

Per forward, the host looks up the rows' embeddings, computes the cosines and sines of their
positions, fills the mask, runs the shards of the body one after the other, and keeps the rows' keys
and values. Canvases share a forward where the program is compiled for several.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from llada_jax.backend.canvases import CanvasCache, Fresh, LiveRows, Pack, Turn, packs
from llada_jax.backend.protocol import Bucket, Executable
from llada_jax.backend.resources import require_memory
from llada_jax.backend.steps import cache_names, padded
from llada_jax.config import ModelConfig
from llada_jax.model.head import ScoreRules, absorb_chunk, finish_scores, start_scores
from llada_jax.model.layers import HIDDEN_SCORE, rotation
from llada_jax.types import Denoiser, KVCache, Params, Rows, RowsOut, Scores

FORBIDDEN_LOGIT = -1e30


class Shard(NamedTuple):
    """Consecutive layers, compiled for one bucket."""

    layers: range
    executable: Executable


class Program(Protocol):
    """A compiled model: executables for buckets that hold what is asked for."""

    config: ModelConfig
    largest_head: int
    """Most rows that `head` takes."""
    head_chunks: list[tuple[int, int]]
    """First id and end of each chunk of the vocabulary."""
    embedding: Float[np.ndarray, "V D"]
    turn: Turn

    def sizes_for(self, rows: int) -> tuple[int, Sequence[int]]:
        """Returns the rows of the smallest bucket with at least so many, and the numbers of
        canvases that it is compiled for, ascending from 1."""
        ...

    def body(self, rows: int, cache: int, canvases: int = 1) -> tuple[Bucket, Sequence[Shard]]:
        """Returns the smallest bucket of so many canvases, with at least so many rows of each and
        cached positions."""
        ...

    def head(self, rows: int) -> tuple[int, Mapping[str, Executable]]:
        """Returns rows of the smallest head that holds them, and its steps by name."""
        ...


class Session:
    """A program as the sampler's denoiser. It holds the canvases of one run at a time.

    Runs may follow or contain each other. Of sessions of one program in several threads, one runs a
    forward at a time; a session itself belongs to one thread.
    """

    def __init__(self, program: Program, rules: ScoreRules):
        self._program = program
        self._rules = rules
        self._canvases: list[CanvasCache] = []
        self._length = 0
        self._cos = self._sin = np.zeros((0, 0), np.float32)
        self._penalty = np.zeros(program.config.vocab_size, np.float32)
        self._penalty[list(rules.forbidden)] = FORBIDDEN_LOGIT

    def denoiser(self) -> Denoiser:
        """Returns the functions that the sampler's host loop calls; they ignore the parameters."""
        return Denoiser(self.forward_rows, self.score_rows, self.empty_cache, traceable=False)

    def empty_cache(self, params: Params, batch: int, length: int) -> KVCache:
        """Forgets all canvases. The sampler's own cache has no layers."""
        self._canvases = [CanvasCache() for _ in range(batch)]
        self._length = length
        shape = (0, batch, length, 0, 0)
        return KVCache(jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32))

    def forward_rows(self, params: Params, rows: Rows, cache: KVCache) -> RowsOut:
        """Runs a forward; only the live rows run, and as many canvases at a time as can."""
        arrays: Any = jax.tree.map(np.asarray, rows._replace(writes=rows.written))
        batch, n_rows = arrays.tokens.shape
        hidden = np.zeros((batch, n_rows, self._program.config.width), np.float32)
        run = [np.nonzero(live)[0] for live in arrays.live]
        asked = [_live_rows(arrays, b, run[b]) for b in range(batch)]
        with self._program.turn.lock:
            for canvas, each in zip(self._canvases, asked, strict=True):
                canvas.write_left(each.positions[each.written], each.sees_cache.any(axis=0))
            for pack in packs([len(each) for each in run], self._program.sizes_for):
                bucket, states = self._run(pack, [asked[b] for b in pack.canvases])
                for place, b in enumerate(pack.canvases):
                    hidden[b, run[b]] = states[place * bucket.rows :][: len(run[b])]
        nothing = np.zeros((0, batch, n_rows, 0, 0), np.float32)
        return RowsOut(hidden, nothing, nothing)  # pyright: ignore

    def _run(self, pack: Pack, live: Sequence[LiveRows]) -> tuple[Bucket, Float[np.ndarray, "R D"]]:
        canvases = [self._canvases[b] for b in pack.canvases]
        self._program.turn.take(canvases)
        bucket, shards = self._program.body(pack.rows, self._length, pack.places)
        if bucket.cache:
            self._allocate_caches(canvases, bucket, shards)
        inputs, outputs = self._inputs(live, bucket), []
        for index, shard in enumerate(shards):
            out = shard.executable.run(inputs | _caches_of(canvases, index, shard, bucket))
            inputs["hidden"] = out["hidden"]
            outputs.append(out)
        if self._length:
            for place, (canvas, rows) in enumerate(zip(canvases, live, strict=True)):
                (written,) = np.nonzero(rows.written)
                at = place * bucket.rows + written
                canvas.fresh = Fresh(at, rows.positions[written], outputs)
        return bucket, inputs["hidden"]

    def _allocate_caches(
        self, canvases: Sequence[CanvasCache], bucket: Bucket, shards: Sequence[Shard]
    ) -> None:
        """Makes the caches that are not there yet. Raises ValueError, before the first one, where
        those of all canvases do not fit into memory."""
        config, batch = self._program.config, len(self._canvases)
        if not any(canvas.cache for canvas in self._canvases):
            numbers = 2 * config.n_layers * bucket.cache * config.n_kv_heads * config.head_dim
            what = f"the cache of {batch} canvases of {bucket.cache} positions"
            require_memory(4 * batch * numbers, what)
        for canvas in canvases:
            canvas.cache = canvas.cache or [
                {
                    name: shard.executable.allocate(name)
                    for layer in shard.layers
                    for name in cache_names(layer)
                }
                for shard in shards
            ]

    def _inputs(self, asked: Sequence[LiveRows], bucket: Bucket) -> dict[str, np.ndarray]:
        """Returns what the first shard takes beside the cache, padded to the bucket."""
        self._extend_angles(1 + max(int(rows.positions.max()) for rows in asked))
        columns = {
            "hidden": [self._program.embedding[rows.tokens] for rows in asked],
            "cos": [self._cos[rows.positions] for rows in asked],
            "sin": [self._sin[rows.positions] for rows in asked],
        }
        inputs = {name: _behind_each_other(arrays, bucket) for name, arrays in columns.items()}
        return inputs | {"bias": _bias_of(asked, bucket)}

    def _extend_angles(self, length: int) -> None:
        if len(self._cos) < length:
            length = max(length, 2 * len(self._cos))
            angles = rotation(self._program.config, jnp.arange(length, dtype=jnp.int32)[None])
            self._cos, self._sin = (np.asarray(a, np.float32)[0, :, 0] for a in angles)

    def score_rows(
        self, params: Params, hidden: Float[Array, "B C D"], noise_keys: Key[Array, "B C"] | None
    ) -> Scores:
        """Scores rows as the model's `score_rows` does, from the compiled head."""
        batch, count, width = hidden.shape
        flat = np.asarray(hidden, np.float32).reshape(-1, width)
        keys = None if noise_keys is None else noise_keys.reshape(-1)
        size = self._program.largest_head
        parts = []
        with self._program.turn.lock:
            for start in range(0, len(flat), size):
                part = slice(start, start + size)
                if self._rules.plain and keys is None:
                    parts.append(self._score_greedily(flat[part]))
                else:
                    some = None if keys is None else keys[None, part]
                    parts.append(self._score_in_chunks(flat[part], some))
        return jax.tree.map(lambda *each: np.concatenate(each).reshape(batch, count), *parts)

    def _score_greedily(self, hidden: Float[np.ndarray, "r D"]) -> Scores:
        count = len(hidden)
        rows, steps = self._program.head(count)
        out = steps[f"rows{rows}"].run({"hidden": padded(hidden, rows), "penalty": self._penalty})
        token, confidence = out["token"][:count].copy(), out["confidence"][:count].copy()
        unknown = np.full(count, np.nan, np.float32)
        return Scores(token, confidence, unknown, unknown)  # pyright: ignore

    def _score_in_chunks(
        self, hidden: Float[np.ndarray, "r D"], keys: Key[Array, "1 r"] | None
    ) -> Scores:
        """Scores by any rule: the head gives logits, a chunk at a time, and JAX does the rest."""
        count = len(hidden)
        rows, steps = self._program.head(count)
        inputs = {"hidden": padded(hidden, rows)}
        running = start_scores((1, count), jnp.dtype(self._rules.confidence_dtype))
        for chunk, (start, _) in enumerate(self._program.head_chunks):
            logits = steps[f"rows{rows}_chunk{chunk}"].run(inputs)["logits"]
            chunk_logits = jnp.array(logits[None, :count], self._rules.confidence_dtype)
            running = _absorb_chunk(running, chunk_logits, start, keys, self._rules)
        return Scores(*(array[0] for array in finish_scores(running)))


_absorb_chunk = jax.jit(absorb_chunk, static_argnames=("start", "rules"))


def _live_rows(rows: Any, canvas: int, run: Int[np.ndarray, " r"]) -> LiveRows:
    tokens, positions, _, sees_cache, sees_rows, written = (array[canvas] for array in rows)
    sees_rows = sees_rows[np.ix_(run, run)]
    return LiveRows(tokens[run], positions[run], sees_cache[run], sees_rows, written[run])


def _behind_each_other(
    arrays: Sequence[Float[np.ndarray, "r n"]], bucket: Bucket
) -> Float[np.ndarray, "R n"]:
    """Returns each canvas's rows at its place, float32; what is left of the bucket is zeros."""
    out = np.zeros((bucket.all_rows, arrays[0].shape[1]), np.float32)
    for place, array in enumerate(arrays):
        out[place * bucket.rows :][: len(array)] = array
    return out


def _bias_of(canvases: Sequence[LiveRows], bucket: Bucket) -> Float[np.ndarray, "R T"]:
    """Returns what is added to scores: of a canvas's cached positions, and of its own rows."""
    bias = np.full((bucket.all_rows, bucket.cache + bucket.rows), HIDDEN_SCORE, np.float32)
    for place, rows in enumerate(canvases):
        mine = bias[place * bucket.rows :][: len(rows.tokens)]
        length = rows.sees_cache.shape[1]
        mine[:, :length][rows.sees_cache] = 0
        mine[:, bucket.cache :][:, : len(rows.tokens)][rows.sees_rows] = 0
    return bias


def _caches_of(
    canvases: Sequence[CanvasCache], index: int, shard: Shard, bucket: Bucket
) -> dict[str, np.ndarray]:
    """Returns the caches that a shard takes; an empty place has those of the first canvas, which
    its rows do not see."""
    if not bucket.cache:
        return {}
    placed = [*canvases, *[canvases[0]] * (bucket.canvases - len(canvases))]
    return {
        theirs: canvas.cache[index][mine]
        for place, canvas in enumerate(placed)
        for layer in shard.layers
        for theirs, mine in zip(cache_names(layer, place), cache_names(layer), strict=True)
    }
