"""Phones as data: every number with its unit, where it comes from, and how sure it is.

A profile is a YAML file in which each number is `{value, unit, tag, source}`. The loader refuses a
number without all four, so that no figure of a report rests on a number that nobody can look up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

from llada_jax.config import require, require_choice
from llada_jax.config_files import find_yaml, read_yaml

PROFILES = Path(__file__).parent / "profiles"
Tag = Literal["measured", "vendor", "derived", "inferred"]
"""`measured` on a phone, `vendor` claim, `derived` by arithmetic from measurements (fits are),
`inferred`: an assumption."""
Overlap = Literal["dequantization", "all"]
CpuClass = Literal["plain", "tuned"]

T = TypeVar("T")


@dataclass(frozen=True)
class Sourced:
    """One entry of a profile."""

    value: Any
    unit: str
    tag: Tag
    source: str


def _in(unit: str) -> Any:
    """Declares a field of a profile, with the unit that the file must state."""
    return field(metadata={"unit": unit, "least": "above 0"})


def _or_none(unit: str) -> Any:
    """Declares the same for a stage that may be missing, which 0 stands for."""
    return field(metadata={"unit": unit, "least": "0 or more"})


@dataclass(frozen=True, kw_only=True)
class PhoneMemory:
    """Shared memory, the NPU's own, and what the NPU can address."""

    dram_gbps: float = _in("GB/s")
    """What all units draw together at the most."""
    vtcm_mib: float = _in("MiB")
    address_space_mib: float = _in("MiB")
    """What can be mapped at one time before mapping fails."""
    mapping_cap_mib: float = _in("MiB")
    """What a session keeps mapped; beyond it, buffers are mapped again as they are needed."""
    buffer_mib: float = _in("MiB")
    """Largest buffer of weights, the unit in which they are mapped."""


@dataclass(frozen=True, kw_only=True)
class MappingPaths:
    """Three ways to make weights visible to the NPU."""

    event_ms: float = _in("ms")
    """Mapping one buffer at once, while an operator waits."""
    copy_gbps: float = _in("GB/s")
    """Copying into a staging buffer that stays mapped."""
    copy_ms: float = _or_none("ms")
    """What such a copy costs once a step, whatever its size."""
    delayed_ms_per_gib: float = _in("ms/GiB")
    """Mapping and unmapping, from the NPU's side, a buffer that was registered before."""


@dataclass(frozen=True, kw_only=True)
class NpuKernels:
    """How well one library of kernels uses the NPU; 0 stands for a stage that it does not have."""

    tile_rows: int = _in("rows")
    """Rows are padded to a multiple of it."""
    pass_rows: int = _in("rows")
    """Rows that share one pass over a matrix: its weights are read (and unpacked) once a pass."""
    matrix_tops: float = _in("TOPS")
    """The matrix engine on resident operands, two operations for a multiply-add."""
    dma_gbps: float = _in("GB/s")
    """PhoneMemory to the NPU's own, within a model."""
    dequant_gweights: float = _or_none("Gweights/s")
    fast_dequant_gweights: float = _or_none("Gweights/s")
    """The same for the matrices whose kernel is faster: FFN down, and the head."""
    gemv_gbps: float = _or_none("GB/s")
    """Weights a second in a kernel of its own for a single row; 0: it runs as a padded tile."""
    overlap: Overlap = field(metadata={"unit": "-", "least": ""})
    """What runs at one time: DMA with dequantization only, or both with the matrix engine too."""
    readout_us: float = _or_none("us")
    """Reading one [tile_rows, 32] accumulator, where that is not in `matrix_tops`."""
    elementwise_ns: float = _in("ns")
    """An element of an elementwise or reducing operation."""
    score_ns: float = _in("ns")
    """An attention score, its softmax and its share of both products' layout included."""
    activation_ns: float = _or_none("ns")
    """Quantizing an input or dequantizing an output of a product with integers."""
    kv_bits: int = _in("bits")
    layer_overhead_us: float = _or_none("us")
    """What a layer costs whatever its rows: dispatch, synchronization, setup of its operators."""
    step_overhead_us: float = _or_none("us")
    """The call from the host, once a forward."""


@dataclass(frozen=True, kw_only=True)
class CpuKernels:
    """How well one library of kernels uses the CPU."""

    gemm_tops: float = _in("TOPS")
    unpack_gweights: float = _or_none("Gweights/s")
    """A pass over the weights that a product pays once, whatever its rows; 0: none."""
    gemv_gweights: float = _in("Gweights/s")
    """Weights a second and row in the kernel for few rows."""
    elementwise_ns: float = _in("ns")


@dataclass(frozen=True, kw_only=True)
class Power:
    """Of the whole phone, at the battery, by what is busy."""

    idle_w: float = _in("W")
    npu_w: float = _in("W")
    cpu_w: float = _in("W")
    both_w: float = _in("W")


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
            old = numbers[path]
            numbers[path] = Sourced(value, old.unit, old.tag, old.source)
        return _build(self.soc, self.phone, numbers)


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
        return _build(content["soc"], content["phone"], dict(_flat(entries, "")))
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
    unknown = set(node) - {"value", "unit", "tag", "source"}
    require(not unknown, f"{path} has {sorted(unknown)}; allowed: value, unit, tag and source")
    return Sourced(**node)


_CLASSES = {"npu": NpuKernels, "cpu": CpuKernels}
_PARTS = {"memory": PhoneMemory, "mapping": MappingPaths, "power": Power}
_REQUIRED = {"npu": ("llada_cpp", "vendor"), "cpu": ("plain", "tuned")}


def _build(soc: str, phone: str, numbers: Mapping[str, Sourced]) -> Profile:
    used: set[str] = set()
    parts = {name: _part(kind, name, numbers, used) for name, kind in _PARTS.items()}
    classes = {}
    for room, kind in _CLASSES.items():
        names = {path.split(".")[1] for path in numbers if path.startswith(f"{room}.")}
        for name in _REQUIRED[room]:
            require(name in names, f"{room}.{name} is missing")
        classes[room] = {
            name: _part(kind, f"{room}.{name}", numbers, used) for name in sorted(names)
        }
    unknown = sorted(set(numbers) - used)
    require(not unknown, f"{', '.join(unknown)}: no number of a profile")
    return Profile(soc=soc, phone=phone, numbers=numbers, **parts, **classes)  # pyright: ignore


def _part(kind: type[T], path: str, numbers: Mapping[str, Sourced], used: set[str]) -> T:
    hints = get_type_hints(kind)
    values = {}
    for each in fields(kind):  # pyright: ignore[reportArgumentType]
        name = f"{path}.{each.name}"
        require(name in numbers, f"{name} is missing")
        used.add(name)
        values[each.name] = _value(name, numbers[name], hints[each.name], each.metadata)
    return kind(**values)


def _value(name: str, entry: Sourced, hint: Any, wanted: Mapping[str, str]) -> Any:
    unit, least = wanted["unit"], wanted["least"]
    require(entry.unit == unit, f"unit of {name} is {entry.unit!r}; allowed: {unit!r}")
    if hint is Overlap:
        require_choice(name, entry.value, Overlap)
        return entry.value
    number = entry.value
    plain = isinstance(number, int | float) and not isinstance(number, bool)
    large_enough = plain and (number > 0 or (number == 0 and least == "0 or more"))
    require(large_enough and isfinite(number), f"{name} is {number!r}; allowed: a number, {least}")
    return hint(number)
