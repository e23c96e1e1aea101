"""The sampler of one denoising block, compiled to instructions.

For each position: its best token and that token's confidence, 1 / sum(exp(logit - maximum)). Then
for each batch row: which positions are committed, and their tokens in place.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from llada_jax.config import require
from llada_jax.sampling_engine.assembly import nested
from llada_jax.sampling_engine.instructions import Instruction
from llada_jax.sampling_engine.layout import Layout, Sampling, layout_of
from llada_jax.sampling_engine.memories import EngineConfig

ZERO = 0
STEP, BATCH, ROW, CHUNK, INNER = range(1, 6)  # counters of loops
HBM, LOGITS, BASE, INDEX, SCALARS, PREDICTION, MASK, K_ADDRESS, BUFFER, OTHER = range(6, 16)
# At the end of a batch row nothing of the vocabulary is live any more.
K, CONFIDENCE, TRANSFER, TOKEN = BASE, INDEX, LOGITS, SCALARS

F_ZERO, F_LOWEST, F_THRESHOLD, F_BELOW_ONE, F_BEST, F_TOTAL, F_BEFORE, F_FACTOR = range(8)


@dataclass(frozen=True)
class Program:
    """Instructions, what they sample, and where their data lie."""

    instructions: tuple[Instruction, ...]
    sampling: Sampling
    engine: EngineConfig
    layout: Layout


class Chunk(NamedTuple):
    """Consecutive vector rows of one position's logits."""

    rows: int
    has_tail: bool
    """Whether its last row is shorter than VLEN."""


Body = Callable[[], None]


def compile_sampler(sampling: Sampling, engine: EngineConfig) -> Program:
    """The program of a sampler on an engine.

    Raises:
      ValueError: the data do not fit the engine's memories.
    """
    layout = layout_of(sampling, engine)
    instructions = tuple(_Compiler(sampling, engine, layout).program())
    nested(instructions)
    return Program(instructions, sampling, engine, layout)


class _Compiler:
    """Emits the instructions of one program."""

    def __init__(self, sampling: Sampling, engine: EngineConfig, layout: Layout) -> None:
        self._sampling, self._engine, self._layout = sampling, engine, layout
        self._emitted: list[Instruction] = []
        row = sampling.vector_rows(engine.vlen)
        self._vector_rows = row
        self._has_tail = sampling.tail(engine.vlen) < engine.vlen
        self._chunk_rows = min(sampling.chunk_rows, row)

    def program(self) -> list[Instruction]:
        sampling, layout = self._sampling, self._layout
        overlapped = sampling.mode == "one_pass_overlapped"
        self._emit("C_SET_V_MASK", self._engine.vlen)
        self._emit("S_LD_FP", F_LOWEST, ZERO, layout.fp_constants)
        if sampling.threshold is not None:
            self._emit("S_LD_FP", F_THRESHOLD, ZERO, layout.fp_constants + 1)
        if sampling.key == "odds":
            self._emit("S_LD_FP", F_BELOW_ONE, ZERO, layout.fp_constants + 3)
        self._set(HBM, 0)
        self._set(K_ADDRESS, layout.k)
        with self._loop(STEP, sampling.steps):
            self._set(PREDICTION, layout.predictions)
            self._set(MASK, layout.mask)
            if overlapped:
                self._start_first_chunk()
            with self._loop(BATCH, sampling.batch):
                self._batch_row()
            if overlapped:
                self._drop_lookahead()
        return self._emitted

    # Positions: best token and confidence.

    def _batch_row(self) -> None:
        if self._sampling.mode == "performance":
            self._set(LOGITS, self._layout.logits)
            self._load(self._layout.logits_rows)
        self._set(LOGITS, self._layout.logits)
        self._set(SCALARS, 0)
        with self._loop(ROW, self._sampling.rows):
            self._start_position()
            {
                "performance": self._preloaded,
                "edge": self._streamed_twice,
                "one_pass": self._streamed_once,
                "one_pass_overlapped": self._streamed_once_overlapped,
            }[self._sampling.mode]()
            self._finish_position()
        self._commit()

    def _start_position(self) -> None:
        self._emit("S_ADD_FP", F_BEST, F_LOWEST, F_ZERO)
        self._emit("S_ADD_FP", F_TOTAL, F_ZERO, F_ZERO)
        self._set(INDEX, 0)
        self._set(BASE, 0)

    def _finish_position(self) -> None:
        if self._sampling.key == "odds":
            self._emit("S_SUB_FP", F_TOTAL, F_TOTAL, F_BELOW_ONE)
        self._emit("S_RECI_FP", F_TOTAL, F_TOTAL)
        self._emit("S_ST_FP", F_TOTAL, SCALARS, 0)
        self._emit("S_ST_INT", INDEX, PREDICTION, 0)
        self._add(SCALARS, SCALARS, 1)
        self._add(PREDICTION, PREDICTION, 1)

    def _preloaded(self) -> None:
        whole = Chunk(self._vector_rows, self._has_tail)
        self._maximum(whole)
        self._add(LOGITS, LOGITS, -whole.rows)
        self._sum(whole)

    def _streamed_twice(self) -> None:
        def maximum(chunk: Chunk) -> None:
            self._load_chunk(chunk)
            self._maximum(chunk)

        def total(chunk: Chunk) -> None:
            self._load_chunk(chunk)
            self._sum(chunk)

        self._for_chunks(maximum)
        self._add(HBM, HBM, -self._vector_rows)
        self._for_chunks(total)

    def _streamed_once(self) -> None:
        def absorb(chunk: Chunk) -> None:
            self._load_chunk(chunk)
            self._absorb(chunk)

        self._for_chunks(absorb)

    def _for_chunks(self, body: Callable[[Chunk], None]) -> None:
        for chunk, same in groupby(self._chunks()):
            with self._loop(CHUNK, len(list(same))):
                body(chunk)

    def _chunks(self) -> list[Chunk]:
        """The chunks of one position, in order."""
        full, rest = divmod(self._vector_rows, self._chunk_rows)
        sizes = [self._chunk_rows] * full + [rest] * (rest > 0)
        last = len(sizes) - 1
        return [Chunk(size, self._has_tail and i == last) for i, size in enumerate(sizes)]

    def _load_chunk(self, chunk: Chunk) -> None:
        self._set(LOGITS, self._layout.logits)
        self._load(chunk.rows)
        self._set(LOGITS, self._layout.logits)

    def _load(self, rows: int) -> None:
        """Fetch rows to LOGITS and on, which moves."""
        full, rest = divmod(rows, self._engine.prefetch_rows)
        for size, count in ((self._engine.prefetch_rows, full), (rest, rest > 0)):
            with self._loop(INNER, int(count)):
                self._emit("H_PREFETCH_V", LOGITS, HBM, size)
                self._add(LOGITS, LOGITS, size)
                self._add(HBM, HBM, size)

    def _maximum(self, chunk: Chunk) -> None:
        def row() -> None:
            self._emit("V_RED_MAX_IDX", INDEX, LOGITS, BASE, F_BEST)
            self._add(LOGITS, LOGITS, 1)
            self._add(BASE, BASE, self._engine.vlen)

        self._for_rows(chunk, row)

    def _sum(self, chunk: Chunk) -> None:
        def row() -> None:
            self._emit("V_SUB_VF", LOGITS, LOGITS, F_BEST, 0)
            self._emit("V_EXP_V", LOGITS, LOGITS)
            self._emit("V_RED_SUM", F_TOTAL, LOGITS)
            self._add(LOGITS, LOGITS, 1)

        self._for_rows(chunk, row)

    def _absorb(self, chunk: Chunk) -> None:
        """One chunk more: the sum so far is rescaled to the new maximum (online softmax)."""
        self._emit("S_ADD_FP", F_BEFORE, F_BEST, F_ZERO)
        self._maximum(chunk)
        self._add(LOGITS, LOGITS, -chunk.rows)
        self._emit("S_SUB_FP", F_FACTOR, F_BEFORE, F_BEST)
        self._emit("S_EXP_FP", F_FACTOR, F_FACTOR)
        self._emit("S_MUL_FP", F_TOTAL, F_TOTAL, F_FACTOR)
        self._sum(chunk)

    def _for_rows(self, chunk: Chunk, body: Body) -> None:
        with self._loop(INNER, chunk.rows - chunk.has_tail):
            body()
        if chunk.has_tail:
            self._emit("C_SET_V_MASK", self._sampling.tail(self._engine.vlen))
            body()
            self._emit("C_SET_V_MASK", self._engine.vlen)

    # Two buffers: while one chunk is computed, the next one is on its way.

    def _start_first_chunk(self) -> None:
        self._set(BUFFER, self._layout.logits)
        self._set(OTHER, self._layout.logits + self._chunk_rows)
        self._start(BUFFER, self._chunks()[0].rows)

    def _streamed_once_overlapped(self) -> None:
        chunks = self._chunks()
        following = [*chunks[1:], chunks[0]]
        for (chunk, after), same in groupby(zip(chunks, following, strict=True)):
            with self._loop(CHUNK, len(list(same))):
                self._emit("H_WAIT", 0)
                self._start(OTHER, after.rows)
                self._add(LOGITS, BUFFER, 0)
                self._absorb(chunk)
                self._add(LOGITS, BUFFER, 0)
                self._add(BUFFER, OTHER, 0)
                self._add(OTHER, LOGITS, 0)

    def _start(self, buffer: int, rows: int) -> None:
        full, rest = divmod(rows, self._engine.prefetch_rows)
        sizes = [self._engine.prefetch_rows] * full + [rest] * (rest > 0)
        for i, size in enumerate(sizes):
            self._emit("H_START_V", buffer, HBM, size)
            self._add(HBM, HBM, size)
            if i < len(sizes) - 1:
                self._add(buffer, buffer, size)
        if len(sizes) > 1:
            self._add(buffer, buffer, -sum(sizes[:-1]))

    def _drop_lookahead(self) -> None:
        """The next step's logits do not exist before this step's tokens."""
        self._emit("H_WAIT", 0)
        self._add(HBM, HBM, -self._chunks()[0].rows)

    # The batch row: what is committed.

    def _commit(self) -> None:
        rows, batch = self._sampling.rows, self._sampling.batch
        self._add(PREDICTION, PREDICTION, -rows)
        self._add(CONFIDENCE, MASK, batch)
        self._add(TRANSFER, MASK, -batch)
        self._add(TOKEN, PREDICTION, -batch * rows)
        self._emit("S_MAP_V_FP", CONFIDENCE, ZERO, rows)
        self._emit("S_LD_INT", K, K_ADDRESS, 0)
        self._emit("V_TOPK_MASK", TRANSFER, CONFIDENCE, MASK, K, rows)
        if self._sampling.threshold is not None:
            self._commit_confident(rows)
        self._emit("S_SELECT_INT", PREDICTION, PREDICTION, TOKEN, MASK, rows)
        self._emit("S_SELECT_INT", TOKEN, PREDICTION, TOKEN, TRANSFER, rows)
        if self._sampling.steps > 1:
            self._close_committed()
        self._add(K_ADDRESS, K_ADDRESS, 1)
        self._add(PREDICTION, PREDICTION, rows)
        self._add(MASK, MASK, 1)

    def _commit_confident(self, rows: int) -> None:
        """Also all whose confidence passes: the top-k unit admits positive numbers only."""
        self._emit("V_SUB_VF", CONFIDENCE, CONFIDENCE, F_THRESHOLD, 0)
        self._set(K, rows)
        self._emit("V_TOPK_MASK", CONFIDENCE, CONFIDENCE, MASK, K, rows)
        self._emit("V_SELECT_VVM", TRANSFER, CONFIDENCE, TRANSFER, CONFIDENCE)

    def _close_committed(self) -> None:
        """mask *= 1 - transfer, by way of the confidences, which are not needed any more."""
        self._emit("S_LD_FP", F_FACTOR, ZERO, self._layout.fp_constants + 2)
        self._emit("V_SUB_VF", CONFIDENCE, TRANSFER, F_FACTOR, 1)
        self._emit("V_MUL_VV", MASK, MASK, CONFIDENCE)

    def _emit(self, name: str, *operands: int) -> None:
        self._emitted.append(Instruction(name, operands))

    def _add(self, to: int, a: int, value: int) -> None:
        self._emit("S_ADDI_INT", to, a, value)

    def _set(self, to: int, value: int) -> None:
        self._add(to, ZERO, value)

    @contextmanager
    def _loop(self, counter: int, count: int) -> Iterator[None]:
        """Repeat what is emitted inside: no loop around a single time, nothing for none."""
        require(count >= 0, f"count is {count}; allowed: 0 or more")
        start = len(self._emitted)
        if count > 1:
            self._emit("C_LOOP_START", counter, count)
        yield
        if count > 1:
            self._emit("C_LOOP_END", counter)
        if count == 0:
            del self._emitted[start:]
