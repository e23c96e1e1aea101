"""The paper's desktop as published numbers have it; each number says where it is from.

A derived number is arithmetic on measured ones; an inferred number nobody has published.
"""

from llada_jax.experts.costs import Figure, MachineProfile

DESKTOP = MachineProfile(
    name="desktop",
    bytes_per_weight=Figure(0.5, "measured", "4-bit Marlin, arXiv 2504.05897"),
    expert_weights=Figure(1200, "inferred", "600 of the A6000's 768 GB/s"),
    dense_weights=Figure(1200, "inferred", "as experts"),
    accelerator_call=Figure(150, "inferred", "three kernels launched from PyTorch"),
    cpu_bandwidth=Figure(10.1, "fitted", "kTransformers, Qwen2 at 25 %: 0.21 s a decoded token"),
    cpu_rate=Figure(1408, "inferred", "10 cores, 2.2 GHz, 64 8-bit multiply-adds a cycle"),
    cpu_first=Figure(300, "inferred", "cold caches: a quarter of an expert"),
    transfer_bandwidth=Figure(
        10.4, "derived", "0.4179 ms for an expert of DeepSeek, HybriMoE's code"
    ),
    layer_overhead=Figure(300, "inferred", "attention and launches of a layer"),
)
"""RTX A6000, ten cores of a Xeon Gold 5220R, PCIe (arXiv 2504.05897).

The fitted number is that of the baseline, before anything of the paper's is added. The prompt of
its prefill is taken to have 32 tokens, the shortest of the paper: with more, reading the experts
from the CPU's memory would take longer than the baseline's 1.47 s.
"""
