"""The host's side of a step: what it passes to the executables, and what it keeps.

Per forward and canvas, the host looks up the rows' embeddings, computes the cosines and sines of
their positions, fills the mask, runs the shards of the body one after the other, and keeps the
rows' keys and values. A row's key and value are needed only once it is no row any more, so they
enter the cache at the next forward, and only those that have left the window.
"""

from collections.abc import Mapping, Sequence
from threading import Lock, RLock
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary, ref

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from llada_jax.backend.protocol import Bucket, Executable
from llada_jax.backend.steps import padded
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

    def embed(self, tokens: Int[np.ndarray, " r"]) -> Float[np.ndarray, "r D"]:
        """Returns embeddings of token ids, float32."""
        ...

    def body(self, rows: int, cache: int) -> tuple[Bucket, Sequence[Shard]]:
        """Returns the smallest bucket with at least so many rows and cached positions."""
        ...

    def head(self, rows: int) -> tuple[int, Mapping[str, Executable]]:
        """Returns rows of the smallest head that holds them, and its steps by name."""
        ...


class _Fresh(NamedTuple):
    """What of the last forward has yet to enter the cache; keys and values by shard."""

    rows: Int[np.ndarray, " r"]
    """Indices into the outputs."""
    positions: Int[np.ndarray, " r"]
    outputs: list[Mapping[str, np.ndarray]]


class _CanvasCache:
    """One canvas of the batch: its cache, for each shard by the names of its inputs."""

    def __init__(self) -> None:
        self.cache: list[dict[str, np.ndarray]] = []
        self.fresh: _Fresh | None = None
        """Keys and values of the last forward, where the executables left them."""

    def make_room(self) -> None:
        """Copies what the executables hold for this canvas: another one will run."""
        if self.fresh is not None:
            outputs = [jax.tree.map(np.copy, dict(output)) for output in self.fresh.outputs]
            self.fresh = self.fresh._replace(outputs=outputs)

    def write_left(self, positions: Int[np.ndarray, " r"], seen: Bool[np.ndarray, " L"]) -> None:
        """Puts the last forward's keys and values into the cache where no row stands now, and where
        one does but others see the cache: a row that refreshes a token of the cache."""
        if self.fresh is None:
            return
        fresh = self.fresh.positions
        stands = np.isin(fresh, positions)
        left = ~stands | seen[fresh] if len(seen) else ~stands
        if left.any():
            positions, rows = fresh[left], self.fresh.rows[left]
            for cache, outputs in zip(self.cache, self.fresh.outputs, strict=True):
                for name, array in cache.items():
                    array[:, positions] = outputs[f"new_{name}"][:, rows]
        self.fresh = None


class _Turn:
    """Who uses a program's executables, whose memory is one, whichever session asks."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.last_to_run: ref[_CanvasCache] | None = None
        """The canvas whose keys and values still lie in the executables."""

    def take(self, canvas: _CanvasCache) -> None:
        """Lets the canvas run next; what another one has left is copied first."""
        last = self.last_to_run() if self.last_to_run else None
        if last is not None and last is not canvas:
            last.make_room()
        self.last_to_run = ref(canvas)


_turns: WeakKeyDictionary[Program, _Turn] = WeakKeyDictionary()
_adding_a_turn = Lock()


def _turn_of(program: Program) -> _Turn:
    with _adding_a_turn:
        return _turns.setdefault(program, _Turn())


class Session:
    """A program as the sampler's denoiser. It holds the canvases of one run at a time.

    Runs may follow or contain each other. Of sessions of one program in several threads, one runs a
    forward at a time; a session itself belongs to one thread.
    """

    def __init__(self, program: Program, rules: ScoreRules):
        self._program = program
        self._turn = _turn_of(program)
        self._rules = rules
        self._canvases: list[_CanvasCache] = []
        self._length = 0
        self._cos = self._sin = np.zeros((0, 0), np.float32)
        self._penalty = np.zeros(program.config.vocab_size, np.float32)
        self._penalty[list(rules.forbidden)] = FORBIDDEN_LOGIT

    def denoiser(self) -> Denoiser:
        """Returns the functions that the sampler's host loop calls; they ignore the parameters."""
        return Denoiser(
            self.forward_rows, self.score_rows, self.empty_cache, traceable=False, keeps_cache=True
        )

    def empty_cache(self, params: Params, batch: int, length: int) -> KVCache:
        """Forgets all canvases. The sampler's own cache has no layers."""
        self._canvases = [_CanvasCache() for _ in range(batch)]
        self._length = length
        shape = (0, batch, length, 0, 0)
        return KVCache(jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32))

    def forward_rows(self, params: Params, rows: Rows, cache: KVCache) -> RowsOut:
        """Runs a forward, canvas by canvas; only the live rows run."""
        arrays: Any = jax.tree.map(np.asarray, rows._replace(writes=rows.written))
        batch, n_rows = arrays.tokens.shape
        hidden = np.zeros((batch, n_rows, self._program.config.width), np.float32)
        with self._turn.lock:
            for b, canvas in enumerate(self._canvases):
                (run,) = np.nonzero(arrays.live[b])
                row: Any = Rows(*(array[b] for array in arrays))
                canvas.write_left(row.positions[row.written], row.sees_cache[run].any(axis=0))
                if len(run):
                    hidden[b, run] = self._run(canvas, row, run)
        nothing = np.zeros((0, batch, n_rows, 0, 0), np.float32)
        return RowsOut(hidden, nothing, nothing)  # pyright: ignore

    def _run(
        self, canvas: _CanvasCache, rows: Rows, run: Int[np.ndarray, " r"]
    ) -> Float[np.ndarray, "r D"]:
        self._turn.take(canvas)
        bucket, shards = self._program.body(len(run), self._length)
        inputs = self._inputs(rows, run, bucket)
        if bucket.cache and not canvas.cache:
            canvas.cache = list(map(allocate_cache, shards))
        outputs = []
        for index, shard in enumerate(shards):
            out = shard.executable.run(inputs | (canvas.cache[index] if canvas.cache else {}))
            inputs["hidden"] = out["hidden"]
            outputs.append(out)
        if self._length:
            (written,) = np.nonzero(np.asarray(rows.written)[run])
            canvas.fresh = _Fresh(written, np.asarray(rows.positions)[run][written], outputs)
        return inputs["hidden"][: len(run)]

    def _inputs(
        self, rows: Rows, run: Int[np.ndarray, " r"], bucket: Bucket
    ) -> dict[str, np.ndarray]:
        """Returns what the first shard takes beside the cache, padded to the bucket."""
        count = len(run)
        positions = np.asarray(rows.positions)[run]
        self._extend_angles(int(positions.max()) + 1)

        bias = np.full((bucket.rows, bucket.cache + bucket.rows), HIDDEN_SCORE, np.float32)
        bias[:count, : self._length][np.asarray(rows.sees_cache)[run]] = 0
        bias[:count, bucket.cache : bucket.cache + count][
            np.asarray(rows.sees_rows)[np.ix_(run, run)]
        ] = 0
        return {
            "hidden": padded(self._program.embed(np.asarray(rows.tokens)[run]), bucket.rows),
            "cos": padded(self._cos[positions], bucket.rows),
            "sin": padded(self._sin[positions], bucket.rows),
            "bias": bias,
        }

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
        with self._turn.lock:
            for start in range(0, len(flat), size):
                part = slice(start, start + size)
                if self._rules.plain and keys is None:
                    parts.append(self._score_greedily(flat[part]))
                else:
                    some = None if keys is None else keys[part]
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
        self, hidden: Float[np.ndarray, "r D"], keys: Key[Array, " r"] | None
    ) -> Scores:
        """Scores by any rule: the head gives logits, a chunk at a time, and JAX does the rest."""
        count = len(hidden)
        rows, steps = self._program.head(count)
        inputs = {"hidden": padded(hidden, rows)}
        keys = None if keys is None else keys[None]
        running = start_scores((1, count), jnp.dtype(self._rules.confidence_dtype))
        for chunk, (start, _) in enumerate(self._program.head_chunks):
            logits = steps[f"rows{rows}_chunk{chunk}"].run(inputs)["logits"]
            chunk_logits = jnp.array(logits[None, :count], self._rules.confidence_dtype)
            running = _absorb_chunk(running, chunk_logits, start, keys, self._rules)
        return Scores(*(array[0] for array in finish_scores(running)))


_absorb_chunk = jax.jit(absorb_chunk, static_argnames=("start", "rules"))


def allocate_cache(shard: Shard) -> dict[str, np.ndarray]:
    """Returns an empty cache of a shard's layers, by the names of its inputs."""
    names = [f"{kind}_{layer}" for layer in shard.layers for kind in ("keys", "values")]
    return {name: shard.executable.allocate(name) for name in names}
