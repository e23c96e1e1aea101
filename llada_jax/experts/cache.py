"""Which experts stay on the accelerator: replacement policies behind one interface.

A policy watches every layer it passes and says what each of the layer's experts is worth keeping;
whoever has a transfer to spare brings in the expert worth most and evicts the one worth least. A
layer has its own number of slots, as in HybriMoE and TIDE.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from llada_jax.config import require, require_choice
from llada_jax.experts.routing import RoutingTrace

CacheName = Literal["mrs", "lru", "static", "tide"]
MRS_ALPHA = 0.5
"""The paper gives none; its code and the port for Ascend NPUs both have 0.5."""
MRS_WIDTH = 2
"""Scores that count, in activated experts (arXiv 2504.05897, section IV-D)."""
TIDE_INTERVAL = 4


class Visit(NamedTuple):
    """One layer of one step, as a cache policy sees it once the router has run."""

    step: int
    layer: int
    loads: Int[np.ndarray, " E"]
    scores: Float[np.ndarray, " E"]
    foreseen: Int[np.ndarray, "A R k"]
    new_block: bool
    """The step is its block's first."""


class ExpertCache:
    """Keeps for ever what a profiling run used most (kTransformers); other caches learn.

    Args:
      profile: loads of a run before.
    """

    def __init__(self, profile: Int[np.ndarray, "S N E"]) -> None:
        self._worth = (profile > 0).sum(axis=0).astype(float)

    def observe(self, visit: Visit) -> None:
        """Learns from a visit; they come in the order in which they happen."""

    def worth(self, layer: int) -> Float[np.ndarray, " E"]:
        """Returns what keeping each expert is worth, in any unit; ties go to lower indices."""
        return self._worth[layer]


class _LearningCache(ExpertCache):
    """Knows nothing at first; a profile gives its shape alone."""

    def __init__(self, profile: Int[np.ndarray, "S N E"]) -> None:
        self._worth = np.zeros(profile.shape[1:])


class MinusRecentScore(_LearningCache):
    """Learns S <- alpha TopP(s) + (1 - alpha) S of the p highest scores s alone (HybriMoE)."""

    def __init__(self, profile: Int[np.ndarray, "S N E"], alpha: float = MRS_ALPHA) -> None:
        super().__init__(profile)
        require(0 < alpha <= 1, f"alpha is {alpha}; allowed: above 0, up to 1")
        self._alpha = alpha

    def observe(self, visit: Visit) -> None:
        width = MRS_WIDTH * np.count_nonzero(visit.loads)
        score = self._worth[visit.layer]
        score *= 1 - self._alpha
        if width < score.size:
            top = np.argpartition(-visit.scores, width)[:width]
            score[top] += self._alpha * visit.scores[top]
        else:
            score += self._alpha * visit.scores


class LeastRecentlyUsed(_LearningCache):
    """Counts worth as 1 + the step of the last use; of one step, the higher load is later."""

    def observe(self, visit: Visit) -> None:
        used = visit.loads > 0
        within = visit.loads[used] / (visit.loads.max() + 1)
        self._worth[visit.layer, used] = 1 + visit.step + within


class IntervalRefresh(_LearningCache):
    """Keeps the loads of the last refresh: every fourth step of a block, and throughout the first
    block (TIDE, arXiv 2605.20179)."""

    def __init__(self, profile: Int[np.ndarray, "S N E"]) -> None:
        super().__init__(profile)
        self._step_of_block = np.zeros(profile.shape[1], int)
        self._blocks = np.zeros(profile.shape[1], int)

    def observe(self, visit: Visit) -> None:
        layer = visit.layer
        if visit.new_block:
            self._step_of_block[layer] = 0
            self._blocks[layer] += 1
        if self._blocks[layer] <= 1 or self._step_of_block[layer] % TIDE_INTERVAL == 0:
            self._worth[layer] = visit.loads
        self._step_of_block[layer] += 1


def make_cache(
    name: CacheName, profile: Int[np.ndarray, "S N E"], *, alpha: float = MRS_ALPHA
) -> ExpertCache:
    """Returns a policy by name.

    Args:
      profile: loads of a run before; `static` is made of them, the others take their shape.
    """
    require_choice("cache", name, CacheName)
    if name == "mrs":
        return MinusRecentScore(profile, alpha)
    return {"lru": LeastRecentlyUsed, "static": ExpertCache, "tide": IntervalRefresh}[name](profile)


def visits(trace: RoutingTrace, step: int) -> Sequence[Visit]:
    """Returns the layers of a step, as a policy visits them."""
    new_block = bool(trace.begins_block[step])
    return [
        Visit(
            step,
            layer,
            trace.loads[step, layer],
            trace.scores[step, layer],
            trace.foreseen[step, layer],
            new_block,
        )
        for layer in range(trace.n_layers)
    ]


def best(worth: Float[np.ndarray, " E"], count: int) -> Bool[np.ndarray, " E"]:
    """Marks the experts worth most; of equals, those of lower index."""
    marked = np.zeros(worth.size, bool)
    marked[np.argsort(-worth, kind="stable")[:count]] = True
    return marked


def hit_rate(trace: RoutingTrace, policy: ExpertCache, slots: int, *, warmup: int) -> float:
    """Returns the share of the activated experts that are resident when their layer begins.

    A layer that was run may take in what it missed, while all that stays is worth more than what
    goes. The first `warmup` steps fill the cache and do not count.
    """
    require(0 <= warmup < trace.n_steps, f"warmup is {warmup}; allowed: 0 to {trace.n_steps - 1}")
    resident = np.zeros((trace.n_layers, trace.n_experts), bool)
    hits = uses = 0
    for step in range(trace.n_steps):
        for visit in visits(trace, step):
            used = visit.loads > 0
            if step >= warmup:
                hits += np.count_nonzero(used & resident[visit.layer])
                uses += np.count_nonzero(used)
            policy.observe(visit)
            present = used | resident[visit.layer]
            worth = np.where(present, policy.worth(visit.layer), -np.inf)
            resident[visit.layer] = best(worth, slots) & present
    return hits / uses
