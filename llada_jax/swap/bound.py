"""A lower bound of a step's time under any plan, for graphs of any size.

Compute alone takes its time. And what is not mapped all the time is staged in every step: with W
bytes of weights in a room of M bytes, while the largest staged operator runs the residents lie
beside it. So W - M + its size must be staged at the least, which takes the time of a fractional
knapsack, and the mappings of as many transfers as the place that the residents leave, and the size
of a buffer, make necessary.
"""

import numpy as np

from llada_jax.swap.address_budget import Budget
from llada_jax.swap.graph import Graph

_PIECES = 64
_SLACK = 1e-9  # of float64 sums, so that rounding never lifts the bound


def least_step_ns(graph: Graph, budget: Budget) -> int:
    """Returns a time below which no plan's step is, in the mean over a loop without end."""
    sizes = np.array([budget.aligned(op.weight_bytes) for op in graph.operators], np.float64)
    staging = np.array([op.transfer_ns for op in graph.operators], np.float64)
    room = budget.session_bytes - budget.fixed_bytes
    excess = float(sizes.sum() - room)
    if excess <= 0:
        return graph.compute_ns
    used = sizes > 0
    lane = _least_staging(sizes[used], staging[used], graph.map_ns, excess, budget.max_buffer_bytes)
    return max(graph.compute_ns, int(lane * (1 - _SLACK)))


def _least_staging(
    sizes: np.ndarray, staging: np.ndarray, map_ns: int, excess: float, buffer_bytes: int
) -> float:
    """Returns the time of transfers, at the best choice of the largest operator that is staged."""
    best = np.inf
    for largest in np.unique(sizes):
        eligible = sizes <= largest
        order = np.argsort(staging[eligible] / sizes[eligible], kind="stable")
        # The corners of the fractional knapsack: the cheapest bytes first.
        bytes_, ns = (np.cumsum(np.append(0.0, each[eligible][order])) for each in (sizes, staging))
        least, most = excess + largest, bytes_[-1]
        if least > most:
            continue
        # More staged bytes take longer, but leave room for fewer, larger transfers.
        edges = excess + np.geomspace(largest, most - excess, _PIECES + 1)
        edges[0], edges[-1] = least, most
        in_buffers = np.maximum(edges[1:] / (edges[1:] - excess), edges[:-1] / buffer_bytes)
        transfers = np.ceil(in_buffers * (1 - _SLACK))
        totals = np.interp(edges[:-1], bytes_, ns) + map_ns * np.maximum(transfers, 2)
        best = min(best, float(totals.min()))
    return best if np.isfinite(best) else 0.0
