"""The shortest plan of a small layer by exhaustive search, as a reference for the schedulers."""

from collections.abc import Iterator
from itertools import chain, combinations, permutations

import numpy as np
from jaxtyping import Bool, Int

from llada_jax.config import require
from llada_jax.experts.schedule import IDLE, ExpertCosts, Link

MOST_EXPERTS = 6


def shortest_seconds(
    loads: Int[np.ndarray, " E"],
    resident: Bool[np.ndarray, " E"],
    costs: ExpertCosts,
    link: Link = IDLE,
) -> float:
    """Tries all assignments of experts, orders of transfers and orders on the accelerator.

    The link first finishes its current transfer. At most 6 active experts: the number of plans
    grows factorially.
    """
    active = np.flatnonzero(loads).tolist()
    require(
        len(active) <= MOST_EXPERTS,
        f"{len(active)} experts are active; allowed: up to {MOST_EXPERTS}",
    )
    return min(
        max(
            _cpu(set(active) - set(chosen), loads, costs),
            _accelerator(chosen, resident, costs, link),
        )
        for chosen in _subsets(active)
    )


def _subsets(items: list[int]) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(items, size) for size in range(len(items) + 1))


def _cpu(experts: set[int], loads: Int[np.ndarray, " E"], costs: ExpertCosts) -> float:
    seconds = float(costs.cpu(loads[list(experts)]).sum())
    return seconds + costs.cpu_first if experts else 0.0


def _accelerator(
    experts: tuple[int, ...], resident: Bool[np.ndarray, " E"], costs: ExpertCosts, link: Link
) -> float:
    arriving = {link.arriving: link.free} if link.arriving in experts else {}
    fetched = [expert for expert in experts if not resident[expert] and expert not in arriving]
    return min(
        _run(
            {e: link.free + (i + 1) * costs.transfer for i, e in enumerate(order)} | arriving,
            sequence,
            costs,
        )
        for order in permutations(fetched)
        for sequence in permutations(experts)
    )


def _run(arrival: dict[int, float], sequence: tuple[int, ...], costs: ExpertCosts) -> float:
    now = 0.0
    for expert in sequence:
        now = max(now, arrival.get(expert, 0.0)) + costs.accelerator
    return now
