"""The host's side of a sampler: what it writes before a program runs, and reads after."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llada_jax.config import require
from llada_jax.sampling_engine.formats import Floats, LogitFormat, StoredLogits, largest, store
from llada_jax.sampling_engine.machine import Machine
from llada_jax.sampling_engine.sampler_program import SamplerProgram
from llada_jax.sampling_engine.sampling import Sampling

Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]


class StepInputs(NamedTuple):
    """A block's state before a step, and the logits of the step [batch, rows, vocab]."""

    logits: Floats
    tokens: Ints
    open: Bools
    """Positions without a token."""
    k: Ints
    """How many tokens are committed in each batch row."""


class Decisions(NamedTuple):
    """What became of a block [batch, rows]."""

    tokens: Ints
    predictions: Ints
    """Best tokens; where a position was not open, its token."""
    transfer: Bools
    """Positions that were committed."""
    keys: Floats
    """What they were chosen by."""


def store_logits(
    sampling: Sampling, vlen: int, logits: Floats, format: LogitFormat, noise: Floats | None = None
) -> StoredLogits:
    """Lays logits [batch, rows, vocab] out as HBM holds them, and as many of noise.

    Vector rows have VLEN numbers; the last of each position is padded.
    """
    shape = (sampling.batch, sampling.rows, sampling.vocab)
    kinds = [logits] if noise is None else [logits, noise]
    for each in kinds:
        require(each.shape == shape, f"logits have shape {each.shape}; allowed: {shape}")
    found = f"noisy is {sampling.noisy} and noise {'not ' * (noise is None)}given"
    require(len(kinds) == sampling.stride, f"{found}; allowed: both or neither")
    width = sampling.vector_rows(vlen) * vlen
    padded = np.zeros((*shape[:2], len(kinds), width), np.float32)
    padded[..., : sampling.vocab] = np.stack(kinds, axis=-2)
    by_row = padded.reshape(*shape[:2], len(kinds), -1, vlen).swapaxes(2, 3)
    return store(by_row.reshape(-1, vlen), format)


def run_sampler(program: SamplerProgram, inputs: StepInputs, hbm: StoredLogits) -> Decisions:
    """Runs a program on the functional machine, as `loaded` prepares it, and reads what became of
    the block."""
    machine = loaded(program, inputs, hbm)
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


def loaded(program: SamplerProgram, inputs: StepInputs, hbm: StoredLogits) -> Machine:
    """Returns a machine with a block's state and the program's constant in its memories; its
    logits are those that `store_logits` made `hbm` of.

    Raises ValueError for shapes that are not the program's, and for k outside 0 to rows.
    """
    sampling, memory_map = program.sampling, program.memory_map
    block = (sampling.batch, sampling.rows)
    for name, shape in (("tokens", block), ("open", block), ("k", block[:1])):
        found = getattr(inputs, name).shape
        require(found == shape, f"{name} has shape {found}; allowed: {shape}")
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
