"""Sampling's share of a step on the paper's GPU: body and sampler, both by rooflines.

The paper has up to 70 %, reached by LLaDA-MoE with a dual cache, and gives neither batch nor block.
The body reads its weights in BF16 once and multiplies the block's rows, and nothing else: so shares
are upper bounds. The unfused sampler is held by the paper's own 2.51 ms.
"""

from collections.abc import Iterator
from itertools import product
from typing import Literal, NamedTuple

from experiments.harness.results import ResultRow
from llada_jax.experts.shapes import LLADA_MOE
from llada_jax.model.architecture import architecture
from llada_jax.model.architecture.parameters import body_matrices, head_weights
from llada_jax.sampling_engine import paper_results as paper

Experts = Literal["expected", "fewest"]

BATCHES, BLOCKS = (1, 2, 4, 8, 16, 32), (8, 16, 32, 64)
"""The paper's sweeps."""
A6000_FLOPS = 155e12
"""BF16 in its tensor cores, by NVIDIA's data sheet."""
PEAK_SHARE = 0.7
SOURCE = f"{paper.PAPER}: up to 70 %"


class GpuBody(NamedTuple):
    """Weights of a model: what every row meets, all experts, and one row's share of those."""

    dense: int
    routed: int
    share: float
    vocab: int

    def ms(self, rows: int, experts: Experts) -> float:
        """Returns the least time of a step; `fewest`: all rows take the same experts."""
        touched = self.share if experts == "fewest" else 1 - (1 - self.share) ** rows
        read = 2 * (self.dense + self.routed * touched) / paper.GPU_BYTES_PER_SECOND["a6000"]
        multiplied = 2 * (self.dense + self.routed * self.share) * rows / A6000_FLOPS
        return 1e3 * max(read, multiplied)


def bodies() -> dict[str, GpuBody]:
    """Returns the paper's two models."""
    dense, moe = architecture("llada_8b"), LLADA_MOE
    weights = sum(matrix.weights for matrix in body_matrices(dense)) + head_weights(dense)
    routed = moe.n_layers * moe.n_experts * moe.expert_weights
    share = moe.experts_per_token / moe.n_experts
    return {
        "llada_8b": GpuBody(weights, 0, 0.0, dense.vocab_size),
        "llada_moe": GpuBody(moe.n_layers * moe.dense_weights, routed, share, 157_184),
    }


def share_rows() -> Iterator[ResultRow]:
    """Yields the share by model, batch and block, its peak, and what 70 % would ask for."""
    for (model, body), sampler in product(bodies().items(), paper.GPU_BYTES_A_LOGIT):
        for experts in ("expected", "fewest") if body.routed else ("expected",):
            name = f"gpu_share/{model}/{sampler}/{experts}_experts"
            shares = {}
            for batch, block in product(BATCHES, BLOCKS):
                rows = batch * block
                sampling = paper.roofline_ms("a6000", sampler, rows * body.vocab)
                share = sampling / (sampling + body.ms(rows, experts))
                shares[batch, block] = share
                row = f"{name}/batch{batch}_block{block}"
                yield ResultRow(row, share, "of a step", kind="modelled")
            peak = max(shares.values())
            compared = (model, sampler) == ("llada_moe", "unfused_float64")
            yield ResultRow(
                f"{name}/peak", peak, "of a step", kind="modelled",
                reference=PEAK_SHARE if compared else None, source=SOURCE if compared else None,
            )  # fmt: skip
            slower = PEAK_SHARE / (1 - PEAK_SHARE) * (1 - peak) / peak
            yield ResultRow(f"{name}/slower_for_70_percent", slower, "x as slow", kind="modelled")
