"""The host's side of a sampler: what it writes before a program runs, and reads after."""

import math

import numpy as np
from numpy.typing import NDArray

from llada_jax.config import require
from llada_jax.sampling_engine.formats import (
    Floats,
    LogitFormat,
    StoredLogits,
    before,
    largest,
    rounded_scalar,
    store,
)
from llada_jax.sampling_engine.machine import Machine
from llada_jax.sampling_engine.memories import ScalarFormat
from llada_jax.sampling_engine.programs import SamplerProgram
from llada_jax.sampling_engine.reference import Decisions, StepInputs
from llada_jax.sampling_engine.sampling import Sampling


def store_logits(
    sampling: Sampling,
    vlen: int,
    logits: NDArray[np.float32],
    format: LogitFormat,
    noise: NDArray[np.float32] | None = None,
) -> StoredLogits:
    """Lays logits [steps, batch, rows, vocab] out as HBM holds them, and as many of noise.

    Vector rows have VLEN numbers; the last of each position is padded, and after all positions
    there is room for a chunk that is loaded ahead.
    """
    shape = (sampling.steps, sampling.batch, sampling.rows, sampling.vocab)
    kinds = [logits] if noise is None else [logits, noise]
    for each in kinds:
        require(each.shape == shape, f"logits have shape {each.shape}; allowed: {shape}")
    require(
        len(kinds) == sampling.stride,
        f"noisy is {sampling.noisy} and noise {'not ' * (noise is None)}given; allowed: both or "
        "neither",
    )
    positions = math.prod(shape[:-1])
    width = sampling.vector_rows(vlen) * vlen
    padded = np.zeros((positions + 1, len(kinds), width), np.float32)
    padded[:-1, :, : sampling.vocab] = np.stack(kinds, axis=-2).reshape(positions, len(kinds), -1)
    by_row = padded.reshape(positions + 1, len(kinds), -1, vlen).swapaxes(1, 2)
    return store(by_row.reshape(-1, vlen), format)


def run_sampler(program: SamplerProgram, inputs: StepInputs, hbm: StoredLogits) -> Decisions:
    """Runs all steps of a program.

    Args:
      inputs: its logits are not read; `hbm` has them, from `store_logits`.

    Raises ValueError for shapes that are not the program's, and for k outside 0 to rows.
    """
    sampling, memory_map = program.sampling, program.memory_map
    block = (sampling.batch, sampling.rows)
    for name, array, shape in (
        ("tokens", inputs.tokens, block),
        ("open", inputs.open, block),
        ("k", inputs.k, (sampling.steps, sampling.batch)),
    ):
        require(array.shape == shape, f"{name} has shape {array.shape}; allowed: {shape}")
    for k in (int(inputs.k.min()), int(inputs.k.max())):
        require(0 <= k <= sampling.rows, f"k is {k}; allowed: 0 to rows ({sampling.rows})")

    machine = Machine(program.engine, hbm)
    masks = slice(memory_map.mask, memory_map.mask + sampling.batch)
    machine.vector[masks, : sampling.rows] = inputs.open
    positions = sampling.batch * sampling.rows
    machine.int[memory_map.tokens : memory_map.tokens + positions] = inputs.tokens.ravel().tolist()
    machine.int[memory_map.k : memory_map.k + inputs.k.size] = inputs.k.ravel().tolist()
    machine.fp[memory_map.fp_constants : memory_map.words["fp"]] = _constants(program)
    machine.run(program.instructions)

    def integers(start: int) -> NDArray[np.int32]:
        return np.array(machine.int[start : start + positions], np.int32).reshape(block)

    def lanes(row: int) -> Floats:
        return machine.vector[row : row + sampling.batch, : sampling.rows]

    transfer = lanes(memory_map.transfer) != 0
    return Decisions(
        tokens=integers(memory_map.tokens),
        predictions=integers(memory_map.predictions),
        transfer=transfer,
        open=(lanes(memory_map.mask) != 0) | transfer,
        keys=lanes(memory_map.confidence),
    )


def _constants(program: SamplerProgram) -> list[float]:
    """Returns `memories.CONSTANTS`.

    Odds subtract the number below 1 and not 1: then a position that is sure has finite odds, and
    one without any number, whose sum is 0, negative ones.
    """
    sampling, scalars = program.sampling, program.engine.scalar_format
    below_one = before(1.0, scalars)
    exceeded = 0.0
    if sampling.threshold is not None:
        exceeded = bound_to_exceed(sampling.threshold, scalars)
        if sampling.key == "odds" and exceeded:
            exceeded = rounded_scalar(1 / (1 / exceeded - below_one), scalars)
    return [-largest(program.engine.vector_format), exceeded, 1.0, below_one]


def bound_to_exceed(threshold: float, format: ScalarFormat) -> float:
    """Returns the b of a format, 0 or more, for which x > b says x >= threshold.

    For the top-k unit admits what is greater than 0, and nothing else.
    """
    bound = rounded_scalar(threshold, format)
    return max(before(bound, format) if bound >= threshold else bound, 0.0)
