"""Which weights a step stages, and when, by a rule of the runtime.

Whole buffers stay mapped, and what a step stages of the others is spread over its layers. Of a
mixture that is every expert's weights, since no runtime knows in time which ones a step will need.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from llada_jax.config import ModelConfig, require
from llada_jax.phone.memory import (
    LARGEST_ROWS,
    SLOTS_MIB,
    buffers_mib,
    cache_mib,
    footprint,
    resident_mib,
    temporaries_mib,
    weights_mib,
)
from llada_jax.phone.profile import Profile
from llada_jax.phone.system import System
from llada_jax.swap.address_budget import MIB


class WeightTransfer(NamedTuple):
    """Weights that become visible to the NPU together, in every step."""

    name: str
    seconds: float
    copied_bytes: float
    """0 where the bytes stay where they are and are only mapped."""
    feeds: int | None
    """The layer that waits for it; None where none does."""
    after: int | None
    """The layer that it waits for; None for the start of the step."""
    kind: str = "staging"
    """What it is called in a breakdown."""


class WeightTransfers(NamedTuple):
    """What every step stages; nothing, where all stays mapped."""

    transfers: tuple[WeightTransfer, ...] = ()
    resident_mib: float | None = None
    """Weights that stay mapped by the rule; None for a plan, which gives each its address."""

    @property
    def seconds(self) -> float:
        """One step's, when nothing hides it."""
        return math.fsum(transfer.seconds for transfer in self.transfers)


def transfers_by_rule(
    system: System, model: ModelConfig, profile: Profile, canvas: int = 0
) -> WeightTransfers:
    """Returns what a step in a loop stages where whole buffers stay and the rest is staged.

    What stays must leave room for keys and values of the canvas, for the activations of
    `LARGEST_ROWS`, and for the slots. Raises ValueError where the runtime is "none" and all does
    not stay mapped.
    """
    if system.body == "cpu":
        return WeightTransfers()
    runtime, memory, paths = system.runtime, profile.memory, profile.mapping
    weights, cache = weights_mib(model, head=system.head_on_npu), cache_mib(model, canvas)
    if runtime == "none":
        found = footprint(system, model, memory, canvas=canvas, rows=LARGEST_ROWS)
        require(
            found.fits,
            f"runtime is 'none', which maps all at once: {found.reason}; allowed: no more than "
            "a session keeps mapped, or a runtime that stages",
        )
    if runtime in ("none", "wide") or weights + cache <= memory.mapping_cap_mib:
        return WeightTransfers(resident_mib=weights)
    buffers = buffers_mib(weights, memory.buffer_mib)
    if runtime == "swap":
        temporaries = temporaries_mib(model, LARGEST_ROWS, shared=True)
        room = max(0.0, memory.address_space_mib - SLOTS_MIB - cache - temporaries)
        resident = resident_mib(buffers, min(system.resident_mib, room))
        copied = (weights - resident) * MIB
        seconds = copied / (paths.copy_gbps * 1e9) + paths.copy_ms / 1e3 if copied else 0.0
        shares = [seconds / model.n_layers] * model.n_layers
        return WeightTransfers(_by_layer(shares, copied / model.n_layers, places=2), resident)
    # In a cycle over buffers that do not all fit, each one is gone when its turn comes.
    event = paths.event_ms / 1e3
    if runtime == "delayed":
        event = weights / 1024 * paths.delayed_ms_per_gib / 1e3 / len(buffers)
    ends = [layer * len(buffers) // model.n_layers for layer in range(model.n_layers + 1)]
    shares = [(end - begin) * event for begin, end in pairwise(ends)]
    return WeightTransfers(_by_layer(shares, 0.0, places=1), weights)


def _by_layer(
    seconds: Sequence[float], copied_bytes: float, *, places: int
) -> tuple[WeightTransfer, ...]:
    """Returns a transfer for each layer; it waits for the layer that used its place before."""
    kind = "staging" if copied_bytes else "mapping"
    return tuple(
        WeightTransfer(
            f"stage {n}", each, copied_bytes, n, n - places if n >= places else None, kind
        )
        for n, each in enumerate(seconds)
        if each
    )
