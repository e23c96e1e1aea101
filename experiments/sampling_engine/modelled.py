"""What the cycle model says of the engine: time and traffic."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, get_args

from experiments.harness.results import Kind, ResultRow
from experiments.sampling_engine.flips import FlipsConfig
from experiments.sampling_engine.format_costs import AnswersConfig
from experiments.sampling_engine.gpu_share import share_rows
from llada_jax.config import require
from llada_jax.sampling_engine import paper_results as paper
from llada_jax.sampling_engine.cycles import FITTED_TO, fitted_hbm, time_program
from llada_jax.sampling_engine.memories import EngineConfig
from llada_jax.sampling_engine.programs import SamplerProgram, compile_sampler
from llada_jax.sampling_engine.sampling import Mode, Sampling

MODES: tuple[Mode, ...] = get_args(Mode)
TABLE = f"{paper.PAPER}, table of results"


@dataclass(frozen=True, kw_only=True)
class SamplingEngineConfig:
    """What to model and measure. The comments are in conf/sampling_engine.yaml."""

    batch: int = paper.BATCH
    rows: int = paper.ROWS
    vocab: int = paper.VOCAB
    vlens: tuple[int, ...] = (512, 1024, 2048)
    chunk_rows: int = 4
    flips: FlipsConfig = field(default_factory=FlipsConfig)
    answers: AnswersConfig = field(default_factory=AnswersConfig)
    seed: int = 0
    hardware: bool = True

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
            batch=self.batch, rows=self.rows, vocab=self.vocab, mode=mode,
            chunk_rows=self.chunk_rows,
        )  # fmt: skip

    @property
    def is_published_case(self) -> bool:
        return (self.batch, self.rows, self.vocab) == (paper.BATCH, paper.ROWS, paper.VOCAB)


ProgramsByCase = Mapping[tuple[Mode, int], SamplerProgram]
"""Programs by mode and vector length."""


def modelled_rows(config: SamplingEngineConfig, programs: ProgramsByCase) -> Iterator[ResultRow]:
    """Yields all that is modelled."""
    yield from fit_rows()
    yield from latency_rows(config, programs)
    yield from sensitivity_rows(config, programs)
    yield from gpu_rows(config)
    yield from share_rows()


def _modelled(
    name: str, value: float, unit: str, kind: Kind = "modelled", **more: Any
) -> ResultRow:
    return ResultRow(name, value, unit, kind=kind, **more)


def _beside(known: Mapping[int, float], vlen: int, source: str) -> dict[str, Any]:
    """Returns the published value at a vector length, where there is one, and its source."""
    return {"reference": known[vlen], "source": source} if vlen in known else {}


def fit_rows() -> Iterator[ResultRow]:
    """Yields the two constants that were fitted."""
    hbm = fitted_hbm()
    source = f"fitted to {FITTED_TO} of {paper.PAPER}"
    yield _modelled("fit/hbm_latency_ns", hbm.latency, "ns", "fitted", source=source)
    yield _modelled("fit/hbm_gb_per_s", 1024 / hbm.per_kib, "GB/s", "fitted", source=source)


LATENCY_KINDS: Mapping[int, Kind] = {512: "fitted", 2048: "informed"}
"""Of the latencies' rows; at 2048 the memory cycles are fitted."""
CYCLES_KINDS: Mapping[str, Kind] = {"memory": "fitted", "vector": "informed"}
"""What a top-k unit takes was chosen with the published total of the vector cycles in view."""


def latency_rows(config: SamplingEngineConfig, programs: ProgramsByCase) -> Iterator[ResultRow]:
    """Yields the published rows and breakdown, then the other programs at the same lengths."""
    table = paper.LATENCY_MS if config.is_published_case else {}
    for vlen in config.vlens:
        cycles = time_program(programs["performance", vlen]).cycles
        known = _beside(table, vlen, TABLE)
        kind = LATENCY_KINDS.get(vlen, "modelled") if known else "modelled"
        yield _modelled(f"vlen{vlen}/latency_ms", cycles.ms, "ms", kind, **known)
        if not known:
            continue
        yield _modelled(
            f"vlen{vlen}/speedup_vs_a6000", paper.A6000_MS / cycles.ms, "x faster", "repeated",
            reference=paper.A6000_MS / table[vlen], source=TABLE,
        )  # fmt: skip
        if vlen == 2048:
            yield from _breakdown_rows(cycles._asdict())
    for mode in MODES[1:]:
        for vlen in config.vlens:
            timing = time_program(programs[mode, vlen])
            yield _modelled(f"{mode}/vlen{vlen}/latency_ms", timing.cycles.ms, "ms")
            for unit, cycles in timing.cycles._asdict().items():
                yield _modelled(f"{mode}/vlen{vlen}/{unit}_cycles", cycles, "cycles")
            yield _modelled(f"{mode}/vlen{vlen}/hbm_mb", timing.hbm_bytes / 1e6, "MB")


def _breakdown_rows(cycles: dict[str, float]) -> Iterator[ResultRow]:
    for unit, value in cycles.items():
        yield _modelled(
            f"vlen2048/{unit}_cycles", value, "cycles", CYCLES_KINDS.get(unit, "modelled"),
            reference=paper.CYCLES_AT_2048[unit], source=f"{paper.PAPER}, breakdown",
        )  # fmt: skip


def sensitivity_rows(config: SamplingEngineConfig, programs: ProgramsByCase) -> Iterator[ResultRow]:
    """Yields what the published numbers leave out: reductions as deep as their trees, and noise."""
    for vlen in config.vlens:
        ms = time_program(programs["performance", vlen], column="tree").cycles.ms
        yield _modelled(f"tree/performance/vlen{vlen}/latency_ms", ms, "ms")
        noisy = replace(config.sampling("one_pass"), noisy=True)
        timing = time_program(compile_sampler(noisy, EngineConfig(vlen=vlen)))
        yield _modelled(f"temperature/one_pass/vlen{vlen}/latency_ms", timing.cycles.ms, "ms")


def gpu_rows(config: SamplingEngineConfig) -> Iterator[ResultRow]:
    """Yields what the same sampling costs on GPUs at the least, unfused and fused."""
    logits = config.batch * config.rows * config.vocab
    for gpu, sampler in product(paper.GPU_BYTES_PER_SECOND, paper.GPU_BYTES_A_LOGIT):
        known = {}
        if (gpu, sampler, config.is_published_case) == ("a6000", "unfused_float64", True):
            known = {"reference": paper.A6000_MS, "source": f"{TABLE}: the A6000"}
        ms = paper.roofline_ms(gpu, sampler, logits)
        yield _modelled(f"gpu/{gpu}/{sampler}/latency_ms", ms, "ms", **known)
