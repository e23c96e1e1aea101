"""Phones as data: every number with its unit, where it comes from, and how sure it is.

A profile is a YAML file in which each number is `{value, unit, tag, source}`. The loader refuses a
number without all four, so that no figure of a report rests on a number that nobody can look up.
It also refuses a number that is not above 0, but for fields with a default: these are stages that
may be missing, which 0 stands for. The file states them all the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_type_hints

from llada_jax.config import require, require_choice
from llada_jax.config_files import find_yaml, read_yaml
from llada_jax.io import atomic

PROFILES = Path(__file__).parent / "profiles"
Tag = Literal["measured", "vendor", "derived", "inferred"]
"""`measured` on a phone, `vendor` claim, `derived` from measurements (as fits), `inferred`."""
Overlap = Literal["dequantization", "all"]
AttentionOn = Literal["npu", "cpu"]
CpuClass = Literal["plain", "tuned"]
UNITS = {
    **{"gbps": "GB/s", "mib": "MiB", "ms": "ms", "us": "us", "ns": "ns", "gib": "ms/GiB"},
    **{"tops": "TOPS", "gweights": "Gweights/s", "rows": "rows", "bits": "bits", "w": "W"},
    **{"overlap": "-", "attention": "-", "slowdown": "times", "spread": "ln"},
}
"""Of a number, by the end of its name; the file must state the same."""


@dataclass(frozen=True)
class Sourced:
    """One entry of a profile."""

    value: Any
    unit: str
    tag: Tag
    source: str
    doubt: float | None = None
    """Standard deviation of its logarithm, where it is known; else its tag's."""


@dataclass(frozen=True, kw_only=True)
class PhoneMemory:
    """Shared memory, the NPU's own, and what the NPU can address."""

    dram_gbps: float
    """What all units draw together at the most."""
    vtcm_mib: float
    address_space_mib: float
    """What can be mapped at one time before mapping fails."""
    mapping_cap_mib: float
    """What a session keeps mapped; beyond it, buffers are mapped again as they are needed."""
    buffer_mib: float
    """Largest buffer of weights, the unit in which they are mapped."""


@dataclass(frozen=True, kw_only=True)
class MappingPaths:
    """Three ways to make weights visible to the NPU."""

    event_ms: float
    """Mapping one buffer at once, while an operator waits."""
    copy_gbps: float
    """Copying into a staging buffer that stays mapped."""
    copy_ms: float = 0
    """What such a copy costs once a step, whatever its size."""
    delayed_ms_per_gib: float
    """Mapping and unmapping, from the NPU's side, a buffer that was registered before."""


@dataclass(frozen=True, kw_only=True)
class NpuKernels:
    """How well one library of kernels uses the NPU."""

    tile_rows: int
    """Rows are padded to a multiple of it."""
    pass_rows: int
    """Rows that share one pass over a matrix: its weights are read (and unpacked) once a pass."""
    matrix_tops: float
    """The matrix engine on resident operands, two operations for a multiply-add."""
    dma_gbps: float
    """PhoneMemory to the NPU's own, within a model."""
    dequant_gweights: float = 0
    fast_dequant_gweights: float = 0
    """The same for the matrices whose kernel is faster: FFN down, and the head."""
    gemv_gbps: float = 0
    """Weights a second in a kernel of its own for a single row; 0: it runs as a padded tile."""
    overlap: Overlap
    """What runs at one time: DMA with dequantization only, or both with the matrix engine too."""
    readout_us: float = 0
    """Reading one [tile_rows, 32] accumulator, where that is not in `matrix_tops`."""
    elementwise_ns: float
    """An element of an elementwise or reducing operation."""
    score_ns: float
    """An attention score, its softmax and its share of both products' layout included."""
    activation_ns: float = 0
    """Quantizing an input or dequantizing an output of a product with integers."""
    attention: AttentionOn
    """Where attention runs: on the CPU, the NPU waits for it."""
    kv_bits: int
    layer_overhead_us: float = 0
    """What a layer costs whatever its rows: dispatch, synchronization, setup of its operators."""
    step_overhead_us: float = 0
    """The call from the host, once a forward."""


@dataclass(frozen=True, kw_only=True)
class CpuKernels:
    """How well one library of kernels uses the CPU."""

    gemm_tops: float
    unpack_gweights: float = 0
    """A pass over the weights that a product pays once, whatever its rows; 0: none."""
    gemv_gweights: float
    """Weights a second and row in the kernel for few rows."""
    elementwise_ns: float


@dataclass(frozen=True, kw_only=True)
class Power:
    """Of the whole phone, at the battery, by what is busy."""

    idle_w: float
    npu_w: float
    cpu_w: float
    both_w: float
    core_w: float
    """One core that copies, above what else runs."""


@dataclass(frozen=True, kw_only=True)
class Sessions:
    """How a phone's state (its heat, its power settings) slows whole runs, by what they run on.

    All runs of a session share its state, so that it cancels in their ratios.
    """

    npu_slowdown: float
    """A usual session's time over that of the other numbers, which are of a cool phone."""
    npu_spread: float
    """Standard deviation of its logarithm from session to session."""
    cpu_slowdown: float
    cpu_spread: float

    def slowdown(self, processor: Literal["npu", "cpu"]) -> float:
        """Returns a usual session's factor on runs that this processor leads."""
        return self.npu_slowdown if processor == "npu" else self.cpu_slowdown

    def spread(self, processor: Literal["npu", "cpu"]) -> float:
        """Returns the standard deviation of that factor's logarithm."""
        return self.npu_spread if processor == "npu" else self.cpu_spread


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One phone."""

    soc: str
    phone: str
    memory: PhoneMemory
    mapping: MappingPaths
    npu: Mapping[str, NpuKernels]
    """Kernel classes by name; `llada_cpp` and `vendor` in every profile."""
    cpu: Mapping[str, CpuKernels]
    """`plain` (llama.cpp as llada.cpp ran it) and `tuned` (int8 matrix instructions)."""
    power: Power
    session: Sessions
    numbers: Mapping[str, Sourced]
    """All entries by path: `npu.llada_cpp.tile_rows`."""

    def kernels(self, name: str) -> NpuKernels:
        """Returns an NPU kernel class by name."""
        require(name in self.npu, f"kernels is {name!r}; allowed: {', '.join(self.npu)}")
        return self.npu[name]

    def cpu_kernels(self, name: str) -> CpuKernels:
        """Returns a CPU kernel class by name."""
        require(name in self.cpu, f"cpu is {name!r}; allowed: {', '.join(self.cpu)}")
        return self.cpu[name]

    def with_values(self, values: Mapping[str, float]) -> "Profile":
        """Returns a copy with other values at some paths; units, tags and sources stay."""
        numbers = dict(self.numbers)
        for path, value in values.items():
            require(path in numbers, f"{path} is no number of {self.soc}")
            numbers[path] = replace(numbers[path], value=value)
        return profile_of(self.soc, self.phone, numbers)

    def save(self, path: Path) -> None:
        """Writes a YAML file that `load_profile` reads, whole or not at all."""
        tree: dict[str, Any] = {"soc": self.soc, "phone": self.phone}
        for place, entry in self.numbers.items():
            *rooms, name = place.split(".")
            node = tree
            for room in rooms:
                node = node.setdefault(room, {})
            node[name] = {key: each for key, each in vars(entry).items() if each is not None}
        import yaml

        text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=100)
        atomic.write_text(path, text)


def load_profile(name_or_path: str | PathLike[str]) -> Profile:
    """Reads a profile: of a phone that comes with the package by its SoC, or a YAML file of yours.

    Raises ValueError that lists the phones, or names the entry that is missing or not sourced.
    """
    path = find_yaml("phone", PROFILES, name_or_path)
    content = read_yaml(path)
    for name in ("soc", "phone"):
        require(isinstance(content.get(name), str), f"{path}: {name} is missing; allowed: text")
    entries = {name: part for name, part in content.items() if name not in ("soc", "phone")}
    try:
        return profile_of(content["soc"], content["phone"], dict(_flat(entries, "")))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _flat(node: Any, path: str):
    require(isinstance(node, Mapping), f"{path} is {node!r}; allowed: value, unit, tag and source")
    if "value" in node:
        yield path, _sourced(node, path)
        return
    for name, part in node.items():
        yield from _flat(part, f"{path}.{name}" if path else name)


def _sourced(node: Mapping[str, Any], path: str) -> Sourced:
    for name in ("unit", "tag", "source"):
        text = node.get(name)
        require(isinstance(text, str) and bool(text.strip()), f"{path} has no {name}")
    require_choice(f"tag of {path}", node["tag"], Tag)
    unknown = set(node) - {"value", "unit", "tag", "source", "doubt"}
    require(
        not unknown,
        f"{path} has {sorted(map(str, unknown))}; allowed: value, unit, tag, source and doubt",
    )
    if "doubt" in node:
        _value(f"doubt of {path}", node["doubt"], float, zero=False)
    return Sourced(**node)


_ROOMS = {"memory": PhoneMemory, "mapping": MappingPaths, "power": Power, "session": Sessions}
_CHOICES = (Overlap, AttentionOn)
_CLASSES = {"npu": NpuKernels, "cpu": CpuKernels}
_REQUIRED = ("npu.llada_cpp", "npu.vendor", "cpu.plain", "cpu.tuned")


def profile_of(soc: str, phone: str, numbers: Mapping[str, Sourced]) -> Profile:
    """Returns the profile of entries at all paths, checked. Raises ValueError as `load_profile`."""
    paths = (path.rpartition(".")[0] for path in numbers)
    classes = {path for path in paths if path.partition(".")[0] in _CLASSES} | set(_REQUIRED)
    left = dict(numbers)
    rooms: dict[str, Any] = {name: _part(kind, name, left) for name, kind in _ROOMS.items()}
    rooms |= {room: {} for room in _CLASSES}
    for path in sorted(classes):
        room, _, name = path.partition(".")
        rooms[room][name] = _part(_CLASSES[room], path, left)
    require(not left, f"{', '.join(sorted(left))}: no number of a profile")
    return Profile(soc=soc, phone=phone, numbers=numbers, **rooms)


def _part(kind: Any, path: str, left: dict[str, Sourced]) -> Any:
    """Returns the dataclass that lies at a path; takes its numbers out of those that are left."""
    hints, values = get_type_hints(kind), {}
    for each in fields(kind):
        name, unit = f"{path}.{each.name}", UNITS[each.name.rpartition("_")[2]]
        require(name in left, f"{name} is missing")
        entry = left.pop(name)
        require(entry.unit == unit, f"unit of {name} is {entry.unit!r}; allowed: {unit!r}")
        values[each.name] = _value(name, entry.value, hints[each.name], zero=each.default == 0)
    return kind(**values)


def _value(name: str, number: Any, hint: Any, *, zero: bool) -> Any:
    if hint in _CHOICES:
        require_choice(name, number, hint)
        return number
    plain = isinstance(number, int | float) and not isinstance(number, bool) and isfinite(number)
    least = "0 or more" if zero else "above 0"
    require(
        plain and (number > 0 or (zero and number == 0)),
        f"{name} is {number!r}; allowed: a number, {least}",
    )
    return hint(number)
