"""What the NPU can address, and what a step must therefore map or copy again.

Weights lie in buffers of at most `buffer_mib`. Three ways to live with an address space that is too
small: map buffers again as operators need them, copy what is not resident into staging slots, or
map registered buffers from the NPU's side.
"""

from typing import Literal, NamedTuple

from llada_jax.config import ModelConfig, require
from llada_jax.phone.profile import MappingPaths, Memory
from llada_jax.swap.graph import ACTIVATION_BYTES

MIB = 1 << 20
SLOTS_MIB = 256.0
"""Two staging slots."""
LARGEST_ROWS = 64
Runtime = Literal["none", "remap", "paging", "swap", "delayed", "wide"]
"""`none`: all is mapped once, or the run fails. `remap`: every buffer keeps its place in the
address space, but beyond the cap it is mapped anew at each use. `paging`: buffers are replaced,
with neither lifetimes nor slots. `swap`: a resident budget, the rest is copied through two slots
while the NPU computes. `delayed`: registered buffers, mapped from the NPU's side. `wide`: 64-bit
mappings, nothing is ever mapped twice."""


class Staging(NamedTuple):
    """What one step makes visible in all, and whether that runs beside the NPU; spread over its
    layers. `llada_jax.phone.step_tasks` has the record of a planner's plan, which says when.
    """

    copied_bytes: float = 0.0
    events: int = 0
    event_seconds: float = 0.0
    fixed_seconds: float = 0.0
    copy_bytes_per_second: float = 1.0
    overlapped: bool = False

    @property
    def seconds(self) -> float:
        """One step's, when nothing hides it."""
        copying = self.copied_bytes / self.copy_bytes_per_second
        return copying + self.events * self.event_seconds + self.fixed_seconds


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
        """In words, for reports."""
        return (
            f"{self.total:,.0f} MiB to map ({self.weights:,.0f} weights, {self.cache:,.0f} keys "
            f"and values, {self.temporaries:,.0f} temporaries) in {self.limit:,.0f} MiB"
        )


def layer_mib(model: ModelConfig, bits: float = 4.5) -> float:
    """The matrices of one dense layer."""
    heads = model.n_heads + model.n_kv_heads
    numbers = model.width * (2 * heads * model.head_dim + 3 * model.ffn_width)
    return numbers * bits / 8 / MIB


def head_mib(model: ModelConfig, bits: float = 4.5) -> float:
    """The head's matrix."""
    return model.vocab_size * model.width * bits / 8 / MIB


def weights_mib(model: ModelConfig, *, head: bool) -> float:
    """What the NPU computes with: all layers, and the head where that is not the CPU's."""
    return layer_mib(model) * model.n_layers + (head_mib(model) if head else 0.0)


def buffers_mib(total: float, largest: float) -> list[float]:
    """Full buffers and what remains."""
    full, rest = divmod(total, largest)
    return [largest] * int(full) + ([rest] if rest else [])


def resident_mib(buffers: list[float], budget: float) -> float:
    """The most that whole buffers can fill of a budget (they are few: all subsets are tried)."""
    sums = {0.0}
    for size in buffers:
        sums |= {taken + size for taken in sums if taken + size <= budget}
    return max(sums)


def staging_for(
    runtime: Runtime,
    model: ModelConfig,
    memory: Memory,
    paths: MappingPaths,
    *,
    resident_budget_mib: float = 3072,
    canvas: int = 0,
    head: bool = False,
) -> Staging:
    """What a steady-state step stages, by a rule: whole buffers stay, and the rest is staged.

    What stays must leave room for keys and values of the canvas, for the activations of
    `LARGEST_ROWS`, and for the slots. `head`: whether the head is the NPU's too. Raises ValueError
    where the runtime is "none" and all does not stay mapped.
    """
    budget = resident_budget_mib
    require(budget >= 0, f"resident budget is {budget}; allowed: 0 or more")
    weights = weights_mib(model, head=head)
    buffers = buffers_mib(weights, memory.buffer_mib)
    needed = weights + cache_mib(model, canvas)
    if runtime == "none":
        found = footprint(runtime, model, memory, canvas=canvas, rows=LARGEST_ROWS, head=head)
        require(
            found.fits,
            f"runtime is 'none', which maps all at once: {found.reason}; allowed: no more than "
            "a session keeps mapped, or a runtime that stages",
        )
    if runtime in ("none", "wide") or needed <= memory.mapping_cap_mib:
        return Staging()
    if runtime in ("remap", "paging"):
        # In a cycle over buffers that do not all fit, each one is gone when its turn comes.
        return Staging(events=len(buffers), event_seconds=paths.event_ms / 1e3)
    if runtime == "delayed":
        seconds = weights / 1024 * paths.delayed_ms_per_gib / 1e3
        return Staging(events=len(buffers), event_seconds=seconds / len(buffers))
    taken = SLOTS_MIB + cache_mib(model, canvas) + temporaries_mib(model, LARGEST_ROWS, shared=True)
    room = max(0.0, memory.address_space_mib - taken)
    moved = weights - resident_mib(buffers, min(budget, room))
    return Staging(
        copied_bytes=moved * MIB,
        fixed_seconds=paths.copy_ms / 1e3 if moved else 0.0,
        copy_bytes_per_second=paths.copy_gbps * 1e9,
        overlapped=True,
    )


def cache_mib(model: ModelConfig, positions: int, bits: int = 16) -> float:
    """Keys and values of so many positions."""
    numbers = 2 * model.n_layers * model.n_kv_heads * model.head_dim * positions
    return numbers * bits / 8 / MIB


def temporaries_mib(model: ModelConfig, rows: int, *, shared: bool) -> float:
    """Activations: one layer's where lifetimes share offsets, else all layers'."""
    hidden, attention = 4 * model.width, (2 * model.n_heads + 2 * model.n_kv_heads) * model.head_dim
    one = rows * (hidden + attention + 3 * model.ffn_width) * ACTIVATION_BYTES / MIB
    return one if shared else one * model.n_layers


def footprint(
    runtime: Runtime,
    model: ModelConfig,
    memory: Memory,
    *,
    canvas: int,
    rows: int,
    staging_mib: float = SLOTS_MIB,
    head: bool = False,
) -> Footprint:
    """What must be mapped at one time for forwards of `rows` on a canvas.

    Without a runtime that stages, that is all weights: where each keeps its mapping (`none`), they
    must fit into what a session keeps mapped, else into what can be mapped at all. Paging holds two
    buffers, the one in use and the one that comes, and gives every temporary an offset of its own;
    swapping holds its slots (and resident buffers only as far as there is room). `head`: whether
    the head is the NPU's too.
    """
    weights = weights_mib(model, head=head)
    cache = cache_mib(model, canvas)
    if runtime == "wide":
        temporaries = temporaries_mib(model, rows, shared=True)
        return Footprint(0.0, 0.0, temporaries, memory.address_space_mib)
    held = {
        "none": weights,
        "remap": weights,
        "paging": min(weights, 2 * memory.buffer_mib),
        "swap": min(weights, staging_mib),
    }.get(runtime, min(weights, memory.buffer_mib))
    temporaries = temporaries_mib(model, rows, shared=runtime != "paging")
    limit = memory.mapping_cap_mib if runtime == "none" else memory.address_space_mib
    return Footprint(held, cache, temporaries, limit)


def most_rows(
    runtime: Runtime,
    model: ModelConfig,
    memory: Memory,
    *,
    canvas: int,
    resident: float = 0.0,
    head: bool = False,
) -> int:
    """The largest forward on a canvas whose activations find room beside what must be mapped.

    `resident`: MiB of weights that stay mapped while others are swapped through the slots. Raises
    ValueError where not even one row finds room.
    """
    one = footprint(
        runtime,
        model,
        memory,
        canvas=canvas,
        rows=1,
        staging_mib=SLOTS_MIB + resident,
        head=head,
    )
    require(
        one.fits,
        f"runtime is {runtime!r}: one row needs {one.reason}; allowed: a runtime or a canvas "
        "that leaves room for a row",
    )
    return int((one.limit - one.weights - one.cache) / one.temporaries)
