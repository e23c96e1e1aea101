"""Programs with their initial state, and units with numbers that run through their gates."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from llada_jax.sampling_engine.hdl.gates import Netlist
from llada_jax.sampling_engine.hdl.wires import Circuit, Wire, source
from llada_jax.sampling_engine.host import prepare_machine, random_inputs, store_logits
from llada_jax.sampling_engine.machine import Machine
from llada_jax.sampling_engine.sampler_program import SamplerProgram, compile_sampler
from llada_jax.sampling_engine.sampling import EngineConfig, Sampling
from tests.sampling_engine.hdl.gate_simulation import GateSimulation

Ints = NDArray[np.int64]


def prepared(sampling: Sampling, vlen: int, format="bfloat16") -> tuple[SamplerProgram, Machine]:
    """A program, and a machine with random logits; of more than three rows, some no numbers."""
    program = compile_sampler(sampling, EngineConfig(vlen=vlen, fp_words=64))
    inputs = random_inputs(3, sampling.batch, sampling.rows, sampling.vocab, 2)
    if sampling.rows > 3:
        inputs.logits[0, 0] = -np.inf
        inputs.logits[0, 1, ::3] = np.nan
        inputs.logits[0, 2, ::5] = np.inf
    inputs.open[-1, ::3] = False
    hbm = store_logits(sampling, vlen, inputs.logits, format)
    return program, prepare_machine(program, inputs, hbm)


def numbers(count: int, exponents=(0, 1, 2, 120, 125, 127, 130, 152, 253, 254)) -> Ints:
    """Bits of float32 numbers: close, far, subnormal, huge, round ones, zero, and -inf."""
    rng = np.random.default_rng(count)
    exponent = rng.choice(exponents, count)
    fraction = rng.integers(0, 1 << 23, count)
    for _ in range(2):
        fraction &= rng.integers(0, 1 << 23, count) | -rng.integers(0, 2, count)
    bits = rng.integers(0, 2, count) << 31 | exponent << 23 | fraction
    bits[::97] = 0xFF800000
    return np.asarray(bits, np.int64)


def bfloat16_rows(rows: int, lanes: int, seed: int = 0) -> NDArray[np.float32]:
    """Rows [rows, lanes] of BF16 numbers: of all magnitudes, close, equal, and zeros."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 4, (rows, lanes))
    wide = np.ldexp(rng.standard_normal(kinds.shape), rng.integers(-140, 100, kinds.shape))
    few = rng.integers(-3, 4, kinds.shape) * rng.choice([-0.5, 0.5], kinds.shape)
    values = np.select([kinds == 0, kinds == 1], [wide, rng.standard_normal(kinds.shape)], few)
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def bits16(values: np.ndarray) -> Ints:
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.int64)


def through(unit: Callable[..., Wire], width: int, *columns: Ints, cycles: int = 1) -> Ints:
    """Returns a unit's outputs for words of `width` bits, a number of cycles after the input."""
    ports = [source(f"x{i}", width) for i in range(len(columns))]
    netlist = Netlist(Circuit({"out": unit(*ports)}))
    simulation = GateSimulation(netlist, streams=len(columns[0]))
    inputs = {f"x{i}": column for i, column in enumerate(columns)}
    for _ in range(cycles):
        simulation.step(**inputs)
    return np.asarray(simulation.step(**inputs)["out"])
