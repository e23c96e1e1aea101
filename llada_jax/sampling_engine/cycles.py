"""Models the time of a program: instructions run one at a time in order, on a linear HBM model.

An instruction costs the cycles of its column: `calibrated` from the published simulator's table, or
`pipelined` for the hardware in `hdl`. A load costs a latency plus its bytes times a rate; both
constants are fitted to two published numbers (arXiv 2601.20706), and all other published numbers
test the model.
"""

from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from llada_jax.config import require, require_choice
from llada_jax.sampling_engine import paper_results
from llada_jax.sampling_engine.instructions import INSTRUCTION_SET, PREFETCH_ROWS, Column, loops
from llada_jax.sampling_engine.sampler_program import SamplerProgram, compile_sampler
from llada_jax.sampling_engine.sampling import EngineConfig, Mode, Sampling

_SCALES_BYTES = 64
"""Bytes of one request for the scales of a row of MX logits, as the published simulator counts;
from VLEN = 1024 on it would need more."""
_CYCLES_PER_MS = 1_000_000  # 1 GHz


class Hbm(NamedTuple):
    """Time of one load: a latency plus bytes times a rate, in cycles of 1 ns."""

    latency: float
    per_kib: float

    def load(self, size: float) -> float:
        """Returns the cycles of a load of `size` bytes."""
        return self.latency + self.per_kib * size / 1024


class Cycles(NamedTuple):
    """Cycles of a program by unit; `memory` is the time spent waiting for HBM."""

    vector: float
    memory: float
    scalar: float
    control: float

    @property
    def total(self) -> float:
        return sum(self)

    @property
    def ms(self) -> float:
        """Milliseconds at 1 GHz."""
        return self.total / _CYCLES_PER_MS


class ProgramCost(NamedTuple):
    """Cycles, traffic, and executed instructions of a program."""

    cycles: Cycles
    hbm_bytes: float
    instructions: Counter[str]


def row_bytes(vlen: int) -> int:
    """Returns the bytes that HBM moves for a row of VLEN logits in MX, one byte each plus
    scales."""
    return vlen + _SCALES_BYTES


def time_program(
    program: SamplerProgram, hbm: Hbm | None = None, column: Column = "calibrated"
) -> ProgramCost:
    """Returns time, traffic, and the number of executions of each instruction. `hbm` is fitted by
    default.

    Raises ValueError for negative times of HBM, an unknown column, and instructions that are not in
    hardware.
    """
    hbm = fitted_hbm() if hbm is None else hbm
    require(min(hbm) >= 0, f"hbm is {hbm}; allowed: 0 or more")
    require_choice("column", column, Column)
    vlen, ran, traffic = program.engine.vlen, Counter[str](), 0
    spent = dict.fromkeys(Cycles._fields, 0.0)
    starts, times = loops(program.instructions), 1
    for place, instruction in enumerate(program.instructions):
        if place in starts:  # the end of a loop is executed once per iteration, like its body
            times //= program.instructions[starts[place]].operand("count")
        spec = INSTRUCTION_SET[instruction.name]
        built = column != "pipelined" or spec.pipelined is not None
        require(built, f"{instruction.name} is not in hardware")
        ran[instruction.name] += times
        spent[spec.unit] += times * spec.cycles(column, vlen, instruction.operand("length"))
        if rows := instruction.operand("rows"):
            size = rows * row_bytes(vlen)
            spent["memory"] += times * hbm.load(size)
            traffic += times * size
        times *= instruction.operand("count") or 1
    return ProgramCost(Cycles(**spent), traffic, ran)


FITTED_TO = "the memory cycles at VLEN = 2048 and the latency at VLEN = 512"
"""The published numbers that determine the two constants of HBM."""


@lru_cache
def fitted_hbm() -> Hbm:
    """Returns latency and rate of HBM, from two published numbers (`FITTED_TO`).

    The model's latency at VLEN = 1024, and all its other numbers, are predictions.
    """
    small, large = (time_program(published_program(vlen), Hbm(0, 0)) for vlen in (512, 2048))
    wait = paper_results.LATENCY_MS[512] * _CYCLES_PER_MS - small.cycles.total
    per_small = wait / small.instructions["H_PREFETCH_V"]
    per_large = paper_results.CYCLES_AT_2048["memory"] / large.instructions["H_PREFETCH_V"]
    kib_small, kib_large = (PREFETCH_ROWS * row_bytes(vlen) / 1024 for vlen in (512, 2048))
    rate = (per_large - per_small) / (kib_large - kib_small)
    return Hbm(latency=per_small - rate * kib_small, per_kib=rate)


@lru_cache
def published_program(vlen: int, mode: Mode = "performance") -> SamplerProgram:
    """Compiles the program of the published results: one step of 16 blocks of 32 positions."""
    batch, rows, vocab = paper_results.BATCH, paper_results.ROWS, paper_results.VOCAB
    sampling = Sampling(batch=batch, rows=rows, vocab=vocab, mode=mode)
    return compile_sampler(sampling, EngineConfig(vlen=vlen))
