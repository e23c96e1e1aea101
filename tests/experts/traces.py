"""Small routing traces for tests."""

import numpy as np

from llada_jax.experts.routing import RoutingTrace
from llada_jax.experts.shapes import MoEShape
from llada_jax.experts.synthetic import RoutingStatistics, denoising_trace

SMALL = MoEShape(
    name="small",
    n_layers=4,
    n_experts=16,
    experts_per_token=2,
    width=8,
    expert_width=8,
    dense_weights=100,
)


def small_trace(seed=0, blocks=3, **statistics) -> RoutingTrace:
    """Some twenty steps of blocks of 8 rows."""
    variances = {"popular": 0.1, "topic": 0.4, **statistics}
    return denoising_trace(
        SMALL, RoutingStatistics(**variances), seed=seed, blocks=blocks, block_length=8,
        tokens_per_step=1.5,
    )  # fmt: skip


def trace_of_loads(loads) -> RoutingTrace:
    """A trace of one row for each expert that [S, N, E] loads above 0 name, all in one block."""
    loads = np.asarray(loads)
    steps, layers, n_experts = loads.shape
    rows = int(loads.sum(axis=-1).max())
    experts = np.full((steps, layers, rows, 1), -1)
    for step, layer in np.ndindex(steps, layers):
        taken = np.repeat(np.arange(n_experts), loads[step, layer])
        experts[step, layer, : taken.size, 0] = taken
    return RoutingTrace(
        experts=experts,
        scores=loads / max(loads.max(), 1),
        foreseen=np.full((steps, layers, 0, rows, 1), -1),
        changed=np.ones((steps, rows), bool),
        block=np.zeros((steps, rows), int),
        committed=np.ones(steps, int),
        settings={},
    )
