"""Profiles: a phone's hardware and software as numbers with units and sources.

A profile is a YAML file in which each number is `{value, unit, tag, source}`, with an optional
`doubt`. The loader refuses a number without these four, so that every modelled result can be traced
back to a paper, a datasheet or a fit. Numbers are above 0, except for fields with a default of 0:
these are optional stages, and 0 means that the stage is absent or included in another number. The
file must contain them as well, with the reason as the source.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_type_hints

from llada_jax.config import require, require_choice
from llada_jax.config_files import find_yaml, read_yaml
from llada_jax.io import atomic

PROFILES = Path(__file__).parent / "profiles"
Tag = Literal["measured", "vendor", "derived", "inferred"]
"""How a number is known: `measured` on a phone, claimed by the `vendor`, `derived` from other
measurements (for example by a fit), or `inferred` from something similar."""
Overlap = Literal["dequantization", "all"]
AttentionOn = Literal["npu", "cpu"]
CpuClass = Literal["plain", "tuned"]
UNITS = {
    **{"gbps": "GB/s", "mib": "MiB", "ms": "ms", "us": "us", "ns": "ns", "gib": "ms/GiB"},
    **{"tops": "TOPS", "gweights": "Gweights/s", "rows": "rows", "bits": "bits", "w": "W"},
    "passes": "passes",
    **{"overlap": "-", "attention": "-", "slowdown": "times", "spread": "ln"},
}
"""Unit of a number by the last part of its name. The file must contain the same unit."""


@dataclass(frozen=True)
class SourcedNumber:
    """One number of a profile, or one choice such as `attention`."""

    value: Any
    unit: str
    tag: Tag
    source: str
    doubt: float | None = None
    """Standard deviation of the number's logarithm, or None for the default of its tag."""


@dataclass(frozen=True, kw_only=True)
class PhoneMemory:
    """Memory that all processors share, the NPU's local memory, and its address space."""

    dram_gbps: float
    """Bandwidth of all processors together."""
    vtcm_mib: float
    """Local memory of the NPU (vector tightly coupled memory)."""
    address_space_mib: float
    """How much can be mapped at once before mapping fails."""
    mapping_cap_mib: float
    """How much a session keeps mapped. Beyond it, buffers are unmapped and mapped again."""
    buffer_mib: float
    """Size of the largest buffer. Weights are mapped in whole buffers."""


@dataclass(frozen=True, kw_only=True)
class MappingPaths:
    """Costs of three ways to make weights visible to the NPU."""

    event_ms: float
    """Immediate: mapping one buffer while an operator waits for it."""
    copy_gbps: float
    """Copy: the rate of copies into a staging buffer that stays mapped."""
    copy_ms: float = 0
    """Copy: fixed time per step, whatever the size."""
    delayed_ms_per_gib: float
    """Delayed: mapping and unmapping a registered buffer from the NPU."""


@dataclass(frozen=True, kw_only=True)
class NpuKernels:
    """Speed of the NPU with one library of kernels. `cost` has the formulas."""

    tile_rows: int
    """Rows of a product are padded to a multiple of this."""
    pass_rows: int
    """Rows that share one pass over a matrix, which reads and dequantizes its weights once."""
    matrix_tops: float
    """Rate of the matrix engine on operands in VTCM. A multiply-add counts as two operations."""
    dma_gbps: float
    """Rate from DRAM to VTCM during a forward."""
    dequant_gweights: float = 0
    """Dequantization rate. 0: the kernels multiply the stored format directly."""
    fast_dequant_gweights: float = 0
    """Dequantization rate of the matrices with a faster kernel: FFN down and the head."""
    gemv_gbps: float = 0
    """Rate of stored weights in the matrix-vector kernel. 0: a single row runs as a padded tile."""
    overlap: Overlap
    """Which stages run at once: DMA and dequantization, or these and the matrix engine."""
    readout_us: float = 0
    """Time to read one accumulator tile, [tile_rows, 32]. 0: included in `matrix_tops`."""
    elementwise_ns: float
    """Time per element of an elementwise operation or reduction."""
    score_ns: float
    """Time per attention score, with its softmax and the layout changes of both products."""
    spill_passes: float = 0
    """How often the activations of a product that do not fit into VTCM move between DRAM and VTCM,
    as a factor on their bytes. 0: the kernels cut such products into passes of rows."""
    activation_ns: float = 0
    """Time to quantize an input or dequantize an output of an integer product, per element."""
    attention: AttentionOn
    """Processor of the attention. If it is the CPU, the NPU waits."""
    kv_bits: int
    """Bits of a stored key or value element."""
    layer_overhead_us: float = 0
    """Fixed time per layer: dispatch, synchronization, setup of its operators."""
    step_overhead_us: float = 0
    """Fixed time per forward: the call from the host."""
    export_spread: float = 0
    """Standard deviation of the logarithm of times between exports of one shape, which differ by
    their settings and the version of the tools. 0: included in other doubts."""


@dataclass(frozen=True, kw_only=True)
class CpuKernels:
    """Speed of the CPU with one library of kernels."""

    gemm_tops: float
    """Rate of the matrix-matrix kernel."""
    unpack_gweights: float = 0
    """Rate at which the matrix-matrix kernel unpacks the weights first. 0: it does not unpack."""
    gemv_gweights: float
    """Weights per second in the matrix-vector kernel, for each row."""
    elementwise_ns: float
    """Time per element of an elementwise operation, reduction or attention score."""


@dataclass(frozen=True, kw_only=True)
class Power:
    """Power of the whole phone at the battery, by which processors are busy."""

    idle_w: float
    npu_w: float
    cpu_w: float
    both_w: float
    core_w: float
    """Additional power of one CPU core that copies."""


class Session(NamedTuple):
    """State of a phone, such as heat and power settings, in one series of runs."""

    slowdown: float
    """Time of a run over its time on a cool phone. All runs of a session have the same, so it
    cancels in their ratios."""
    spread: float
    """Standard deviation of the logarithm of the slowdown."""


COOL = Session(1.0, 0.0)
"""A cool phone, which the other numbers of a profile describe."""


@dataclass(frozen=True, kw_only=True)
class Sessions:
    """The sessions of a phone: a typical one, and how much they differ."""

    npu_slowdown: float
    """Time of a run in a typical session over the time on a cool phone, which the other numbers of
    the profile describe; for runs on the NPU."""
    npu_spread: float
    """Standard deviation of the logarithm of this factor between sessions."""
    cpu_slowdown: float
    cpu_spread: float

    def typical(self, processor: Literal["npu", "cpu"]) -> Session:
        """Returns a session of unknown state, for runs whose body is on this processor."""
        on_npu = Session(self.npu_slowdown, self.npu_spread)
        return on_npu if processor == "npu" else Session(self.cpu_slowdown, self.cpu_spread)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The numbers of one phone, as structures and by path."""

    soc: str
    """Name of the chip, or of a calibrated profile."""
    phone: str
    """Name of the product that the numbers were measured on."""
    memory: PhoneMemory
    mapping: MappingPaths
    npu: Mapping[str, NpuKernels]
    """Kernel libraries by name. Every profile has `llada_cpp` and `vendor`."""
    cpu: Mapping[str, CpuKernels]
    """Kernel libraries by name: `plain` (llama.cpp as llada.cpp used it) and `tuned` (int8 matrix
    instructions)."""
    power: Power
    session: Sessions
    numbers: Mapping[str, SourcedNumber]
    """All numbers with their sources by path, for example `npu.llada_cpp.tile_rows`."""

    def kernels(self, name: str) -> NpuKernels:
        require(name in self.npu, f"kernels is {name!r}; allowed: {', '.join(self.npu)}")
        return self.npu[name]

    def cpu_kernels(self, name: str) -> CpuKernels:
        require(name in self.cpu, f"cpu is {name!r}; allowed: {', '.join(self.cpu)}")
        return self.cpu[name]

    def with_values(self, values: Mapping[str, float]) -> "Profile":
        """Returns a copy with other values at some paths and the same units, tags and sources."""
        numbers = dict(self.numbers)
        for path, value in values.items():
            require(path in numbers, f"{path} is not a number of {self.soc}")
            numbers[path] = replace(numbers[path], value=value)
        return profile_of(self.soc, self.phone, numbers)

    def save(self, path: Path) -> None:
        """Writes a YAML file that `load_profile` reads. An interrupted write leaves no file."""
        tree: dict[str, Any] = {"soc": self.soc, "phone": self.phone}
        for number_path, number in self.numbers.items():
            *sections, name = number_path.split(".")
            node = tree
            for section in sections:
                node = node.setdefault(section, {})
            node[name] = {key: value for key, value in vars(number).items() if value is not None}
        import yaml

        text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=100)
        atomic.write_text(path, text)


def load_profile(name_or_path: str | PathLike[str]) -> Profile:
    """Reads a profile: one of the package by its SoC, or a custom YAML file by its path.

    Raises ValueError that lists the phones of the package, or names the missing or invalid number.
    """
    path = find_yaml("phone", PROFILES, name_or_path)
    content = read_yaml(path)
    for name in ("soc", "phone"):
        require(isinstance(content.get(name), str), f"{path}: {name} is missing; allowed: text")
    sections = {name: part for name, part in content.items() if name not in ("soc", "phone")}
    try:
        numbers = dict(_numbers_by_path(sections, ""))
        return profile_of(content["soc"], content["phone"], numbers)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _numbers_by_path(node: Any, path: str) -> Iterator[tuple[str, SourcedNumber]]:
    require(isinstance(node, Mapping), f"{path} is {node!r}; allowed: value, unit, tag and source")
    if "value" in node:
        yield path, _parse_number(node, path)
        return
    for name, part in node.items():
        yield from _numbers_by_path(part, f"{path}.{name}" if path else name)


def _parse_number(node: Mapping[str, Any], path: str) -> SourcedNumber:
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
        _check_value(f"doubt of {path}", node["doubt"], float, allow_zero=False)
    return SourcedNumber(**node)


_SECTIONS = {"memory": PhoneMemory, "mapping": MappingPaths, "power": Power, "session": Sessions}
_CHOICES = (Overlap, AttentionOn)
_LIBRARIES = {"npu": NpuKernels, "cpu": CpuKernels}
_REQUIRED = ("npu.llada_cpp", "npu.vendor", "cpu.plain", "cpu.tuned")


def profile_of(soc: str, phone: str, numbers: Mapping[str, SourcedNumber]) -> Profile:
    """Builds a profile from its numbers by path. Raises ValueError like `load_profile`."""
    parents = (path.rpartition(".")[0] for path in numbers)
    libraries = {path for path in parents if path.partition(".")[0] in _LIBRARIES}
    unused = dict(numbers)
    parts: dict[str, Any] = {
        name: _build_part(kind, name, unused) for name, kind in _SECTIONS.items()
    }
    parts |= {processor: {} for processor in _LIBRARIES}
    for path in sorted(libraries | set(_REQUIRED)):
        processor, _, name = path.partition(".")
        parts[processor][name] = _build_part(_LIBRARIES[processor], path, unused)
    require(not unused, f"{', '.join(sorted(unused))}: not a number of a profile")
    return Profile(soc=soc, phone=phone, numbers=numbers, **parts)


def _build_part(kind: Any, path: str, unused: dict[str, SourcedNumber]) -> Any:
    """Builds the dataclass of the numbers below a path, and removes these from `unused`."""
    hints, values = get_type_hints(kind), {}
    for field in fields(kind):
        name, unit = f"{path}.{field.name}", UNITS[field.name.rpartition("_")[2]]
        require(name in unused, f"{name} is missing")
        number = unused.pop(name)
        require(number.unit == unit, f"unit of {name} is {number.unit!r}; allowed: {unit!r}")
        allow_zero = field.default == 0
        values[field.name] = _check_value(
            name, number.value, hints[field.name], allow_zero=allow_zero
        )
    return kind(**values)


def _check_value(name: str, value: Any, hint: Any, *, allow_zero: bool) -> Any:
    if hint in _CHOICES:
        require_choice(name, value, hint)
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    bound = "0 or more" if allow_zero else "above 0"
    require(
        is_number and (value > 0 or (allow_zero and value == 0)),
        f"{name} is {value!r}; allowed: a number, {bound}",
    )
    return hint(value)
