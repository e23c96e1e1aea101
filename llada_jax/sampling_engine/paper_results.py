"""What is published of the engine and its baselines, each with its source."""

from typing import NamedTuple

PAPER = "arXiv 2601.20706 v1"


class ReportedLatency(NamedTuple):
    """A row of the table of results: one block of 16 x 32 positions, LLaDA-8B's vocabulary."""

    vlen: int
    latency_ms: float
    fp_bytes: int


class Synthesis(NamedTuple):
    """A row of Table IV: the vector datapath after synthesis, 7 nm, 1 GHz."""

    vlen: int
    area_mm2: float
    power_mw: float


class Breakdown(NamedTuple):
    """Cycles of the VLEN = 2048 result."""

    vector: int = 477_696
    memory: int = 392_320
    scalar: int = 117_412
    control: int = 3_609

    @property
    def total(self) -> int:
        return sum(self)


class Gpu(NamedTuple):
    """A GPU by the bandwidth of its memory."""

    name: str
    bytes_per_second: float
    source: str


BATCH, ROWS, VOCAB = 16, 32, 126_464
RESULTS = (
    ReportedLatency(512, 3.41, 1024),
    ReportedLatency(1024, 1.79, 2048),
    ReportedLatency(2048, 0.99, 4096),
)
BREAKDOWN = Breakdown()
A6000_MS = 2.51
"""The paper's GPU baseline, an RTX A6000."""
SYNTHESIS = (
    Synthesis(512, 0.731, 381.72),
    Synthesis(1024, 1.464, 762.65),
    Synthesis(2048, 2.931, 1524.53),
)
SCALAR_AREA_MM2 = 661e-6

A6000 = Gpu("a6000", 768e9, "NVIDIA RTX A6000 data sheet")
H100 = Gpu("h100", 3.35e12, "NVIDIA H100 SXM data sheet")
