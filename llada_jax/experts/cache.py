"""Cache policies: which experts stay on the accelerator, and which an idle link loads.

A policy observes every layer and assigns each of its experts a worth. A transfer loads the missing
expert of highest worth and evicts the resident one of lowest worth. Each layer has its own slots,
as in HybriMoE and TIDE.
"""

from collections.abc import Iterator
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from llada_jax.config import require
from llada_jax.experts.routing import Visit, loads_of
from llada_jax.experts.schedule import Scheduler

CacheName = Literal["mrs", "lru", "static", "tide"]
MRS_ALPHA = 0.5
"""Not given in the paper; its code and the port for Ascend NPUs both use 0.5."""
_MRS_WIDTH = 2
"""Scores that count, as a multiple of the activated experts (arXiv 2504.05897, section IV-D)."""
_TIDE_INTERVAL = 4


class ExpertCache:
    """A static cache: worth never changes (kTransformers). Subclasses learn."""

    def __init__(self, worth: Float[np.ndarray, "N E"]) -> None:
        self.worth = worth
        """Worth of keeping each expert, in any unit; ties are resolved to lower indices."""

    def observe(self, visit: Visit) -> None:
        """Learns from a visit; visits come in chronological order."""


class MinusRecentScore(ExpertCache):
    """S <- alpha TopP(s) + (1 - alpha) S, with only the p highest scores s (HybriMoE)."""

    def __init__(self, worth: Float[np.ndarray, "N E"], alpha: float) -> None:
        super().__init__(worth)
        require(0 < alpha <= 1, f"alpha is {alpha}; allowed: above 0, up to 1")
        self._alpha = alpha

    def observe(self, visit: Visit) -> None:
        width = _MRS_WIDTH * np.count_nonzero(visit.loads)
        score = self.worth[visit.layer]
        score *= 1 - self._alpha
        top = np.argpartition(-visit.scores, min(width, score.size - 1))[:width]
        score[top] += self._alpha * visit.scores[top]


class LeastRecentlyUsed(ExpertCache):
    """Worth is 1 + the step of the last use; within a step, a higher load counts as later."""

    def observe(self, visit: Visit) -> None:
        used = visit.loads > 0
        within = visit.loads[used] / (visit.loads.max() + 1)
        self.worth[visit.layer, used] = 1 + visit.step + within


class IntervalRefresh(ExpertCache):
    """Worth is the load at the last refresh: every fourth step of a block, and every step of the
    first block (TIDE, arXiv 2605.20179)."""

    def __init__(self, worth: Float[np.ndarray, "N E"]) -> None:
        super().__init__(worth)
        self._step_of_block, self._blocks = np.zeros((2, len(worth)), int)

    def observe(self, visit: Visit) -> None:
        layer = visit.layer
        if visit.new_block:
            self._step_of_block[layer] = 0
            self._blocks[layer] += 1
        if self._blocks[layer] <= 1 or self._step_of_block[layer] % _TIDE_INTERVAL == 0:
            self.worth[layer] = visit.loads
        self._step_of_block[layer] += 1


def make_cache(name: CacheName, used: Float[np.ndarray, "N E"], alpha: float) -> ExpertCache:
    """Returns a policy by name. `static` keeps the most used experts, others start at zero."""
    if name == "static":
        return ExpertCache(used)
    mrs = partial(MinusRecentScore, alpha=alpha)
    learning = {"mrs": mrs, "lru": LeastRecentlyUsed, "tide": IntervalRefresh}
    return learning[name](np.zeros_like(used))


def best(worth: Float[np.ndarray, " E"], count: int) -> Bool[np.ndarray, " E"]:
    """Marks the experts of highest worth; among equal ones those with lower indices."""
    marked = np.zeros(worth.size, bool)
    marked[np.argsort(-worth, kind="stable")[:count]] = True
    return marked


class Swap(NamedTuple):
    """One transfer: `expert` takes the slot of `victim`."""

    layer: int
    expert: int
    victim: int


def swaps(
    visit: Visit, cache: ExpertCache, resident: Bool[np.ndarray, "N E"], schedule: Scheduler
) -> Iterator[Swap]:
    """Yields the swap with the highest gain, then the next best, and so on.

    The next layers are predicted by their own gates on this hidden state (HybriMoE: three layers).
    The gain of a swap is the time saved by the schedule with it. A schedule depends on an expert
    only by its load, so a layer's best swap loads its missing expert of highest load. `resident` is
    read again after each swap, which the caller must have applied.
    """
    predicted = loads_of(visit.foreseen, visit.loads.size)
    forecast = dict(zip(range(visit.layer + 1, len(resident)), predicted, strict=False))

    def best_of(layer: int) -> tuple[float, Swap | None]:
        loads, here = forecast[layer], resident[layer]
        missing = np.where(here, 0, loads)
        expert, victim = int(np.argmax(missing)), _least(cache.worth[layer], here)
        if missing[expert] == 0 or loads[victim] >= loads[expert]:
            return 0.0, None
        swapped = here.copy()
        swapped[[expert, victim]] = True, False
        gain = schedule(loads, here).seconds - schedule(loads, swapped).seconds
        return gain, Swap(layer, expert, victim)

    gains = {layer: best_of(layer) for layer in forecast}
    while gains:
        layer, (gain, swap) = max(gains.items(), key=lambda item: item[1][0])
        if gain <= 0 or swap is None:
            break
        yield swap
        gains[layer] = best_of(layer)


def refills(layer: int, cache: ExpertCache, resident: Bool[np.ndarray, "N E"]) -> Iterator[Swap]:
    """Yields swaps until the experts of highest worth are resident, from this layer backwards."""
    n_layers = len(resident)
    for target in ((layer - back) % n_layers for back in range(n_layers)):
        worth = cache.worth[target]
        while not resident[target].all():
            victim = _least(worth, resident[target])
            expert = int(np.argmax(np.where(resident[target], -np.inf, worth)))
            if worth[expert] <= worth[victim]:
                break
            yield Swap(target, expert, victim)


def _least(worth: Float[np.ndarray, " E"], resident: Bool[np.ndarray, " E"]) -> int:
    return int(np.argmin(np.where(resident, worth, np.inf)))
