"""HybriMoE's desktop: an RTX A6000 and ten cores of a Xeon Gold 5220R, over PCIe 3.0.

Times of one 4-bit expert of DeepSeek-V2-Lite are those that the authors' scheduler is given (their
repository, `calc_prefill` of 3bf7ea3); the axes of the paper's figures 3e and 3f agree. Experts of
other models take them by their weights, which is inferred.
"""

from typing import Literal

from llada_jax.experts.costs import ExpertCosts
from llada_jax.experts.shapes import DEEPSEEK, MoEShape

Phase = Literal["decode", "prefill"]

GPU_MS = 0.452  # whatever the rows; authors' code
TRANSFER_MS = 0.4179  # authors' code; 10.4 GB/s
CPU_UNPACK_MS = 1.780  # a kernel for many rows unpacks the expert first; authors' code
CPU_ROW_MS = 0.02918  # authors' code; 296 G multiply-adds/s

CPU_GBPS = 13.6  # of the kernel for one row; fitted: kTransformers decodes Qwen2 in 0.21 s a token
GPU_GWEIGHTS = 1200  # inferred: 600 of the A6000's 768 GB/s, at 4 bits a weight
CPU_FIRST_US = 300  # inferred: cold caches, a quarter of an expert
LAYER_US = 300  # a layer beside its weights; inferred: attention over a short cache, and launches
BYTES_A_WEIGHT = 0.5  # measured: 4-bit Marlin


def desktop_costs(shape: MoEShape, phase: Phase) -> ExpertCosts:
    """Returns the costs of a model's experts in one phase.

    The CPU reads an expert as fast as memory gives it for a decoded token, and unpacks it first for
    a prompt: kTransformers chooses the kernel by the batch, not by an expert's load.
    """
    weights = shape.expert_weights
    of_deepseek = 1e-3 * weights / DEEPSEEK.expert_weights
    read = weights * BYTES_A_WEIGHT * 1e-9 / CPU_GBPS
    launched = GPU_MS * 1e-3 - DEEPSEEK.expert_weights * 1e-9 / GPU_GWEIGHTS
    return ExpertCosts(
        cpu_expert=read if phase == "decode" else CPU_UNPACK_MS * of_deepseek,
        cpu_row=CPU_ROW_MS * of_deepseek,
        cpu_first=CPU_FIRST_US * 1e-6,
        accelerator=weights * 1e-9 / GPU_GWEIGHTS + launched,
        transfer=TRANSFER_MS * of_deepseek,
        dense=shape.dense_weights * 1e-9 / GPU_GWEIGHTS + LAYER_US * 1e-6,
    )
