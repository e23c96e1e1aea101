"""What lies in the engine's memories before and after a program, as words of bits."""

import numpy as np

from llada_jax.config import require
from llada_jax.sampling_engine.formats import StoredLogits, rounded
from llada_jax.sampling_engine.hdl.engine import Sizes
from llada_jax.sampling_engine.instructions import encode
from llada_jax.sampling_engine.machine import Machine
from llada_jax.sampling_engine.programs import SamplerProgram


def sizes_of(program: SamplerProgram) -> Sizes:
    """Returns the smallest engine that runs a program, with sizes that are powers of two."""
    words = {**program.memory_map.words, "program": len(program.instructions) + 1}
    sizes = {name: 1 << (each - 1).bit_length() for name, each in words.items()}
    return Sizes(program.engine.vlen, program.sampling.rows, sizes)


def images(program: SamplerProgram, machine: Machine) -> dict[str, list[int]]:
    """Returns the words of such an engine's memories by name, as a machine has them.

    Raises ValueError for vectors that are not BF16.
    """
    require(program.engine.vector_format == "bfloat16", "vectors in float32; in hardware: bfloat16")
    found = {
        "vector": _rows(machine.vector),
        "fp": np.array(machine.fp, np.float32).view(np.uint32).tolist(),
        "int": [number & 0xFFFFFFFF for number in machine.int],
        "program": encode(program.instructions),
    }
    sizes = sizes_of(program).words
    return {name: (words + [0] * sizes[name])[: sizes[name]] for name, words in found.items()}


def hbm_words(stored: StoredLogits) -> list[int]:
    """Returns the rows of HBM as they reach the engine, in BF16."""
    return _rows(rounded(stored.read(0, len(stored.elements)), "bfloat16"))


def _rows(numbers: np.ndarray) -> list[int]:
    """Returns a word for each row of BF16 numbers, lane 0 in its lowest bits."""
    bits = (np.ascontiguousarray(numbers, np.float32).view(np.uint32) >> 16).astype("<u2")
    return [int.from_bytes(row.tobytes(), "little") for row in bits]
