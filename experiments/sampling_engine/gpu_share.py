"""Sampling's share of a step on the paper's GPU: body and sampler, both by rooflines.

The paper has up to 70 %, reached by LLaDA-MoE with a dual cache, and gives neither batch nor block.
Here the body reads its weights in BF16 once, all rows take the same experts, and nothing but the
block's rows is multiplied: so shares are upper bounds. The unfused sampler takes the paper's time.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from experiments.harness.results import ResultRow
from llada_jax.experts.shapes import LLADA_MOE
from llada_jax.model.architecture import architecture
from llada_jax.model.architecture.parameters import body_matrices, head_weights
from llada_jax.sampling_engine import paper_results as paper

BATCHES, BLOCKS = (1, 2, 4, 8, 16, 32), (8, 16, 32, 64)
"""The paper's sweeps."""
A6000_FLOPS = 155e12
"""BF16 in its tensor cores, by NVIDIA's data sheet."""
PEAK_SHARE, MOE_VOCAB = 0.7, 157_184


class GpuBody(NamedTuple):
    """What a row's forward takes of a model."""

    weights: int
    vocab: int

    def ms(self, rows: int) -> float:
        """Returns the least time of a step: to read the weights, or to multiply by them."""
        read = 2 * self.weights / paper.GPU_BYTES_PER_SECOND["a6000"]
        return 1e3 * max(read, 2 * self.weights * rows / A6000_FLOPS)


def bodies() -> dict[str, GpuBody]:
    """Returns the paper's two models."""
    dense, moe = architecture("llada_8b"), LLADA_MOE
    weights = sum(matrix.weights for matrix in body_matrices(dense)) + head_weights(dense)
    layer = moe.dense_weights + moe.experts_per_token * moe.expert_weights
    return {
        "llada_8b": GpuBody(weights, dense.vocab_size),
        "llada_moe": GpuBody(moe.n_layers * layer, MOE_VOCAB),
    }


def share_rows() -> Iterator[ResultRow]:
    """Yields the share by model, batch and block, its peak, and how slow 70 % would need it."""
    for (model, body), sampler in product(bodies().items(), paper.GPU_BYTES_A_LOGIT):
        name, shares = f"gpu_share/{model}/{sampler}", []
        for batch, block in product(BATCHES, BLOCKS):
            rows = batch * block
            sampling = paper.roofline_ms("a6000", sampler, rows * body.vocab)
            shares.append(sampling / (sampling + body.ms(rows)))
            row = f"{name}/batch{batch}_block{block}"
            yield ResultRow(row, shares[-1], "of a step", kind="modelled")
        peak = max(shares)
        known: dict[str, Any] = {}
        if (model, sampler) == ("llada_moe", "unfused_float64"):
            known = {"reference": PEAK_SHARE, "source": f"{paper.PAPER}: up to 70 %"}
        yield ResultRow(f"{name}/peak", peak, "of a step", kind="modelled", **known)
        slower = PEAK_SHARE / (1 - PEAK_SHARE) * (1 - peak) / peak
        yield ResultRow(f"{name}/slower_for_70_percent", slower, "x as slow", kind="modelled")
