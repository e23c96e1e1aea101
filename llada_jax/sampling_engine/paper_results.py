"""What is published of the engine and its baselines, and what follows from it by proportion."""

PAPER = "arXiv 2601.20706 v1"
BATCH, ROWS, VOCAB = 16, 32, 126_464
"""The published case: one step of 16 blocks of 32 positions, with LLaDA-8B's vocabulary."""
LATENCY_MS = {512: 3.41, 1024: 1.79, 2048: 0.99}
"""The table of results, by VLEN."""
CYCLES_AT_2048 = {"vector": 477_696, "memory": 392_320, "scalar": 117_412, "control": 3_609}
AREA_MM2 = {512: 0.731, 1024: 1.464, 2048: 2.931}
"""The vector datapath by VLEN, synthesised for 7 nm (Table IV)."""
SCALAR_UM2 = 661
"""The scalar part beside it, at every VLEN."""

GPU_BYTES_PER_SECOND = {"a6000": 768e9, "h100": 3.35e12}
"""Memory of the RTX A6000 and the H100 SXM, by NVIDIA's data sheets."""
GPU_BYTES_A_LOGIT = {"unfused_float64": 2 + 2 + (2 + 8) + (8 + 8), "fused_bfloat16": 2}
"""What a sampler reads and writes. Unfused is Fast-dLLM's in PyTorch: argmax, maximum, a cast to
float64, its softmax. Fused is one pass, as `score_rows` and the one-pass program make it."""


def roofline_ms(gpu: str, sampler: str, logits: int) -> float:
    """Returns the least time of a sampler of so many logits on a GPU: bytes over bandwidth."""
    return GPU_BYTES_A_LOGIT[sampler] * logits / GPU_BYTES_PER_SECOND[gpu] * 1e3
