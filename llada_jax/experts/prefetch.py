"""What an idle link brings in: the expert that shortens a coming layer most, for one it evicts.

The gain of a swap is the difference of two schedules, without and with it, over the loads that the
layer is expected to have. The schedule depends on an expert by its load alone, so the missing
expert of highest load is the best candidate of its layer.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from llada_jax.experts.cache import ExpertCache, Visit
from llada_jax.experts.routing import loads_of

LEAST_LOAD = 0.5
"""An expert is expected to be active from so many rows on."""
Seconds = Callable[[Float[np.ndarray, " E"], Bool[np.ndarray, " E"]], float]
"""How long the schedule of a layer takes, by its loads and residents."""
Forecast = Mapping[int, Float[np.ndarray, " E"]]
"""The loads that layers are expected to have when they run next, in the order of that."""


class Swap(NamedTuple):
    """One transfer: `expert` takes the slot of `victim`."""

    layer: int
    expert: int
    victim: int


def gates_ahead(visit: Visit, n_layers: int) -> Forecast:
    """Foresees the next layers by their own gates on this hidden state (HybriMoE: three layers)."""
    loads = loads_of(visit.foreseen, visit.loads.size).astype(float)
    return dict(zip(range(visit.layer + 1, n_layers), loads, strict=False))


def swaps(
    forecast: Forecast, cache: ExpertCache, resident: Bool[np.ndarray, "N E"], seconds: Seconds
) -> Iterator[Swap]:
    """Gives the swap that gains most, and the next best each time one more is asked for.

    `resident` is read again after each swap, which the caller is to have entered.
    """

    def best_of(layer: int) -> tuple[float, Swap | None]:
        return _best(layer, forecast[layer], cache.worth(layer), resident[layer], seconds)

    gains = {layer: best_of(layer) for layer in forecast}
    while gains:
        layer, (gain, swap) = max(gains.items(), key=lambda item: item[1][0])
        if gain <= 0 or swap is None:
            break
        yield swap
        gains[layer] = best_of(layer)


def _best(
    layer: int,
    loads: Float[np.ndarray, " E"],
    worth: Float[np.ndarray, " E"],
    resident: Bool[np.ndarray, " E"],
    seconds: Seconds,
) -> tuple[float, Swap | None]:
    """Returns the layer's best swap and its gain (s)."""
    loads = np.where(loads >= LEAST_LOAD, loads, 0.0)
    missing = np.where(resident, 0.0, loads)
    expert, victim = int(np.argmax(missing)), _least(worth, resident)
    if missing[expert] == 0 or loads[victim] >= loads[expert]:
        return 0.0, None
    swapped = resident.copy()
    swapped[[expert, victim]] = True, False
    return seconds(loads, resident) - seconds(loads, swapped), Swap(layer, expert, victim)


def refills(layer: int, cache: ExpertCache, resident: Bool[np.ndarray, "N E"]) -> Iterator[Swap]:
    """Gives swaps until the residents are those worth most, from this layer backwards."""
    n_layers = len(resident)
    for target in ((layer - back) % n_layers for back in range(n_layers)):
        worth = cache.worth(target)
        while not resident[target].all():
            victim = _least(worth, resident[target])
            expert = int(np.argmax(np.where(resident[target], -np.inf, worth)))
            if worth[expert] <= worth[victim]:
                break
            yield Swap(target, expert, victim)


def _least(worth: Float[np.ndarray, " E"], resident: Bool[np.ndarray, " E"]) -> int:
    return int(np.argmin(np.where(resident, worth, np.inf)))
