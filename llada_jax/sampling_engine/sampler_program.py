"""Compiles the sampler of one denoising block to instructions.

For each position it computes the best token and its confidence, 1 / sum(exp(logit - maximum)). Then
it selects for each batch row the positions to commit, and writes their tokens.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from llada_jax.config import require
from llada_jax.sampling_engine.instructions import PREFETCH_ROWS, Instruction
from llada_jax.sampling_engine.sampling import Domain, EngineConfig, Sampling

_ZERO = 0
BATCH, ROW, CHUNK, INNER = range(1, 5)  # loop counters
HBM, LOGITS, NOISE, BASE, INDEX, SCALARS, PREDICTION, MASK, K_ADDRESS = range(5, 14)
# Registers that are reused at the end of a batch row, when no vocabulary registers are in use.
K, CONFIDENCE, TRANSFER, TOKEN = BASE, INDEX, LOGITS, SCALARS

F_ZERO, F_LOWEST, F_CHOSEN, F_NOISY, F_BEST, F_TOTAL, F_BEFORE, F_FACTOR = range(8)


class MemoryMap(NamedTuple):
    """First words of all data, and the number of words in each domain.

    Vector memory has a row per batch row for the transfer mask, the input mask and the confidences,
    then the logits, which are overwritten with their exponentials. FP memory has the confidences of
    one batch row, reused by the next, and the lowest number of the vector format. Integer memory
    has tokens, predictions, and k of every batch row.
    """

    transfer: int
    mask: int
    confidence: int
    logits: int
    logits_rows: int
    lowest: int
    tokens: int
    predictions: int
    k: int
    words: dict[Domain, int]


def memory_map_of(sampling: Sampling, engine: EngineConfig) -> MemoryMap:
    """Assigns addresses to a program's data.

    Raises ValueError if they do not fit a memory, or the block does not fit a vector row.
    """
    batch, rows, vlen = sampling.batch, sampling.rows, engine.vlen
    require(rows <= vlen, f"rows is {rows}; allowed: up to vlen ({vlen})")
    positions, row = batch * rows, sampling.vector_rows(vlen)
    whole = sampling.mode == "performance"
    logits_rows = rows * row if whole else min(sampling.chunk_rows, row) * sampling.stride
    words: dict[Domain, int] = {
        "vector": 3 * batch + logits_rows,
        "fp": rows + 1,
        "int": 2 * positions + batch,
    }
    for domain, needed in words.items():
        available, word_bytes = engine.words(domain), engine.word_bytes(domain)
        require(
            needed <= available,
            f"a {sampling.mode} program needs {needed:,} words of {domain} memory "
            f"({needed * word_bytes:,} bytes); "
            f"allowed: up to {available:,} ({available * word_bytes:,} bytes)",
        )
    return MemoryMap(
        transfer=0,
        mask=batch,
        confidence=2 * batch,
        logits=3 * batch,
        logits_rows=logits_rows,
        lowest=rows,
        tokens=0,
        predictions=positions,
        k=2 * positions,
        words=words,
    )


@dataclass(frozen=True)
class SamplerProgram:
    """Instructions, the sampler's parameters, and the addresses of its data."""

    instructions: tuple[Instruction, ...]
    sampling: Sampling
    engine: EngineConfig
    memory_map: MemoryMap


class _Chunk(NamedTuple):
    """Consecutive vector rows of one position's logits."""

    rows: int
    has_tail: bool
    """Whether the last row is shorter than VLEN."""


def compile_sampler(sampling: Sampling, engine: EngineConfig) -> SamplerProgram:
    """Compiles a sampler. Raises ValueError if the data do not fit the engine's memories."""
    memory_map = memory_map_of(sampling, engine)
    instructions = tuple(_Compiler(sampling, engine, memory_map).program())
    return SamplerProgram(instructions, sampling, engine, memory_map)


class _Compiler:
    """Emits the instructions of one program."""

    def __init__(self, sampling: Sampling, engine: EngineConfig, memory_map: MemoryMap) -> None:
        self._sampling, self._engine, self._memory_map = sampling, engine, memory_map
        self._emitted: list[Instruction] = []
        vector_rows = sampling.vector_rows(engine.vlen)
        has_tail = sampling.tail(engine.vlen) < engine.vlen
        sizes = _pieces(vector_rows, sampling.chunk_rows)
        self._whole = _Chunk(vector_rows, has_tail)
        self._chunks = [_Chunk(size, False) for size in sizes[:-1]] + [_Chunk(sizes[-1], has_tail)]

    def program(self) -> list[Instruction]:
        sampling, memory_map = self._sampling, self._memory_map
        self._emit("C_SET_V_MASK", self._engine.vlen)
        self._emit("S_LD_FP", F_LOWEST, _ZERO, memory_map.lowest)
        self._set(HBM, 0)
        self._set(K_ADDRESS, memory_map.k)
        self._set(PREDICTION, memory_map.predictions)
        self._set(MASK, memory_map.mask)
        with self._loop(BATCH, sampling.batch):
            self._batch_row()
        return self._emitted

    # Positions: best token and confidence.

    def _batch_row(self) -> None:
        if self._sampling.mode == "performance":
            self._set(LOGITS, self._memory_map.logits)
            self._load(self._memory_map.logits_rows)
        self._set(LOGITS, self._memory_map.logits)
        self._set(SCALARS, 0)
        with self._loop(ROW, self._sampling.rows):
            self._start_position()
            if self._sampling.mode == "performance":
                self._maximum(self._whole)
                self._add(LOGITS, LOGITS, -self._whole.rows)
                self._sum(self._whole)
            elif self._sampling.mode == "edge":
                self._streamed(self._maximum)
                self._add(HBM, HBM, -self._whole.rows)
                self._streamed(self._sum)
            else:
                self._streamed(self._absorb)
            self._finish_position()
        self._commit()

    def _start_position(self) -> None:
        self._emit("S_ADD_FP", F_BEST, F_LOWEST, F_ZERO)
        self._emit("S_ADD_FP", F_TOTAL, F_ZERO, F_ZERO)
        if self._sampling.noisy:
            for register in (F_NOISY, F_CHOSEN):
                self._emit("S_ADD_FP", register, F_LOWEST, F_ZERO)
        self._set(INDEX, 0)
        self._set(BASE, 0)

    def _finish_position(self) -> None:
        self._emit("S_RECI_FP", F_TOTAL, F_TOTAL)
        if self._sampling.noisy:
            self._emit("S_SUB_FP", F_CHOSEN, F_CHOSEN, F_BEST)
            self._emit("S_EXP_FP", F_CHOSEN, F_CHOSEN)
            self._emit("S_MUL_FP", F_TOTAL, F_TOTAL, F_CHOSEN)
        self._emit("S_ST_FP", F_TOTAL, SCALARS, 0)
        self._emit("S_ST_INT", INDEX, PREDICTION, 0)
        self._add(SCALARS, SCALARS, 1)
        self._add(PREDICTION, PREDICTION, 1)

    def _streamed(self, compute: Callable[[_Chunk], None]) -> None:
        """Loads and processes one chunk after the other."""
        for chunk, same in groupby(self._chunks):
            with self._loop(CHUNK, len(list(same))):
                self._set(LOGITS, self._memory_map.logits)
                self._load(chunk.rows * self._sampling.stride)
                self._set(LOGITS, self._memory_map.logits)
                compute(chunk)

    def _load(self, rows: int) -> None:
        """Fetches rows to LOGITS, and advances LOGITS and HBM."""
        for size, same in groupby(_pieces(rows, PREFETCH_ROWS)):
            with self._loop(INNER, len(list(same))):
                self._emit("H_PREFETCH_V", LOGITS, HBM, size)
                self._add(LOGITS, LOGITS, size)
                self._add(HBM, HBM, size)

    def _maximum(self, chunk: _Chunk) -> None:
        stride, vlen = self._sampling.stride, self._engine.vlen
        following = ("S_ADDI_INT", LOGITS, LOGITS, stride), ("S_ADDI_INT", BASE, BASE, vlen)
        if self._sampling.noisy:
            self._add(NOISE, LOGITS, 1)
            self._each_row(
                chunk,
                ("V_RED_MAX", F_BEST, LOGITS),
                ("V_ADD_VV", NOISE, LOGITS, NOISE),
                ("V_RED_MAX_IDX", INDEX, NOISE, BASE, F_NOISY),
                ("V_PICK", F_CHOSEN, LOGITS, INDEX, BASE),
                ("S_ADDI_INT", NOISE, NOISE, stride),
                *following,
            )
        else:
            self._each_row(chunk, ("V_RED_MAX_IDX", INDEX, LOGITS, BASE, F_BEST), *following)

    def _sum(self, chunk: _Chunk) -> None:
        self._each_row(
            chunk,
            ("V_SUB_VF", LOGITS, LOGITS, F_BEST),
            ("V_EXP_V", LOGITS, LOGITS),
            ("V_RED_SUM", F_TOTAL, LOGITS),
            ("S_ADDI_INT", LOGITS, LOGITS, self._sampling.stride),
        )

    def _absorb(self, chunk: _Chunk) -> None:
        """Adds a chunk to the sum, which is rescaled to the new maximum (online softmax)."""
        self._emit("S_ADD_FP", F_BEFORE, F_BEST, F_ZERO)
        self._maximum(chunk)
        self._add(LOGITS, LOGITS, -chunk.rows * self._sampling.stride)
        self._emit("S_SUB_FP", F_FACTOR, F_BEFORE, F_BEST)
        self._emit("S_EXP_FP", F_FACTOR, F_FACTOR)
        self._emit("S_MUL_FP", F_TOTAL, F_TOTAL, F_FACTOR)
        self._sum(chunk)

    def _each_row(self, chunk: _Chunk, *body: tuple) -> None:
        with self._loop(INNER, chunk.rows - chunk.has_tail):
            self._emit_all(body)
        if chunk.has_tail:
            self._emit("C_SET_V_MASK", self._sampling.tail(self._engine.vlen))
            self._emit_all(body)
            self._emit("C_SET_V_MASK", self._engine.vlen)

    # Batch rows: the positions to commit.

    def _commit(self) -> None:
        rows, batch = self._sampling.rows, self._sampling.batch
        self._add(PREDICTION, PREDICTION, -rows)
        self._add(CONFIDENCE, MASK, batch)
        self._add(TRANSFER, MASK, -batch)
        self._add(TOKEN, PREDICTION, -batch * rows)
        self._emit("S_MAP_V_FP", CONFIDENCE, _ZERO, rows)
        self._emit("S_LD_INT", K, K_ADDRESS, 0)
        self._emit("V_TOPK_MASK", TRANSFER, CONFIDENCE, MASK, K, rows)
        self._emit("S_SELECT_INT", PREDICTION, PREDICTION, TOKEN, MASK, rows)
        self._emit("S_SELECT_INT", TOKEN, PREDICTION, TOKEN, TRANSFER, rows)
        self._add(K_ADDRESS, K_ADDRESS, 1)
        self._add(PREDICTION, PREDICTION, rows)
        self._add(MASK, MASK, 1)

    def _emit(self, name: str, *operands: int) -> None:
        self._emitted.append(Instruction(name, operands))

    def _emit_all(self, instructions: tuple[tuple, ...]) -> None:
        self._emitted += (Instruction(name, tuple(operands)) for name, *operands in instructions)

    def _add(self, to: int, a: int, value: int) -> None:
        self._emit("S_ADDI_INT", to, a, value)

    def _set(self, to: int, value: int) -> None:
        self._add(to, _ZERO, value)

    @contextmanager
    def _loop(self, counter: int, count: int) -> Iterator[None]:
        """Repeats the instructions emitted inside; a count of 1 needs no loop, 0 drops them."""
        start = len(self._emitted)
        if count > 1:
            self._emit("C_LOOP_START", counter, count)
        yield
        if count > 1:
            self._emit("C_LOOP_END", counter)
        if count == 0:
            del self._emitted[start:]


def _pieces(total: int, size: int) -> list[int]:
    """Divides a number of rows into pieces of a size; the last one may be smaller."""
    full, rest = divmod(total, size)
    return [size] * full + [rest] * (rest > 0)
