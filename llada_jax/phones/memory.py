"""What the NPU can address: what a run needs mapped at one time, and what each step stages by rule.

Weights lie in buffers of at most `buffer_mib`. Three ways to live with an address space that is too
small: map buffers again as operators need them, copy what is not resident into staging slots, or
map registered buffers from the NPU's side. Whole buffers stay mapped, and what a step stages of the
others is spread over its layers. Of a mixture that is every expert's weights, since no runtime
knows in time which ones a step will need.
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

SLOTS_MIB = 256.0
"""Two staging slots."""
LARGEST_ROWS = 64
WEIGHT_BITS = 4.5
"""Of Q4_0, scales included."""


class Footprint(NamedTuple):
    """MiB that a run needs mapped at one time, and whether that fits."""

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
        """Says it in words, for reports."""
        return (
            f"{self.total:,.0f} MiB to map ({self.weights:,.0f} weights, {self.cache:,.0f} keys "
            f"and values, {self.temporaries:,.0f} temporaries) in {self.limit:,.0f} MiB"
        )


def weights_mib(model: ModelConfig, *, head: bool) -> float:
    """Returns the size of all layers' matrices, every expert's among them, and of the head's."""
    numbers = sum(matrix.weights for matrix in body_matrices(model))
    return (numbers + (head_weights(model) if head else 0)) * WEIGHT_BITS / 8 / MIB


def buffers_mib(total: float, largest: float) -> list[float]:
    """Returns full buffers and what remains."""
    full, rest = divmod(total, largest)
    return [largest] * int(full) + ([rest] if rest else [])


def resident_mib(buffers: list[float], budget: float) -> float:
    """Returns the most that whole buffers can fill of a budget, of all their subsets."""
    sums = {0.0}
    for size in buffers:
        sums |= {taken + size for taken in sums if taken + size <= budget}
    return max(sums)


def temporaries_mib(model: ModelConfig, rows: int, *, shared: bool) -> float:
    """Returns activations: one layer's where lifetimes share offsets, else all layers'."""
    outside = 4 * model.width + 2 * (model.n_heads + model.n_kv_heads) * model.head_dim
    numbers = [outside + _inner_numbers(model, layer) for layer in range(model.n_layers)]
    return rows * (max(numbers) if shared else sum(numbers)) * ACTIVATION_BYTES / MIB


def _inner_numbers(model: ModelConfig, layer: int) -> int:
    """Returns a row's activations inside a feed-forward; of its experts, together with theirs."""
    moe = model.moe
    if moe is None or not is_routed(model, layer):
        return 3 * model.ffn_width
    taken = moe.experts_per_token * (model.width + 3 * moe.expert_width)
    return taken + 3 * moe.shared_width + moe.n_experts


def footprint(
    system: System,
    model: ModelConfig,
    memory: PhoneMemory,
    *,
    canvas: int,
    rows: int,
    staging_mib: float = SLOTS_MIB,
) -> Footprint:
    """Returns what must be mapped at one time for forwards of `rows` on a canvas.

    Without a runtime that stages, that is all weights: where each keeps its mapping (`none`), they
    must fit into what a session keeps mapped, else into what can be mapped at all. Paging holds two
    buffers, the one in use and the one that comes, and gives every temporary an offset of its own;
    swapping holds its slots (and resident buffers only as far as there is room).
    """
    runtime = system.runtime
    temporaries = temporaries_mib(model, rows, shared=runtime != "paging")
    if runtime == "wide":
        return Footprint(0.0, 0.0, temporaries, memory.address_space_mib)
    weights = weights_mib(model, head=system.head_on_npu)
    most = {
        "none": weights,
        "remap": weights,
        "paging": 2 * memory.buffer_mib,
        "swap": staging_mib,
        "delayed": memory.buffer_mib,
    }[runtime]
    limit = memory.mapping_cap_mib if runtime == "none" else memory.address_space_mib
    cache = kv_bytes_per_token(model) * canvas / MIB
    return Footprint(min(weights, most), cache, temporaries, limit)


def most_rows(
    system: System, model: ModelConfig, memory: PhoneMemory, *, canvas: int, resident: float = 0.0
) -> int:
    """Returns the most rows of a forward whose activations find room beside what must be mapped.

    `resident`: MiB of weights that stay mapped while others are swapped through the slots. Raises
    ValueError where not even one row finds room.
    """
    held = SLOTS_MIB + resident
    one = footprint(system, model, memory, canvas=canvas, rows=1, staging_mib=held)
    require(
        one.fits,
        f"runtime is {system.runtime!r}: one row needs {one.reason}; allowed: a runtime or a "
        "canvas that leaves room for a row",
    )
    return int((one.limit - one.weights - one.cache) / one.temporaries)


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
    weights = weights_mib(model, head=system.head_on_npu)
    cache = kv_bytes_per_token(model) * canvas / MIB
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
        return WeightTransfers(_by_layer(shares, copied / model.n_layers, 2), resident)
    # In a cycle over buffers that do not all fit, each one is gone when its turn comes.
    event = paths.event_ms / 1e3
    if runtime == "delayed":
        event = weights / 1024 * paths.delayed_ms_per_gib / 1e3 / len(buffers)
    ends = [layer * len(buffers) // model.n_layers for layer in range(model.n_layers + 1)]
    shares = [(end - begin) * event for begin, end in pairwise(ends)]
    return WeightTransfers(_by_layer(shares, 0.0, 1), weights)


def _by_layer(seconds: Sequence[float], copied: float, places: int) -> tuple[WeightTransfer, ...]:
    """Returns a transfer for each layer; it waits for the layer that used its place before."""
    kind = "staging" if copied else "mapping"
    return tuple(
        WeightTransfer(f"stage {n}", each, copied, n, n - places if n >= places else None, kind)
        for n, each in enumerate(seconds)
        if each
    )
