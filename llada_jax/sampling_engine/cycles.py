"""How long a program takes: in order, one instruction at a time, with a linear model of HBM.

Modelled, not measured. A started load (ours) runs beside the instructions that follow it; HBM
serves one after the other.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

from llada_jax.config import require, require_choice
from llada_jax.sampling_engine import paper_results
from llada_jax.sampling_engine.formats import LogitFormat, bits_per_element
from llada_jax.sampling_engine.instructions import (
    INSTRUCTION_SET,
    PREFETCH_ROWS,
    Column,
    Instruction,
    Loop,
    Node,
    Unit,
    nested,
)
from llada_jax.sampling_engine.memories import EngineConfig
from llada_jax.sampling_engine.programs import SamplerProgram, compile_sampler
from llada_jax.sampling_engine.sampling import Mode, Sampling

ScaleTraffic = Literal["published", "full"]
REQUEST_BYTES = 64
CYCLES_PER_MS = 1_000_000  # 1 GHz
_UNITS = get_args(Unit)


class Hbm(NamedTuple):
    """Time of one load: a latency, and the bytes at a rate. In cycles of 1 ns."""

    latency: float
    per_kib: float

    def transfer(self, size: float) -> float:
        """Returns the cycles that the bytes themselves take."""
        return self.per_kib * size / 1024


@dataclass(frozen=True, kw_only=True)
class TimingConfig:
    """What a program is timed with.

    Attributes:
      scale_traffic: how many scales a row of MX logits brings along: the published simulator asks
        for one request of 64 bytes a row, which is too few from VLEN = 1024 on; `full` counts all.
    """

    hbm: Hbm
    column: Column = "calibrated"
    logits: LogitFormat = "mx_e4m3"
    scale_traffic: ScaleTraffic = "published"

    def __post_init__(self) -> None:
        require_choice("column", self.column, Column)
        require_choice("logits", self.logits, LogitFormat)
        require_choice("scale_traffic", self.scale_traffic, ScaleTraffic)
        require(min(self.hbm) >= 0, f"hbm is {self.hbm}; allowed: 0 or more")

    def row_bytes(self, vlen: int) -> float:
        """Returns the bytes that HBM moves for a row of VLEN logits."""
        if not self.logits.startswith("mx_"):
            return vlen * bits_per_element(self.logits) / 8
        scales = vlen * (bits_per_element(self.logits) - 8) / 8
        requests = 1 if self.scale_traffic == "published" else -(-scales // REQUEST_BYTES)
        return vlen + requests * REQUEST_BYTES


class Cycles(NamedTuple):
    """Where the time of a program goes; memory is what it waits for HBM."""

    vector: float
    memory: float
    scalar: float
    control: float

    @property
    def total(self) -> float:
        return sum(self)

    @property
    def ms(self) -> float:
        """Returns milliseconds at 1 GHz."""
        return self.total / CYCLES_PER_MS


class Timing(NamedTuple):
    """What a program costs."""

    cycles: Cycles
    hbm_bytes: float
    instructions: Counter[str]


def time_program(program: SamplerProgram, config: TimingConfig) -> Timing:
    """Counts time, traffic, and how often each instruction runs."""
    clock = _Clock(config, program.engine.vlen)
    clock.run(nested(program.instructions))
    cycles = Cycles(**{unit: clock.spent[unit] for unit in _UNITS})
    return Timing(cycles, clock.spent["hbm_bytes"], clock.ran)


class _Clock:
    """The time since the program's start, and the loads on their way."""

    def __init__(self, config: TimingConfig, vlen: int) -> None:
        self._config, self._vlen = config, vlen
        self._row_bytes = config.row_bytes(vlen)
        self._hbm_free = 0.0
        self._arrivals: deque[float] = deque()
        self.spent: dict[str, float] = dict.fromkeys((*_UNITS, "hbm_bytes"), 0.0)
        self.ran: Counter[str] = Counter()

    @property
    def _now(self) -> float:
        return sum(self.spent[unit] for unit in _UNITS)

    def run(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if isinstance(node, Loop):
                self._execute(Instruction("C_LOOP_START", (node.counter, node.count)))
                self._repeat(node)
                self._execute(Instruction("C_LOOP_END", (node.counter,)))
            else:
                self._execute(node)

    def _repeat(self, loop: Loop) -> None:
        """Runs rounds until one leaves the loads as it found them: all others are like that one,
        and only move the loads."""
        for done in range(1, loop.count + 1):
            loads, began, spent, ran = self._loads_ahead(), self._now, {**self.spent}, self.ran
            self.ran = Counter()
            self.run(loop.body)
            others = loop.count - done if self._loads_ahead() == loads else 0
            later = (self._now - began) * others
            for what, before in spent.items():
                self.spent[what] += (self.spent[what] - before) * others
            self.ran = ran + Counter({name: n * (1 + others) for name, n in self.ran.items()})
            self._hbm_free += later
            self._arrivals = deque(time + later for time in self._arrivals)
            if others:
                return

    def _loads_ahead(self) -> tuple[float, ...]:
        """Returns when HBM is free and loads arrive, from now on, to a millionth of a cycle."""
        now = self._now
        ahead = (time - now for time in (self._hbm_free, *self._arrivals))
        return tuple(round(max(0.0, time), 6) for time in ahead)

    def _execute(self, instruction: Instruction) -> None:
        """Lets the time of an instruction pass, and of loads that it waits for."""
        spec, hbm = INSTRUCTION_SET[instruction.name], self._config.hbm
        length, size = instruction.operand("length"), instruction.operand("rows") * self._row_bytes
        self.ran[instruction.name] += 1
        self.spent["hbm_bytes"] += size
        self.spent[spec.unit] += spec.cycles(self._config.column, self._vlen, length)
        if instruction.name == "H_PREFETCH_V":
            self.spent["memory"] += hbm.latency + hbm.transfer(size)
        elif instruction.name == "H_START_V":
            # The bytes of one load come after those of the one before; latencies overlap.
            self._hbm_free = max(self._now, self._hbm_free) + hbm.transfer(size)
            self._arrivals.append(self._hbm_free + hbm.latency)
        elif instruction.name == "H_WAIT":
            while len(self._arrivals) > instruction.operand("started"):
                self.spent["memory"] += max(0.0, self._arrivals.popleft() - self._now)


# The two constants of HBM, and what they were fitted to.

FITTED_TO = "the memory cycles at VLEN = 2048 and the latency at VLEN = 512"


@lru_cache
def fitted_hbm() -> Hbm:
    """Returns latency and rate, from two published numbers (`FITTED_TO`).

    The latency at VLEN = 1024, and everything else at 2048 and 512, is then a prediction.
    """
    nothing = TimingConfig(hbm=Hbm(0.0, 0.0))
    small, large = (time_program(published_program(vlen), nothing) for vlen in (512, 2048))
    waited = paper_results.LATENCY_MS[512] * CYCLES_PER_MS - small.cycles.total
    per_small = waited / small.instructions["H_PREFETCH_V"]
    per_large = paper_results.CYCLES_AT_2048["memory"] / large.instructions["H_PREFETCH_V"]
    kib_small, kib_large = (PREFETCH_ROWS * nothing.row_bytes(vlen) / 1024 for vlen in (512, 2048))
    rate = (per_large - per_small) / (kib_large - kib_small)
    return Hbm(latency=per_small - rate * kib_small, per_kib=rate)


@lru_cache
def published_program(vlen: int, mode: Mode = "performance") -> SamplerProgram:
    """Compiles the program of the published table: one step of 16 blocks of 32 positions."""
    sampling = Sampling(
        batch=paper_results.BATCH, rows=paper_results.ROWS, vocab=paper_results.VOCAB, mode=mode
    )
    return compile_sampler(sampling, EngineConfig(vlen=vlen))
