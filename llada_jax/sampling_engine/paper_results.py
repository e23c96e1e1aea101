"""Published results for the engine and its baselines, and simple estimates from them."""

PAPER = "arXiv 2601.20706 v1"
BATCH, ROWS, VOCAB = 16, 32, 126_464
"""The published workload: one step of 16 blocks of 32 positions, with LLaDA-8B's vocabulary."""
LATENCY_MS = {512: 3.41, 1024: 1.79, 2048: 0.99}
"""By VLEN, from the table of results."""
CYCLES_AT_2048 = {"vector": 477_696, "memory": 392_320, "scalar": 117_412, "control": 3_609}
AREA_MM2 = {512: 0.731, 1024: 1.464, 2048: 2.931}
"""Area of the vector datapath by VLEN, synthesised for 7 nm (Table IV)."""
SCALAR_UM2 = 661
"""Area of the scalar part, the same for every VLEN."""

GPU_BYTES_PER_SECOND = {"a6000": 768e9, "h100": 3.35e12}
"""Memory bandwidth of the RTX A6000 and the H100 SXM, from NVIDIA's data sheets."""
GPU_BYTES_A_LOGIT = {"unfused_float64": 2 + 2 + (2 + 8) + (8 + 8), "fused_bfloat16": 2}
"""Bytes that a sampler reads and writes. Unfused is Fast-dLLM's in PyTorch: argmax, maximum, a cast
to float64, its softmax. Fused is a single pass, like `score_rows` and the one-pass program."""


def roofline_ms(gpu: str, sampler: str, logits: int) -> float:
    """Returns the minimum time of a sampler on a GPU for a number of logits: bytes / bandwidth."""
    return GPU_BYTES_A_LOGIT[sampler] * logits / GPU_BYTES_PER_SECOND[gpu] * 1e3
