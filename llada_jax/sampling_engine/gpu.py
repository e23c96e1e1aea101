"""The same sampling on a GPU, as rooflines of its memory: bytes over bandwidth, and nothing else.

So the times are lower bounds. The paper compares with an unfused sampler in float64, whose bytes
are 15 times those of a kernel that reads each BF16 logit once.
"""

from collections.abc import Mapping
from typing import NamedTuple

from llada_jax.sampling_engine.paper_results import Gpu


class Pass(NamedTuple):
    """One kernel's traffic in bytes a logit."""

    name: str
    read: int
    written: int = 0


UNFUSED_FLOAT64 = (
    Pass("argmax of BF16", 2),
    Pass("maximum of BF16", 2),
    Pass("cast to float64", 2, 8),
    Pass("softmax of float64", 8, 8),
)
"""Fast-dLLM's sampler in PyTorch: 30 bytes a logit."""
FUSED_BFLOAT16 = (Pass("running maximum and sum of BF16", 2),)
"""One pass over the logits, as `score_rows` and the one-pass program make it."""
BASELINES: Mapping[str, tuple[Pass, ...]] = {
    "unfused_float64": UNFUSED_FLOAT64,
    "fused_bfloat16": FUSED_BFLOAT16,
}


def roofline_ms(gpu: Gpu, passes: tuple[Pass, ...], logits: int) -> float:
    """Milliseconds that the GPU's memory needs for all passes over so many logits."""
    traffic = sum(one.read + one.written for one in passes)
    return traffic * logits / gpu.bytes_per_second * 1e3
