"""Which experts stay on the accelerator, by replacement policies, and which an idle link brings in.

A policy watches every layer it passes and says what each of the layer's experts is worth keeping;
whoever has a transfer to spare brings in the expert worth most and evicts the one worth least. A
layer has its own number of slots, as in HybriMoE and TIDE.
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
"""The paper gives none; its code and the port for Ascend NPUs both have 0.5."""
MRS_WIDTH = 2
"""Scores that count, in activated experts (arXiv 2504.05897, section IV-D)."""
TIDE_INTERVAL = 4


class ExpertCache:
    """Keeps for ever what is worth most at first (kTransformers); other caches learn."""

    def __init__(self, worth: Float[np.ndarray, "N E"]) -> None:
        self.worth = worth
        """What keeping each expert is worth, in any unit; ties go to lower indices."""

    def observe(self, visit: Visit) -> None:
        """Learns from a visit; they come in the order in which they happen."""


class MinusRecentScore(ExpertCache):
    """Learns S <- alpha TopP(s) + (1 - alpha) S of the p highest scores s alone (HybriMoE)."""

    def __init__(self, worth: Float[np.ndarray, "N E"], alpha: float) -> None:
        super().__init__(worth)
        require(0 < alpha <= 1, f"alpha is {alpha}; allowed: above 0, up to 1")
        self._alpha = alpha

    def observe(self, visit: Visit) -> None:
        width = MRS_WIDTH * np.count_nonzero(visit.loads)
        score = self.worth[visit.layer]
        score *= 1 - self._alpha
        top = np.argpartition(-visit.scores, min(width, score.size - 1))[:width]
        score[top] += self._alpha * visit.scores[top]


class LeastRecentlyUsed(ExpertCache):
    """Counts worth as 1 + the step of the last use; of one step, the higher load is later."""

    def observe(self, visit: Visit) -> None:
        used = visit.loads > 0
        within = visit.loads[used] / (visit.loads.max() + 1)
        self.worth[visit.layer, used] = 1 + visit.step + within


class IntervalRefresh(ExpertCache):
    """Keeps the loads of the last refresh: every fourth step of a block, and throughout the first
    block (TIDE, arXiv 2605.20179)."""

    def __init__(self, worth: Float[np.ndarray, "N E"]) -> None:
        super().__init__(worth)
        self._step_of_block, self._blocks = np.zeros((2, len(worth)), int)

    def observe(self, visit: Visit) -> None:
        layer = visit.layer
        if visit.new_block:
            self._step_of_block[layer] = 0
            self._blocks[layer] += 1
        if self._blocks[layer] <= 1 or self._step_of_block[layer] % TIDE_INTERVAL == 0:
            self.worth[layer] = visit.loads
        self._step_of_block[layer] += 1


def make_cache(name: CacheName, used: Float[np.ndarray, "N E"], alpha: float) -> ExpertCache:
    """Returns a policy by name. `static` keeps what was used most, the others know nothing yet."""
    if name == "static":
        return ExpertCache(used)
    mrs = partial(MinusRecentScore, alpha=alpha)
    learning = {"mrs": mrs, "lru": LeastRecentlyUsed, "tide": IntervalRefresh}
    return learning[name](np.zeros_like(used))


def best(worth: Float[np.ndarray, " E"], count: int) -> Bool[np.ndarray, " E"]:
    """Marks the experts worth most; of equals, those of lower index."""
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
    """Gives the swap that gains most, and the next best each time one more is asked for.

    The next layers are foreseen by their own gates on this hidden state (HybriMoE: three layers).
    The gain of a swap is the difference of two schedules, without and with it. A schedule depends
    on an expert by its load alone, so the missing expert of highest load is its layer's best. The
    residents are read again after each swap, which the caller is to have entered.
    """
    foreseen = loads_of(visit.foreseen, visit.loads.size)
    forecast = dict(zip(range(visit.layer + 1, len(resident)), foreseen, strict=False))

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
    """Gives swaps until the residents are those worth most, from this layer backwards."""
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
