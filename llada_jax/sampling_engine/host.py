"""The host's part of a sampler: prepares the engine's memories, and reads the results."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llada_jax.config import require
from llada_jax.sampling_engine.formats import Floats, LogitFormat, StoredLogits, largest, store
from llada_jax.sampling_engine.machine import Machine
from llada_jax.sampling_engine.sampler_program import SamplerProgram, compile_sampler
from llada_jax.sampling_engine.sampling import EngineConfig, Sampling, VectorFormat

Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]


class StepInputs(NamedTuple):
    """The state of a batch of blocks before a step, and its logits [batch, rows, vocab]."""

    logits: Floats
    tokens: Ints
    open: Bools
    """Positions without a token."""
    k: Ints
    """Number of tokens to commit in each batch row."""


class Decisions(NamedTuple):
    """The results of a step for a batch of blocks [batch, rows]."""

    tokens: Ints
    predictions: Ints
    """Best tokens; at positions that were not open, the existing token."""
    transfer: Bools
    """Positions that were committed."""
    keys: Floats
    """Confidences by which they were chosen."""


def store_logits(
    sampling: Sampling, vlen: int, logits: Floats, format: LogitFormat, noise: Floats | None = None
) -> StoredLogits:
    """Arranges logits [batch, rows, vocab], and noise of the same shape, as the program expects
    them in HBM: vector rows of VLEN numbers, with the last row of each position padded.
    """
    shape = (sampling.batch, sampling.rows, sampling.vocab)
    arrays = [logits] if noise is None else [logits, noise]
    for array in arrays:
        require(array.shape == shape, f"logits have shape {array.shape}; allowed: {shape}")
    state = f"noisy is {sampling.noisy} and noise {'not ' * (noise is None)}given"
    require(len(arrays) == sampling.stride, f"{state}; allowed: both or neither")
    width = sampling.vector_rows(vlen) * vlen
    padded = np.zeros((*shape[:2], len(arrays), width), np.float32)
    padded[..., : sampling.vocab] = np.stack(arrays, axis=-2)
    by_row = padded.reshape(*shape[:2], len(arrays), -1, vlen).swapaxes(2, 3)
    return store(by_row.reshape(-1, vlen), format)


def run_sampler(program: SamplerProgram, inputs: StepInputs, hbm: StoredLogits) -> Decisions:
    """Runs a program on the functional machine, and reads the results."""
    machine = prepare_machine(program, inputs, hbm)
    machine.run(program.instructions)
    (batch, rows), memory_map = inputs.tokens.shape, program.memory_map

    def integers(start: int) -> Ints:
        return machine.int[start : start + batch * rows].astype(np.int32).reshape(batch, rows)

    def lanes(row: int) -> Floats:
        return machine.vector[row : row + batch, :rows]

    return Decisions(
        tokens=integers(memory_map.tokens),
        predictions=integers(memory_map.predictions),
        transfer=lanes(memory_map.transfer) != 0,
        keys=lanes(memory_map.confidence),
    )


def prepare_machine(program: SamplerProgram, inputs: StepInputs, hbm: StoredLogits) -> Machine:
    """Returns a machine with the blocks' state and the program's constant in its memories; `hbm` is
    the result of `store_logits`.

    Raises ValueError for shapes that do not match the program, and for k outside 0 to rows.
    """
    sampling, memory_map = program.sampling, program.memory_map
    block = (sampling.batch, sampling.rows)
    for name, shape in (("tokens", block), ("open", block), ("k", block[:1])):
        actual = getattr(inputs, name).shape
        require(actual == shape, f"{name} has shape {actual}; allowed: {shape}")
    for k in inputs.k.tolist():
        require(0 <= k <= sampling.rows, f"k is {k}; allowed: 0 to rows ({sampling.rows})")

    machine = Machine(program.engine, hbm)
    masks = slice(memory_map.mask, memory_map.mask + sampling.batch)
    machine.vector[masks, : sampling.rows] = inputs.open
    positions = sampling.batch * sampling.rows
    machine.int[memory_map.tokens : memory_map.tokens + positions] = inputs.tokens.ravel()
    machine.int[memory_map.k : memory_map.k + inputs.k.size] = inputs.k
    machine.fp[memory_map.lowest] = -largest(program.engine.vector_format)
    return machine


def decide(
    inputs: StepInputs,
    vlen: int,
    format: LogitFormat = "float32",
    vectors: VectorFormat = "float32",
) -> Decisions:
    """Returns the decisions of an engine on logits that are stored in a format, in one pass."""
    batch, rows, vocab = inputs.logits.shape
    sampling = Sampling(batch=batch, rows=rows, vocab=vocab, mode="one_pass")
    engine = EngineConfig(vlen=vlen, vector_format=vectors, int_bytes=1 << 20)
    stored = store_logits(sampling, vlen, inputs.logits, format)
    return run_sampler(compile_sampler(sampling, engine), inputs, stored)


def random_inputs(seed: int, batch: int, rows: int, vocab: int, k: int) -> StepInputs:
    """Draws logits: normal noise, and one id that is higher by a uniform amount, so that
    confidences cover the range from 0 to 1."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((batch, rows, vocab), dtype=np.float32)
    best = rng.integers(0, vocab, (batch, rows, 1))
    height = np.log(vocab) + rng.uniform(-4, 6, best.shape)
    np.put_along_axis(logits, best, height.astype(np.float32), axis=-1)
    tokens, commits = np.full((batch, rows), vocab - 1, np.int32), np.full(batch, k, np.int32)
    return StepInputs(logits, tokens, np.ones((batch, rows), bool), commits)
