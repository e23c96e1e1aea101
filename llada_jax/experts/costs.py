"""What running and moving one expert costs, on the desktop of HybriMoE's paper and on phones.

The accelerator takes the same time for an expert whatever its load (up to its row tile), the CPU's
time grows linearly with the load, and moving an expert takes the same time for each (arXiv
2504.05897, section III). A CPU may have a second kernel, for few rows.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from llada_jax.config import require
from llada_jax.experts.shapes import MoEShape


@dataclass(frozen=True, kw_only=True)
class ExpertCosts:
    """Seconds, for the experts of one model on one machine."""

    cpu_expert: float
    """An expert on the CPU, beside its rows: reading its weights."""
    cpu_row: float
    """Each row of an expert on the CPU."""
    cpu_few_row: float = math.inf
    """Each row with a kernel that reads all weights for every row, taken where it is faster."""
    cpu_first: float
    """What the first expert of a layer on the CPU takes longer: cold caches, waking the threads."""
    accelerator: float
    """An expert on the accelerator."""
    transfer: float
    """Bringing an expert to the accelerator."""
    dense: float
    """The rest of a layer, on the accelerator, before its router is known."""

    def __post_init__(self) -> None:
        for name in ("accelerator", "transfer", "cpu_few_row"):
            value = getattr(self, name)
            require(value > 0, f"{name} is {value}; allowed: above 0 seconds")
        for name in ("cpu_expert", "cpu_row", "cpu_first", "dense"):
            value = getattr(self, name)
            require(value >= 0, f"{name} is {value}; allowed: 0 seconds or more")

    def cpu(self, loads: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Returns the seconds of experts on the CPU, by their loads."""
        many = self.cpu_expert + self.cpu_row * loads
        return many if math.isinf(self.cpu_few_row) else np.minimum(many, self.cpu_few_row * loads)


# HybriMoE's desktop: RTX A6000, ten cores of a Xeon Gold 5220R, PCIe (arXiv 2504.05897).
# A derived number is arithmetic on measured ones; an inferred number nobody has published.

BYTES_A_WEIGHT = 0.5  # measured: 4-bit Marlin
GPU_GWEIGHTS = 1200  # inferred: 600 of the A6000's 768 GB/s, for experts and all other matrices
GPU_CALL_US = 150  # an expert beside its weights; inferred: three kernels launched from PyTorch
CPU_GBPS = 10.1  # fitted: kTransformers, Qwen2 at 25 %: 0.21 s a decoded token
CPU_GMACS = 1408  # inferred: 10 cores, 2.2 GHz, 64 8-bit multiply-adds a cycle
CPU_FIRST_US = 300  # inferred: cold caches, a quarter of an expert
LAYER_US = 300  # a layer beside its weights; inferred: attention over a short cache, and launches
LINK_GBPS = 10.4
LINK_SOURCE = "0.4179 ms for an expert of DeepSeek, HybriMoE's code"


def desktop_costs(shape: MoEShape, link_gbps: float = LINK_GBPS) -> ExpertCosts:
    """Returns the costs of a model's experts on HybriMoE's desktop.

    The fitted number is that of the baseline, before anything of the paper's is added. The prompt
    of its prefill is taken to have 32 tokens, the shortest of the paper: with more, reading the
    experts from the CPU's memory would take longer than the baseline's 1.47 s.
    """
    weights = shape.expert_weights
    size = weights * BYTES_A_WEIGHT
    return ExpertCosts(
        cpu_expert=size * 1e-9 / CPU_GBPS,
        cpu_row=weights * 1e-9 / CPU_GMACS,
        cpu_first=CPU_FIRST_US * 1e-6,
        accelerator=weights * 1e-9 / GPU_GWEIGHTS + GPU_CALL_US * 1e-6,
        transfer=size * 1e-9 / link_gbps,
        dense=shape.dense_weights * 1e-9 / GPU_GWEIGHTS + LAYER_US * 1e-6,
    )
