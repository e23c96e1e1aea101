"""Which weights a step stages, and when: by a rule of the runtime, or by a planner's plan.

By rule, whole buffers stay mapped, and what a step stages of the others is spread over its layers.
Of a mixture that is every expert's weights, since no runtime knows in time which ones a step will
need. A plan says it operator by operator, and may stage for the step to come.
"""

import math
from collections.abc import Iterator, Sequence
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
from llada_jax.swap.address_plan import Plan
from llada_jax.swap.graph import Graph
from llada_jax.swap.stall_times import waits_of


class Stretch(NamedTuple):
    """Neighbouring operators of the body that run as one task."""

    name: str
    share: float
    """Of the body's compute time."""


class WeightTransfer(NamedTuple):
    """Weights that become visible to the NPU together, in every step."""

    name: str
    seconds: float
    copied_bytes: float
    """0 where the bytes stay where they are and are only mapped."""
    feeds: int
    """The stretch that waits for it."""
    after: int | None
    """The stretch that it waits for; None for the start of the step."""
    lag: int = 0
    """Whether that stretch is of the same step (0) or of the one before (1)."""


class WeightTransfers(NamedTuple):
    """What every step stages; nothing, where all stays mapped."""

    transfers: tuple[WeightTransfer, ...] = ()
    resident_mib: float | None = None
    """Weights that stay mapped by the rule; None for a plan, which gives each its address."""
    stretches: tuple[Stretch, ...] = ()
    """What a plan's transfers wait for and feed; by the rule none, as these are the layers."""

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
    return tuple(
        WeightTransfer(
            f"stage {layer}", each, copied_bytes, layer, layer - places if layer >= places else None
        )
        for layer, each in enumerate(seconds)
        if each
    )


def transfers_of_plan(graph: Graph, plan: Plan, *, copies: bool) -> WeightTransfers:
    """Returns a plan's transfers, with the transfer times of its graph.

    Operators between which nothing is waited for run as one task. `copies` says whether a transfer
    moves the bytes, and so draws from memory, or maps them.
    """
    waits = waits_of(graph, plan)
    bounds = sorted({0, len(plan.order), *waits.first, *(after + 1 for after in waits.after)})
    stretch_at = [number for number, at in enumerate(bounds[1:]) for _ in range(bounds[number], at)]
    transfers = []
    for number, transfer in enumerate(plan.transfers):
        size = sum(graph.operators[index].weight_bytes for index in transfer.operators)
        transfers.append(
            WeightTransfer(
                f"stage {graph.operators[transfer.operators[0]].name}",
                waits.ns[number] / 1e9,
                size if copies else 0,
                stretch_at[waits.first[number]],
                stretch_at[waits.after[number]],
                waits.lag[number],
            )
        )
    return WeightTransfers(tuple(transfers), stretches=tuple(_stretches(graph, plan, bounds)))


def _stretches(graph: Graph, plan: Plan, bounds: list[int]) -> Iterator[Stretch]:
    for begin, end in pairwise(bounds):
        operators = [graph.operators[index] for index in plan.order[begin:end]]
        first, last = operators[0].name, operators[-1].name
        compute = sum(operator.compute_ns for operator in operators)
        name = first if len(operators) == 1 else f"{first} to {last}"
        yield Stretch(name, compute / max(1, graph.compute_ns))
