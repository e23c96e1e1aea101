"""How long a program takes: in order, one instruction at a time, with a linear model of HBM.

Modelled, not measured. A started load (ours) runs beside the instructions that follow it; HBM
serves one after the other.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import groupby
from typing import Literal, NamedTuple, TypeAlias

from llada_jax.config import require, require_choice
from llada_jax.sampling_engine import paper_results
from llada_jax.sampling_engine.assembly import Loop, Node, nested
from llada_jax.sampling_engine.formats import LogitFormat, bits_per_element
from llada_jax.sampling_engine.instructions import (
    INSTRUCTION_SET,
    PREFETCH_ROWS,
    Column,
    Instruction,
)
from llada_jax.sampling_engine.memories import EngineConfig
from llada_jax.sampling_engine.programs import SamplerProgram, compile_sampler
from llada_jax.sampling_engine.sampling import Mode, Sampling

ScaleTraffic = Literal["published", "full"]
REQUEST_BYTES = 64
CYCLES_PER_MS = 1_000_000  # 1 GHz


class Hbm(NamedTuple):
    """Time of one load: a latency, and the bytes at a rate. In cycles of 1 ns."""

    latency: float
    per_kib: float

    def transfer(self, size: float) -> float:
        """Cycles that the bytes themselves take."""
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
        """Bytes that HBM moves for a row of VLEN logits."""
        if not self.logits.startswith("mx_"):
            return vlen * bits_per_element(self.logits) / 8
        scales = vlen * (bits_per_element(self.logits) - 8) / 8
        requests = 1 if self.scale_traffic == "published" else -(-scales // REQUEST_BYTES)
        return vlen + requests * REQUEST_BYTES


class Cycles(NamedTuple):
    """Where the time of a program goes; memory is what it waits for HBM."""

    vector: float = 0.0
    memory: float = 0.0
    scalar: float = 0.0
    control: float = 0.0

    @property
    def total(self) -> float:
        return sum(self)

    @property
    def ms(self) -> float:
        """Milliseconds at 1 GHz."""
        return self.total / CYCLES_PER_MS

    def plus(self, other: "Cycles", times: int = 1) -> "Cycles":
        return Cycles(*(a + times * b for a, b in zip(self, other, strict=True)))


class Timing(NamedTuple):
    """What a program costs."""

    cycles: Cycles
    hbm_bytes: float
    instructions: Counter[str]


def time_program(program: SamplerProgram, config: TimingConfig) -> Timing:
    """Counts time, traffic, and how often each instruction runs."""
    nodes = nested(program.instructions)
    counts = count_instructions(nodes)
    vlen = program.engine.vlen
    clock = _Clock(config, vlen)
    clock.run(_segments(nodes, config, vlen))
    loaded = sum(
        times * instruction.operands[2]
        for instruction, times in counts.items()
        if instruction.name in ("H_PREFETCH_V", "H_START_V")
    )
    names: Counter[str] = Counter()
    for instruction, times in counts.items():
        names[instruction.name] += times
    return Timing(clock.spent, loaded * config.row_bytes(vlen), names)


def count_instructions(nodes: Sequence[Node]) -> Counter[Instruction]:
    """Counts how often each instruction runs; both ends of a loop once each time it is entered."""
    counts: Counter[Instruction] = Counter()
    for node in nodes:
        if isinstance(node, Loop):
            for instruction in _ends(node):
                counts[instruction] += 1
            for instruction, times in count_instructions(node.body).items():
                counts[instruction] += node.count * times
        else:
            counts[node] += 1
    return counts


def _ends(loop: Loop) -> tuple[Instruction, Instruction]:
    return (
        Instruction("C_LOOP_START", (loop.counter, loop.count)),
        Instruction("C_LOOP_END", (loop.counter,)),
    )


class _Repeat(NamedTuple):
    count: int
    body: "tuple[_Segment, ...]"


_Segment: TypeAlias = Cycles | Instruction | _Repeat
"""Cycles of instructions that depend on no load, a started load or a wait, or a loop with such."""


def _segments(nodes: Sequence[Node], config: TimingConfig, vlen: int) -> tuple[_Segment, ...]:
    """Sums everything up that takes the same time whenever it runs."""
    segments: list[_Segment] = []
    for node in nodes:
        segment: _Segment
        if isinstance(node, Loop):
            start, end = (_cost(instruction, config, vlen) for instruction in _ends(node))
            body = _segments(node.body, config, vlen)
            if len(body) == 1 and isinstance(body[0], Cycles):
                segment = start.plus(end).plus(body[0], node.count)
            else:
                segments += [start, _Repeat(node.count, body)]
                segment = end
        elif node.name in ("H_START_V", "H_WAIT"):
            segments += [_cost(node, config, vlen)]
            segment = node
        else:
            segment = _cost(node, config, vlen)
        segments.append(segment)
    return tuple(_joined(segments))


def _joined(segments: Sequence[_Segment]) -> Iterator[_Segment]:
    for static, group in groupby(segments, lambda segment: isinstance(segment, Cycles)):
        if static:
            yield reduce(Cycles.plus, group, Cycles())  # pyright: ignore[reportArgumentType]
        else:
            yield from group


def _cost(instruction: Instruction, config: TimingConfig, vlen: int) -> Cycles:
    """Returns cycles of one instruction, and of a load that waits."""
    spec = INSTRUCTION_SET[instruction.name]
    if instruction.name == "H_PREFETCH_V":
        size = instruction.operands[2] * config.row_bytes(vlen)
        return Cycles(memory=config.hbm.latency + config.hbm.transfer(size))
    place = spec.operand_index("length")
    length = 0 if place is None else instruction.operands[place]
    return Cycles(**{spec.unit: spec.latency[config.column].cycles(vlen, length)})


class _Clock:
    """The time since the program's start, and the loads on their way."""

    def __init__(self, config: TimingConfig, vlen: int) -> None:
        self._hbm, self._row_bytes = config.hbm, config.row_bytes(vlen)
        self.spent = Cycles()
        self._now = 0.0
        self._hbm_free = 0.0
        self._arrivals: deque[float] = deque()

    def run(self, segments: Sequence[_Segment]) -> None:
        for segment in segments:
            if isinstance(segment, Cycles):
                self._advance(segment)
            elif isinstance(segment, _Repeat):
                self._repeat(segment)
            elif segment.name == "H_WAIT":
                self._wait(segment.operands[0])
            else:
                self._start(segment.operands[2])

    def _repeat(self, loop: _Repeat) -> None:
        """As soon as a round leaves the loads as it found them, the others are like it."""
        for done in range(1, loop.count + 1):
            loads, spent = self._loads_ahead(), self.spent
            self.run(loop.body)
            if self._loads_ahead() == loads:
                round_ = self.spent.plus(spent, -1)
                self._shift(round_, loop.count - done)
                return

    def _loads_ahead(self) -> tuple[float, ...]:
        """Returns when HBM is free and loads arrive, from now on, to a millionth of a cycle."""
        ahead = (time - self._now for time in (self._hbm_free, *self._arrivals))
        return tuple(round(max(0.0, time), 6) for time in ahead)

    def _shift(self, cycles: Cycles, times: int) -> None:
        """Lets rounds pass that only move the loads."""
        self.spent = self.spent.plus(cycles, times)
        later = cycles.total * times
        self._now += later
        self._hbm_free += later
        self._arrivals = deque(time + later for time in self._arrivals)

    def _advance(self, cycles: Cycles) -> None:
        self.spent = self.spent.plus(cycles)
        self._now += cycles.total

    def _start(self, rows: int) -> None:
        """Sends the bytes of one load after those of the one before; latencies overlap."""
        sent = max(self._now, self._hbm_free)
        self._hbm_free = sent + self._hbm.transfer(rows * self._row_bytes)
        self._arrivals.append(self._hbm_free + self._hbm.latency)

    def _wait(self, started: int) -> None:
        while len(self._arrivals) > started:
            self._advance(Cycles(memory=max(0.0, self._arrivals.popleft() - self._now)))


# The two constants of HBM, and what they were fitted to.

FITTED_TO = "the memory cycles at VLEN = 2048 and the latency at VLEN = 512"


@lru_cache
def fitted_hbm() -> Hbm:
    """Solves for latency and rate, from two published numbers (`FITTED_TO`).

    The latency at VLEN = 1024, and everything else at 2048 and 512, is then a prediction.
    """
    small, large = paper_results.RESULTS[0], paper_results.RESULTS[-1]
    nothing = TimingConfig(hbm=Hbm(0.0, 0.0))
    other = time_program(published_program(small.vlen), nothing).cycles.total
    loads_of_small = _loads(small.vlen)
    per_small = (small.latency_ms * CYCLES_PER_MS - other) / loads_of_small
    per_large = paper_results.BREAKDOWN.memory / _loads(large.vlen)
    kib_small, kib_large = (
        PREFETCH_ROWS * nothing.row_bytes(vlen) / 1024 for vlen in (small.vlen, large.vlen)
    )
    rate = (per_large - per_small) / (kib_large - kib_small)
    return Hbm(latency=per_small - rate * kib_small, per_kib=rate)


@lru_cache
def published_program(vlen: int, mode: Mode = "performance") -> SamplerProgram:
    """Compiles the program of the published table: one step of 16 blocks of 32 positions."""
    sampling = Sampling(
        batch=paper_results.BATCH, rows=paper_results.ROWS, vocab=paper_results.VOCAB, mode=mode
    )
    return compile_sampler(sampling, EngineConfig(vlen=vlen))


def _loads(vlen: int) -> int:
    nothing = TimingConfig(hbm=Hbm(0.0, 0.0))
    return time_program(published_program(vlen), nothing).instructions["H_PREFETCH_V"]
