"""A sampling engine beside a phone's NPU: the cycle model, on the phone's memory.

Modelled. Its loads have the latency that was fitted to the paper's HBM, and the rate of the NPU's
DMA; each logit is written by the head's product and read by the engine.
"""

from dataclasses import dataclass
from functools import cache

from llada_jax.config import require
from llada_jax.sampling_engine.cycles import Hbm, TimingConfig, fitted_hbm, time_program
from llada_jax.sampling_engine.formats import LogitFormat
from llada_jax.sampling_engine.instructions import Column
from llada_jax.sampling_engine.memories import EngineConfig
from llada_jax.sampling_engine.programs import compile_sampler
from llada_jax.sampling_engine.sampling import Mode, Sampling

KIB_AT_A_GB_PER_S = 1024.0
"""Nanoseconds."""


@dataclass(frozen=True, kw_only=True)
class AttachedConfig:
    """The engine and its program, as `EngineConfig`, `Sampling` and `TimingConfig` have them."""

    vlen: int = 2048
    clock_ghz: float = 1.0
    mode: Mode = "one_pass"
    chunk_rows: int = 4
    logits: LogitFormat = "bfloat16"
    column: Column = "calibrated"

    def __post_init__(self) -> None:
        require(self.clock_ghz > 0, f"clock_ghz is {self.clock_ghz}; allowed: above 0")
        self.sampling(rows=1, vocab=1)
        self.timing(Hbm(0.0, 0.0))
        EngineConfig(vlen=self.vlen)

    def sampling(self, rows: int, vocab: int) -> Sampling:
        return Sampling(batch=1, rows=rows, vocab=vocab, mode=self.mode, chunk_rows=self.chunk_rows)

    def timing(self, hbm: Hbm) -> TimingConfig:
        return TimingConfig(hbm=hbm, column=self.column, logits=self.logits, scale_traffic="full")


@dataclass(frozen=True)
class AttachedEngine:
    """The engine for one vocabulary. What it has scored it keeps, as long as the process lives."""

    config: AttachedConfig
    vocab: int

    @cache  # noqa: B019
    def scores(self, rows: int, gbps: float) -> tuple[float, float]:
        """Returns seconds and bytes of memory, where memory gives so many GB/s.

        Raises ValueError for rows that do not fit the engine's memories.
        """
        config, clock = self.config, self.config.clock_ghz
        program = compile_sampler(config.sampling(rows, self.vocab), EngineConfig(vlen=config.vlen))
        hbm = Hbm(fitted_hbm().latency * clock, KIB_AT_A_GB_PER_S / gbps * clock)
        timing = time_program(program, config.timing(hbm))
        return timing.cycles.ms / 1e3 / clock, 2 * timing.hbm_bytes
