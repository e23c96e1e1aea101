"""What is published of the engine and its baselines, and what follows from it by proportion."""

from statistics import fmean

PAPER = "arXiv 2601.20706 v1"
BATCH, ROWS, VOCAB = 16, 32, 126_464
"""The published case: one step of 16 blocks of 32 positions, with LLaDA-8B's vocabulary."""
LATENCY_MS = {512: 3.41, 1024: 1.79, 2048: 0.99}
"""The table of results, by VLEN."""
CYCLES_AT_2048 = {"vector": 477_696, "memory": 392_320, "scalar": 117_412, "control": 3_609}
A6000_MS = 2.51
"""The paper's GPU baseline, an RTX A6000."""

AREA_MM2 = {512: 0.731, 1024: 1.464, 2048: 2.931}
POWER_MW = {512: 381.72, 1024: 762.65, 2048: 1524.53}
"""Table IV, by VLEN: the vector datapath after synthesis, 7 nm, 1 GHz, without memories and HBM."""
SCALAR_AREA_MM2 = 661e-6

GPU_BYTES_PER_SECOND = {"a6000": 768e9, "h100": 3.35e12}
"""Memory of the RTX A6000 and the H100 SXM, by NVIDIA's data sheets."""
GPU_BYTES_A_LOGIT = {"unfused_float64": 2 + 2 + (2 + 8) + (8 + 8), "fused_bfloat16": 2}
"""What a sampler reads and writes. Unfused is Fast-dLLM's in PyTorch: argmax, maximum, a cast to
float64, its softmax. Fused is one pass, as `score_rows` and the one-pass program make it."""


def area_mm2(vlen: int) -> float:
    """Returns the area of vector datapath, which is proportional to VLEN, and scalar part."""
    return vlen * fmean(area / known for known, area in AREA_MM2.items()) + SCALAR_AREA_MM2


def power_mw(vlen: int) -> float:
    """Returns the power of the vector datapath at 1 GHz, which is proportional to VLEN."""
    return vlen * fmean(power / known for known, power in POWER_MW.items())


def roofline_ms(gpu: str, sampler: str, logits: int) -> float:
    """Returns the least time of a sampler of so many logits on a GPU: bytes over bandwidth."""
    return GPU_BYTES_A_LOGIT[sampler] * logits / GPU_BYTES_PER_SECOND[gpu] * 1e3
