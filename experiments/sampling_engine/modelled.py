"""What the cycle model says of the engine: time, traffic, memory, area and energy."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import get_args

from experiments.harness.results import ResultRow
from experiments.sampling_engine.flips import FlipsConfig
from llada_jax.config import require
from llada_jax.sampling_engine import paper_results
from llada_jax.sampling_engine.area import area_mm2, energy_mj, power_mw
from llada_jax.sampling_engine.cycles import (
    FITTED_TO,
    Timing,
    TimingConfig,
    fitted_hbm,
    time_program,
)
from llada_jax.sampling_engine.gpu import BASELINES, roofline_ms
from llada_jax.sampling_engine.instructions import COLUMNS
from llada_jax.sampling_engine.memories import EngineConfig
from llada_jax.sampling_engine.programs import SamplerProgram, compile_sampler
from llada_jax.sampling_engine.sampling import Mode, Sampling

MODES: tuple[Mode, ...] = get_args(Mode)
TABLE = f"{paper_results.PAPER}, table of results"
ENOUGH_MEMORY = 1 << 30


@dataclass(frozen=True, kw_only=True)
class SweepsConfig:
    """One axis at a time. The comments are in conf/sampling_engine.yaml."""

    rows: int = 64
    vlen: int = 2048
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    blocks: tuple[int, ...] = (8, 16, 32, 64)
    vocabs: tuple[int, ...] = (32000, 64000, 126464, 157184)
    vlens: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096)
    chunks: tuple[int, ...] = (1, 2, 4, 8, 16, 31, 62)


@dataclass(frozen=True, kw_only=True)
class SamplingEngineConfig:
    """What to model and measure. The comments are in conf/sampling_engine.yaml."""

    batch: int = paper_results.BATCH
    rows: int = paper_results.ROWS
    vocab: int = paper_results.VOCAB
    vlens: tuple[int, ...] = (512, 1024, 2048)
    chunk_rows: int = 4
    sweeps: SweepsConfig = field(default_factory=SweepsConfig)
    flips: FlipsConfig = field(default_factory=FlipsConfig)
    seed: int = 0
    full_size: bool = True
    hardware: bool = True
    plots: bool = True

    def __post_init__(self) -> None:
        require(bool(self.vlens), "vlens is empty; allowed: at least one vector length")
        for vlen in self.vlens:
            EngineConfig(vlen=vlen)
        _ = self.sampling()
        require(
            self.flips.k <= self.rows,
            f"flips.k is {self.flips.k}; allowed: up to rows ({self.rows})",
        )

    def sampling(self, mode: Mode = "performance") -> Sampling:
        return Sampling(
            batch=self.batch,
            rows=self.rows,
            vocab=self.vocab,
            mode=mode,
            chunk_rows=self.chunk_rows,
        )

    @property
    def is_published_case(self) -> bool:
        shape = (self.batch, self.rows, self.vocab)
        return shape == (paper_results.BATCH, paper_results.ROWS, paper_results.VOCAB)


ProgramsByCase = Mapping[tuple[Mode, int], SamplerProgram]
"""Programs by mode and vector length."""


def modelled_rows(config: SamplingEngineConfig, programs: ProgramsByCase) -> Iterator[ResultRow]:
    """Yields all that is modelled."""
    yield from fit_rows()
    yield from latency_rows(config, programs)
    yield from sensitivity_rows(config, programs)
    yield from gpu_rows(config)
    yield from footprint_rows(programs)
    yield from area_rows(config, programs)
    yield from sweep_rows(config)


def _timed(program: SamplerProgram) -> Timing:
    return time_program(program, TimingConfig(hbm=fitted_hbm()))


def _modelled(name: str, value: float, unit: str, **more) -> ResultRow:
    return ResultRow(name, value, unit, kind="modelled", **more)


def fit_rows() -> Iterator[ResultRow]:
    """Yields the two constants that were fitted."""
    hbm = fitted_hbm()
    source = f"fitted to {FITTED_TO} of {paper_results.PAPER}"
    yield _modelled("fit/hbm_latency_ns", hbm.latency, "ns", source=source)
    yield _modelled("fit/hbm_gb_per_s", 1024 / hbm.per_kib, "GB/s", source=source)


def latency_rows(config: SamplingEngineConfig, programs: ProgramsByCase) -> Iterator[ResultRow]:
    """Yields the published rows and breakdown, then the other programs at the same lengths."""
    table = {row.vlen: row for row in paper_results.RESULTS} if config.is_published_case else {}
    for vlen in config.vlens:
        cycles = _timed(programs["performance", vlen]).cycles
        row = table.get(vlen)
        paper = dict(reference=row.latency_ms, source=f"{TABLE}; {_role(vlen)}") if row else {}
        yield _modelled(f"vlen{vlen}/latency_ms", cycles.ms, "ms", **paper)
        if row:
            yield _modelled(
                f"vlen{vlen}/speedup_vs_a6000", paper_results.A6000_MS / cycles.ms, "x faster",
                reference=paper_results.A6000_MS / row.latency_ms, source=TABLE,
            )  # fmt: skip
        if vlen == 2048 and row:
            yield from _breakdown_rows(cycles._asdict())
    for mode in MODES[1:]:
        for vlen in config.vlens:
            timing = _timed(programs[mode, vlen])
            yield _modelled(f"{mode}/vlen{vlen}/latency_ms", timing.cycles.ms, "ms")
            for unit, cycles in timing.cycles._asdict().items():
                yield _modelled(f"{mode}/vlen{vlen}/{unit}_cycles", cycles, "cycles")
            yield _modelled(f"{mode}/vlen{vlen}/hbm_mb", timing.hbm_bytes / 1e6, "MB")


def _role(vlen: int) -> str:
    """Says what a published latency is to the model."""
    return {512: "fitted", 1024: "predicted"}.get(vlen, "predicted but for its memory cycles")


def _breakdown_rows(cycles: dict[str, float]) -> Iterator[ResultRow]:
    role = dict.fromkeys(cycles, "predicted") | {"memory": "fitted"}
    for unit, value in cycles.items():
        yield _modelled(
            f"vlen2048/{unit}_cycles",
            value,
            "cycles",
            reference=getattr(paper_results.BREAKDOWN, unit),
            source=f"{paper_results.PAPER}, breakdown; {role[unit]}",
        )


def sensitivity_rows(config: SamplingEngineConfig, programs: ProgramsByCase) -> Iterator[ResultRow]:
    """Yields what the published numbers leave out: other latency columns, and all scales of MX."""
    for vlen in config.vlens:
        for column in COLUMNS[1:]:
            for mode in ("performance", "one_pass_overlapped"):
                timing = TimingConfig(hbm=fitted_hbm(), column=column)
                cycles = time_program(programs[mode, vlen], timing).cycles
                yield _modelled(f"{column}/{mode}/vlen{vlen}/latency_ms", cycles.ms, "ms")
        timing = TimingConfig(hbm=fitted_hbm(), scale_traffic="full")
        cycles = time_program(programs["performance", vlen], timing).cycles
        yield _modelled(f"full_scales/vlen{vlen}/latency_ms", cycles.ms, "ms")


def gpu_rows(config: SamplingEngineConfig) -> Iterator[ResultRow]:
    """Yields what the same sampling costs on GPUs at the least, unfused and fused."""
    logits = config.batch * config.rows * config.vocab
    for gpu in (paper_results.A6000, paper_results.H100):
        for name, passes in BASELINES.items():
            more = {}
            if (gpu, name) == (paper_results.A6000, "unfused_float64") and config.is_published_case:
                more = dict(reference=paper_results.A6000_MS, source=f"{TABLE}: the A6000")
            ms = roofline_ms(gpu, passes, logits)
            yield _modelled(f"gpu/{gpu.name}/{name}/latency_ms", ms, "ms", **more)


def footprint_rows(programs: ProgramsByCase) -> Iterator[ResultRow]:
    """Yields bytes of each memory that a program uses."""
    for (mode, vlen), program in programs.items():
        for domain in ("vector", "fp", "int"):
            size = program.memory_map.size(domain, program.engine)
            yield _modelled(f"memory/{mode}/vlen{vlen}/{domain}_bytes", size, "bytes")


def area_rows(config: SamplingEngineConfig, programs: ProgramsByCase) -> Iterator[ResultRow]:
    """Yields area, power, and the energy of one block's step."""
    table = {row.vlen: row for row in paper_results.SYNTHESIS}
    for vlen in config.vlens:
        row, source = table.get(vlen), f"{paper_results.PAPER}, Table IV; the slope is fitted to it"
        area = dict(reference=row.area_mm2, source=source) if row else {}
        power = dict(reference=row.power_mw, source=source) if row else {}
        yield _modelled(f"area/vlen{vlen}/mm2", area_mm2(vlen), "mm2", **area)
        yield _modelled(f"area/vlen{vlen}/mw", power_mw(vlen), "mW", **power)
        for mode in MODES:
            energy = energy_mj(vlen, _timed(programs[mode, vlen]).cycles.ms)
            yield _modelled(f"energy/{mode}/vlen{vlen}/mj", energy, "mJ")


def sweep_rows(config: SamplingEngineConfig) -> Iterator[ResultRow]:
    """Yields one axis at a time, with memory enough for all."""
    sweeps = config.sweeps
    base = replace(config.sampling("edge"), rows=sweeps.rows)
    axes = (
        ("batch", "batch", sweeps.batches),
        ("block", "rows", sweeps.blocks),
        ("vocab", "vocab", sweeps.vocabs),
        ("chunk", "chunk_rows", sweeps.chunks),
    )
    for mode in MODES:
        for axis, name, values in axes:
            for value in values:
                sampling = replace(base, mode=mode, **{name: value})
                yield _sweep_row(f"{axis}/{value}", sampling, sweeps.vlen)
        for vlen in sweeps.vlens:
            yield _sweep_row(f"vlen/{vlen}", replace(base, mode=mode), vlen)


def _sweep_row(point: str, sampling: Sampling, vlen: int) -> ResultRow:
    engine = EngineConfig(
        vlen=vlen, vector_bytes=ENOUGH_MEMORY, fp_words=max(vlen, 1024), int_bytes=ENOUGH_MEMORY
    )
    ms = _timed(compile_sampler(sampling, engine)).cycles.ms
    return _modelled(f"sweep/{sampling.mode}/{point}/latency_ms", ms, "ms")
