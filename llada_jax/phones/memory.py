"""The NPU's address space: how much of it a run needs, and the weights that each step stages.

A session of the NPU can map only some GiB, less than the weights of a large model. Weights are in
buffers of at most `buffer_mib`. If they do not all fit, a runtime maps buffers again when operators
need them, copies weights into staging slots that stay mapped, or maps registered buffers from the
NPU (`system.Runtime`). Here this follows a simple rule: whole buffers stay mapped, and the staging
of the others is spread evenly over the layers. `swap_plan` has optimized plans instead. All experts
of a mixture are staged, since no runtime knows early enough which ones a step needs.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from llada_jax.config import ModelConfig, require
from llada_jax.model.architecture.parameters import body_matrices, head_weights, is_routed
from llada_jax.phones.profile import PhoneMemory, Profile
from llada_jax.phones.system import System
from llada_jax.swap.address_space import MIB
from llada_jax.swap.graph import ACTIVATION_BYTES, kv_bytes_per_token

_SLOTS_MIB = 256.0
"""Both staging slots together, as in llada.cpp (arXiv 2606.13740, Figure 13c)."""
_RESERVED_ROWS = 64
"""Resident weights leave room for the activations of this many rows."""
WEIGHT_BITS = 4.5
"""Bits of a weight in Q4_0, with its share of the scale."""


class Footprint(NamedTuple):
    """MiB that a run needs mapped at once, and the limit."""

    weights: float
    cache: float
    temporaries: float
    limit: float

    @property
    def total(self) -> float:
        return self.weights + self.cache + self.temporaries

    @property
    def fits(self) -> bool:
        return self.total <= self.limit

    @property
    def reason(self) -> str:
        """Describes the sizes in words, for reports and errors."""
        return (
            f"{self.total:,.0f} MiB to map ({self.weights:,.0f} weights, {self.cache:,.0f} keys "
            f"and values, {self.temporaries:,.0f} temporaries) in {self.limit:,.0f} MiB"
        )


def weights_mib(model: ModelConfig, *, head: bool) -> float:
    """Returns the size of the body's matrices, with all experts, and optionally of the head."""
    n_weights = sum(matrix.weights for matrix in body_matrices(model))
    return (n_weights + (head_weights(model) if head else 0)) * WEIGHT_BITS / 8 / MIB


def buffers_mib(total: float, largest: float) -> list[float]:
    """Returns the sizes of full buffers and of a last, partly filled one."""
    full, rest = divmod(total, largest)
    return [largest] * int(full) + ([rest] if rest else [])


def resident_mib(buffers: list[float], budget: float) -> float:
    """Returns the largest sum of whole buffers within the budget (a subset sum)."""
    sums = {0.0}
    for size in buffers:
        sums |= {partial + size for partial in sums if partial + size <= budget}
    return max(sums)


def temporaries_mib(model: ModelConfig, rows: int, *, shared: bool) -> float:
    """Returns the size of the activations of one layer (`shared`), or of all layers.

    Layers run one after the other, so a runtime that plans lifetimes reuses the memory.
    """
    outside_ffn = 4 * model.width + 2 * (model.n_heads + model.n_kv_heads) * model.head_dim
    per_row = [outside_ffn + _ffn_activations(model, layer) for layer in range(model.n_layers)]
    return rows * (max(per_row) if shared else sum(per_row)) * ACTIVATION_BYTES / MIB


def _ffn_activations(model: ModelConfig, layer: int) -> int:
    """Returns the activations of one row in a feed-forward, or in the experts that it activates."""
    moe = model.moe
    if moe is None or not is_routed(model, layer):
        return 3 * model.ffn_width
    routed = moe.experts_per_token * (model.width + 3 * moe.expert_width)
    return routed + 3 * moe.shared_width + moe.n_experts


def footprint(
    system: System,
    model: ModelConfig,
    memory: PhoneMemory,
    *,
    canvas: int,
    rows: int,
    staging_mib: float = _SLOTS_MIB,
) -> Footprint:
    """Returns how much must be mapped at once for forwards of `rows` rows on a canvas.

    The weights depend on the runtime. "none" and "remap" need all of them at an address, "none"
    within the smaller limit of a session that never maps again. "paging" needs two buffers, the
    current and the next one, and gives each temporary its own address. "swap" needs its slots only,
    and "delayed" one buffer.
    """
    runtime = system.runtime
    temporaries = temporaries_mib(model, rows, shared=runtime != "paging")
    if runtime == "wide":
        return Footprint(0.0, 0.0, temporaries, memory.address_space_mib)
    weights = weights_mib(model, head=system.head_on_npu)
    mapped_weights = {
        "none": weights,
        "remap": weights,
        "paging": 2 * memory.buffer_mib,
        "swap": staging_mib,
        "delayed": memory.buffer_mib,
    }[runtime]
    limit = memory.mapping_cap_mib if runtime == "none" else memory.address_space_mib
    cache = kv_bytes_per_token(model) * canvas / MIB
    return Footprint(min(weights, mapped_weights), cache, temporaries, limit)


def max_rows(
    system: System, model: ModelConfig, memory: PhoneMemory, *, canvas: int, resident: float = 0.0
) -> int:
    """Returns the largest number of rows of a forward whose activations fit.

    Args:
      resident: MiB of weights that stay mapped while others are staged through the slots.

    Raises ValueError if not even one row fits.
    """
    staging = _SLOTS_MIB + resident
    one_row = footprint(system, model, memory, canvas=canvas, rows=1, staging_mib=staging)
    require(
        one_row.fits,
        f"runtime is {system.runtime!r}: one row needs {one_row.reason}; allowed: a runtime or a "
        "canvas that leaves room for a row",
    )
    return int((one_row.limit - one_row.weights - one_row.cache) / one_row.temporaries)


class WeightTransfer(NamedTuple):
    """Weights that become visible to the NPU together, once in every step."""

    name: str
    seconds: float
    copied_bytes: float
    """0 if the bytes are only mapped, not copied."""
    feeds: int | None
    """Layer that waits for the transfer, or None."""
    after: int | None
    """Layer that must end before the transfer starts, or None for the start of the step."""
    kind: str = "staging"
    """Name in a breakdown."""


class WeightTransfers(NamedTuple):
    """The transfers of every step; empty if all weights stay mapped."""

    transfers: tuple[WeightTransfer, ...] = ()
    resident_mib: float | None = None
    """Weights that stay mapped by the rule, or None for a plan, which has an address for each."""

    @property
    def seconds(self) -> float:
        """Time of one step's transfers if nothing hides them."""
        return math.fsum(transfer.seconds for transfer in self.transfers)


def transfers_by_rule(
    system: System, model: ModelConfig, profile: Profile, canvas: int = 0
) -> WeightTransfers:
    """Returns the transfers of each step in a loop: whole buffers stay mapped, the rest is staged.

    The resident weights leave room for the canvas's keys and values, for the activations of
    `_RESERVED_ROWS` rows and for the slots. Raises ValueError if the runtime is "none" and a
    session cannot keep everything mapped.
    """
    if system.body == "cpu":
        return WeightTransfers()
    runtime, memory, paths = system.runtime, profile.memory, profile.mapping
    weights = weights_mib(model, head=system.head_on_npu)
    cache = kv_bytes_per_token(model) * canvas / MIB
    if runtime == "none":
        needed = footprint(system, model, memory, canvas=canvas, rows=_RESERVED_ROWS)
        require(
            needed.fits,
            f"runtime is 'none', which maps all at once: {needed.reason}; allowed: no more than "
            "a session keeps mapped, or a runtime that stages",
        )
    if runtime in ("none", "wide") or weights + cache <= memory.mapping_cap_mib:
        return WeightTransfers(resident_mib=weights)
    buffers = buffers_mib(weights, memory.buffer_mib)
    if runtime == "swap":
        temporaries = temporaries_mib(model, _RESERVED_ROWS, shared=True)
        room = max(0.0, memory.address_space_mib - _SLOTS_MIB - cache - temporaries)
        resident = resident_mib(buffers, min(system.resident_mib, room))
        copied = (weights - resident) * MIB
        seconds = copied / (paths.copy_gbps * 1e9) + paths.copy_ms / 1e3 if copied else 0.0
        per_layer = [seconds / model.n_layers] * model.n_layers
        return WeightTransfers(_by_layer(per_layer, copied / model.n_layers, 2), resident)
    # The other runtimes map every buffer again in each step. A loop over buffers that do not all
    # fit has always just unmapped the one that it needs next (least recently used).
    buffer_seconds = paths.event_ms / 1e3
    if runtime == "delayed":
        buffer_seconds = weights / 1024 * paths.delayed_ms_per_gib / 1e3 / len(buffers)
    # Layer i starts as many buffers as begin within its share of the weights.
    first = [layer * len(buffers) // model.n_layers for layer in range(model.n_layers + 1)]
    per_layer = [(end - begin) * buffer_seconds for begin, end in pairwise(first)]
    return WeightTransfers(_by_layer(per_layer, 0.0, 1), weights)


def _by_layer(seconds: Sequence[float], copied: float, n_slots: int) -> tuple[WeightTransfer, ...]:
    """Returns a transfer for each layer; it waits for the layer that used its slot before."""
    kind = "staging" if copied else "mapping"
    return tuple(
        WeightTransfer(f"stage {n}", time, copied, n, n - n_slots if n >= n_slots else None, kind)
        for n, time in enumerate(seconds)
        if time
    )
