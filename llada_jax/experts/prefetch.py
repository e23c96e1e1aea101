"""What an idle link brings in: the expert that shortens a coming layer most, for one it evicts.

The gain of a swap is the difference of two schedules, without and with it, over the loads that the
layer is expected to have. The schedule depends on an expert by its load alone, so the missing
expert of highest load is the best candidate of its layer.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Bool, Float

from llada_jax.experts.cache import CachePolicy, Visit
from llada_jax.experts.costs import ExpertCosts
from llada_jax.experts.routing import loads_of
from llada_jax.experts.schedule import IDLE, Scheduler

LEAST_LOAD = 0.5
"""An expert is expected to be active from so many rows on."""


class Swap(NamedTuple):
    """One transfer: `expert` takes the slot of `victim`."""

    layer: int
    expert: int
    victim: int


class Forecast(NamedTuple):
    """The loads that a layer is expected to have when it runs next."""

    layer: int
    loads: Float[np.ndarray, " E"]


class LookAhead(Protocol):
    """For which of N layers to bring experts during a visit, and what loads they will have."""

    def __call__(self, visit: Visit, cache: CachePolicy, n_layers: int) -> Sequence[Forecast]: ...


def no_look_ahead(visit: Visit, cache: CachePolicy, n_layers: int) -> Sequence[Forecast]:
    """Brings nothing in ahead of time."""
    return ()


def gates_ahead(visit: Visit, cache: CachePolicy, n_layers: int) -> Sequence[Forecast]:
    """Foresees the next layers by their own gates on this hidden state (HybriMoE: three layers)."""
    loads = loads_of(visit.foreseen, visit.loads.size).astype(float)
    return [
        Forecast(layer, loads[layer - visit.layer - 1])
        for layer in range(visit.layer + 1, min(n_layers, visit.layer + 1 + len(loads)))
    ]


def denoised_again(visit: Visit, cache: CachePolicy, n_layers: int) -> Sequence[Forecast]:
    """Foresees all layers, in the order in which they run next, as the cache expects them."""
    order = [*range(visit.layer + 1, n_layers), *range(visit.layer + 1)]
    return [Forecast(layer, cache.worth(layer)) for layer in order]


LOOK_AHEADS: dict[str, LookAhead] = {
    "none": no_look_ahead,
    "gates": gates_ahead,
    "denoised_again": denoised_again,
}


class Prefetcher:
    """Picks the swaps of one idle spell of the link after another."""

    def __init__(
        self,
        look_ahead: LookAhead,
        cache: CachePolicy,
        scheduler: Scheduler,
        costs: ExpertCosts,
    ) -> None:
        self._look_ahead = look_ahead
        self._cache = cache
        self._scheduler = scheduler
        self._costs = costs

    def swaps(self, visit: Visit, resident: Bool[np.ndarray, "N E"]) -> Iterator[Swap]:
        """Gives the swap that gains most, and the next best each time one more is asked for.

        `resident` is read again after each swap, which the caller is to have entered.
        """
        forecasts = self._look_ahead(visit, self._cache, len(resident))
        gains = {f.layer: self._best(f, resident[f.layer]) for f in forecasts}
        loads = {f.layer: f for f in forecasts}
        while gains:
            target, (gain, swap) = max(gains.items(), key=lambda item: item[1][0])
            if gain <= 0 or swap is None:
                break
            yield swap
            gains[target] = self._best(loads[target], resident[target])

    def refills(self, visit: Visit, resident: Bool[np.ndarray, "N E"]) -> Iterator[Swap]:
        """Gives swaps until the residents are those worth most, the latest layers first."""
        n_layers = len(resident)
        for back in range(n_layers):
            target = (visit.layer - back) % n_layers
            worth = self._cache.worth(target)
            while not resident[target].all():
                victim = _least(worth, resident[target])
                expert = int(np.argmax(np.where(resident[target], -np.inf, worth)))
                if worth[expert] <= worth[victim]:
                    break
                yield Swap(target, expert, victim)

    def _best(
        self, forecast: Forecast, resident: Bool[np.ndarray, " E"]
    ) -> tuple[float, Swap | None]:
        """Returns the layer's best swap and its gain (s)."""
        loads = np.where(forecast.loads >= LEAST_LOAD, forecast.loads, 0.0)
        missing = np.where(resident, 0.0, loads)
        expert = int(np.argmax(missing))
        if missing[expert] == 0 or not resident.any():
            return 0.0, None
        victim = _least(self._cache.worth(forecast.layer), resident)
        if loads[victim] >= loads[expert]:
            return 0.0, None
        swapped = resident.copy()
        swapped[[expert, victim]] = True, False
        before = self._scheduler(loads, resident, self._costs, IDLE).seconds
        after = self._scheduler(loads, swapped, self._costs, IDLE).seconds
        return before - after, Swap(forecast.layer, expert, victim)


def _least(worth: Float[np.ndarray, " E"], resident: Bool[np.ndarray, " E"]) -> int:
    return int(np.argmin(np.where(resident, worth, np.inf)))
