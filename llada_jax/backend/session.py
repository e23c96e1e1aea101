"""Runs a compiled program as the sampler's denoiser.

For a forward pass, the host looks up the rows' embeddings, computes the cosines and sines of their
positions, fills in the mask, runs the shards of layers one after the other, and keeps the keys and
values of the rows. Canvases share a forward pass if the program is compiled for several
(`canvases`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from llada_jax.backend.canvases import (
    CanvasCache,
    LiveRows,
    OutputBuffers,
    Pack,
    PendingRows,
    pack_canvases,
)
from llada_jax.backend.protocol import Bucket, Executable
from llada_jax.backend.resources import require_memory
from llada_jax.backend.steps import cache_names, padded, tap_name
from llada_jax.config import ModelConfig
from llada_jax.model.head import ScoreRules, absorb_chunk, finish_scores, start_scores
from llada_jax.model.layers import HIDDEN_SCORE, rotation
from llada_jax.types import Denoiser, KVCache, Params, Rows, RowsOut, Scores

FORBIDDEN_LOGIT = -1e30  # added to the logits of forbidden ids, so that their probability is 0


class Shard(NamedTuple):
    """Consecutive layers, compiled for one bucket."""

    layers: range
    executable: Executable


class Program(Protocol):
    """A compiled model: executables by bucket."""

    config: ModelConfig
    largest_head: int
    """Maximum number of rows for `head`."""
    head_chunks: list[tuple[int, int]]
    """Begin and end id of each chunk of the vocabulary."""
    embedding: Float[np.ndarray, "V D"]
    output_buffers: OutputBuffers

    def sizes_for(self, rows: int) -> tuple[int, Sequence[int]]:
        """Returns the smallest row bucket of at least `rows`, and the numbers of canvases that it
        is compiled for, ascending from 1."""
        ...

    def body(self, rows: int, cache: int, canvases: int = 1) -> tuple[Bucket, Sequence[Shard]]:
        """Returns the smallest bucket for this number of canvases with at least these rows per
        canvas and cached positions, and its shards."""
        ...

    def head(self, rows: int) -> tuple[int, Mapping[str, Executable]]:
        """Returns the smallest head bucket of at least `rows`, and its steps by name."""
        ...


class Session:
    """A program as the sampler's denoiser; holds the canvases of one run at a time.

    Runs may follow each other or be nested. A session belongs to one thread. If sessions in several
    threads share a program, a lock lets one of them run a forward pass at a time.
    """

    def __init__(self, program: Program, rules: ScoreRules, taps: Sequence[int] = ()):
        """`taps` are layers whose outputs the program's bodies return, for a drafter."""
        self._program = program
        self._taps = [tap_name(layer) for layer in taps]
        self._rules = rules
        self._canvases: list[CanvasCache] = []
        self._length = 0
        self._cos = self._sin = np.zeros((0, 0), np.float32)
        self._penalty = np.zeros(program.config.vocab_size, np.float32)
        # The mask id of an autoregressive model is no id of its vocabulary.
        forbidden = [id_ for id_ in rules.forbidden if id_ < len(self._penalty)]
        self._penalty[forbidden] = FORBIDDEN_LOGIT

    def denoiser(self) -> Denoiser:
        """Returns the functions that the sampler's host loop calls; they ignore the parameters."""
        return Denoiser(self.forward_rows, self.score_rows, self.empty_cache, traceable=False)

    def empty_cache(self, params: Params, batch: int, length: int) -> KVCache:
        """Discards all canvases. The session has its own caches, so the returned one is empty."""
        self._canvases = [CanvasCache() for _ in range(batch)]
        self._length = length
        shape = (batch, 0, length, 0)  # two arrays, as the loop donates each
        return KVCache((jnp.zeros(shape, jnp.float32),), (jnp.zeros(shape, jnp.float32),))

    def forward_rows(self, params: Params, rows: Rows, cache: KVCache) -> RowsOut:
        """Runs the live rows, several canvases per forward pass if possible."""
        arrays: Any = jax.tree.map(np.asarray, rows)
        arrays = arrays._replace(writes=arrays.written)
        batch, n_rows = arrays.tokens.shape
        shape = (batch, n_rows, 1 + len(self._taps), self._program.config.width)
        states = np.zeros(shape, np.float32)  # the last ones, then the taps
        live = [_true(mask) for mask in arrays.live]
        live_rows = [_live_rows(arrays, b, live[b]) for b in range(batch)]
        with self._program.output_buffers.lock:
            for canvas, rows_of_canvas in zip(self._canvases, live_rows, strict=True):
                written = rows_of_canvas.positions[rows_of_canvas.written]
                canvas.flush(written, rows_of_canvas.sees_cache.any(axis=0))
            counts = [len(rows.tokens) for rows in live_rows]
            for pack in pack_canvases(counts, self._program.sizes_for):
                bucket, outputs = self._run(pack, [live_rows[b] for b in pack.canvases])
                for slot, b in enumerate(pack.canvases):
                    for index, name in enumerate(["hidden", *self._taps]):
                        slots = outputs[name][slot * bucket.rows :]
                        states[b, live[b], index] = slots[: counts[b]]
        nothing = (np.zeros((batch, n_rows, 0, 0), np.float32),)
        taps = states[:, :, 1:] if self._taps else None
        return RowsOut(states[:, :, 0], nothing, nothing, taps)  # pyright: ignore

    def _run(
        self, pack: Pack, live: Sequence[LiveRows]
    ) -> tuple[Bucket, Mapping[str, Float[np.ndarray, "R D"]]]:
        """Runs the canvases of a pack; returns the bucket, and the outputs of all shards, whose
        `hidden` is the last one's."""
        canvases = [self._canvases[b] for b in pack.canvases]
        self._program.output_buffers.acquire(canvases)
        bucket, shards = self._program.body(pack.rows, self._length, pack.slots)
        if bucket.cache:
            self._allocate_caches(canvases, bucket, shards)
        inputs, outputs = self._inputs(live, bucket), []
        for index, shard in enumerate(shards):
            out = shard.executable.run(inputs | _caches_of(canvases, index, shard, bucket))
            inputs["hidden"] = out["hidden"]
            outputs.append(out)
        if self._length:
            for slot, (canvas, rows) in enumerate(zip(canvases, live, strict=True)):
                (written,) = np.nonzero(rows.written)
                output_rows = slot * bucket.rows + written
                canvas.pending = PendingRows(output_rows, rows.positions[written], outputs)
        return bucket, {name: array for out in outputs for name, array in out.items()}

    def _allocate_caches(
        self, canvases: Sequence[CanvasCache], bucket: Bucket, shards: Sequence[Shard]
    ) -> None:
        """Allocates missing caches. Raises ValueError, before the first one, if the caches of all
        canvases do not fit into memory."""
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

    def _inputs(self, live: Sequence[LiveRows], bucket: Bucket) -> dict[str, np.ndarray]:
        """Returns the inputs of the first shard except the caches, padded to the bucket."""
        self._extend_angles(1 + max(int(rows.positions.max()) for rows in live))
        columns = {
            "hidden": [self._program.embedding[rows.tokens] for rows in live],
            "cos": [self._cos[rows.positions] for rows in live],
            "sin": [self._sin[rows.positions] for rows in live],
        }
        inputs = {name: _in_slots(arrays, bucket) for name, arrays in columns.items()}
        return inputs | {"bias": _mask_bias(live, bucket)}

    def _extend_angles(self, length: int) -> None:
        """Extends the tables of cosines and sines to `length` positions, at least doubling them."""
        if len(self._cos) < length:
            length = max(length, 2 * len(self._cos))
            angles = rotation(self._program.config, jnp.arange(length, dtype=jnp.int32)[None])
            self._cos, self._sin = (np.asarray(a, np.float32)[0, :, 0] for a in angles)

    def score_rows(
        self, params: Params, hidden: Float[Array, "B C D"], noise_keys: Key[Array, "B C"] | None
    ) -> Scores:
        """Scores rows like the model's `score_rows`, with the compiled head."""
        batch, count, width = hidden.shape
        flat = np.asarray(hidden, np.float32).reshape(-1, width)
        keys = None if noise_keys is None else noise_keys.reshape(-1)
        size = self._program.largest_head
        parts = []
        with self._program.output_buffers.lock:
            for start in range(0, len(flat), size):
                part = slice(start, start + size)
                if self._rules.plain and keys is None:
                    parts.append(self._score_greedily(flat[part]))
                else:
                    chunk_keys = None if keys is None else keys[None, part]
                    parts.append(self._score_in_chunks(flat[part], chunk_keys))
        return jax.tree.map(lambda *p: np.concatenate(p).reshape(batch, count), *parts)

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
        """Scores with any rule: the head gives logits chunk by chunk, and JAX combines them."""
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


def _true(mask: Bool[np.ndarray, " r"]) -> slice | Int[np.ndarray, " r"]:
    """Returns an index of the entries that are true: a slice if they come first, as it is
    fastest."""
    count = int(mask.sum())
    return slice(count) if mask[:count].all() else np.flatnonzero(mask)


def _live_rows(rows: Any, canvas: int, live: slice | Int[np.ndarray, " r"]) -> LiveRows:
    tokens, positions, _, sees_cache, sees_rows, written = (array[canvas] for array in rows)
    sees_rows = sees_rows[live][:, live]
    return LiveRows(tokens[live], positions[live], sees_cache[live], sees_rows, written[live])


def _in_slots(
    arrays: Sequence[Float[np.ndarray, "r n"]], bucket: Bucket
) -> Float[np.ndarray, "R n"]:
    """Returns each canvas's rows in its slot of the bucket, padded with zeros; float32."""
    out = np.zeros((bucket.all_rows, arrays[0].shape[1]), np.float32)
    for slot, array in enumerate(arrays):
        out[slot * bucket.rows :][: len(array)] = array
    return out


def _mask_bias(canvases: Sequence[LiveRows], bucket: Bucket) -> Float[np.ndarray, "R T"]:
    """Returns the additive attention mask of each row: over its canvas's cached positions, then
    over the rows of its slot. Padding sees nothing and is seen by nothing."""
    bias = np.full((bucket.all_rows, bucket.cache + bucket.rows), HIDDEN_SCORE, np.float32)
    for slot, rows in enumerate(canvases):
        canvas_bias = bias[slot * bucket.rows :][: len(rows.tokens)]
        length = rows.sees_cache.shape[1]
        canvas_bias[:, :length][rows.sees_cache] = 0
        canvas_bias[:, bucket.cache :][:, : len(rows.tokens)][rows.sees_rows] = 0
    return bias


def _caches_of(
    canvases: Sequence[CanvasCache], index: int, shard: Shard, bucket: Bucket
) -> dict[str, np.ndarray]:
    """Returns a shard's cache inputs. Empty slots get the caches of the first canvas, which their
    rows do not see, so that no memory is spent on them."""
    if not bucket.cache:
        return {}
    filled = [*canvases, *[canvases[0]] * (bucket.canvases - len(canvases))]
    return {
        input_name: canvas.cache[index][name]
        for slot, canvas in enumerate(filled)
        for layer in shard.layers
        for input_name, name in zip(cache_names(layer, slot), cache_names(layer), strict=True)
    }
