"""Settings of exports: the shapes that an exported model can run, and the phones it is for."""

from dataclasses import dataclass
from typing import Literal

from llada_jax.config.checks import ascending_counts, require, require_choice, require_counts

Quant = Literal["float32", "int8", "int4", "int4_block32", "int4_block128"]
Soc = Literal["SM8550", "SM8650", "SM8750", "SM8850"]
Precision = Literal["fp16", "int8", "a16w8", "a8w8", "a16w4"]
STATIC_PRECISIONS = ("a16w8", "a8w8", "a16w4")
"""Precisions with integer activations, whose ranges are taken from recorded forwards."""


@dataclass(frozen=True, kw_only=True)
class PhoneConfig:
    """Phones, by their Snapdragon chip, for whose NPU an export is compiled."""

    socs: tuple[str, ...] = ()
    """`SM8550`, `SM8650`, `SM8750`, `SM8850`."""
    precision: Precision = "fp16"
    """Number formats of matrix products with weights; see `llada_jax.backend.qnn`."""
    calibration: bool = False
    """Whether to add graphs for timing a phone, and graphs with which the emulator decodes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "socs", tuple(self.socs))
        for soc in self.socs:
            require_choice("soc", soc, Soc)
        require_choice("precision", self.precision, Precision)
        require(
            bool(self.socs) or not self.calibration,
            "calibration is True without socs; allowed: with the phone's Snapdragon in phones.socs",
        )


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """The shapes that an exported model can run, and the format of its weights."""

    quant: Quant = "int8"
    """`int8` and `int4` have one scale per output row, the others one per block of inputs. With
    integer layers the head is int8, because its errors change tokens and it is small."""
    rows: tuple[int, ...] = (1, 4, 8, 16, 32, 64, 96, 128)
    """Buckets for the rows of a forward, ascending. A forward uses the smallest one that fits."""
    caches: tuple[int, ...] = (512,)
    """Buckets for the cached positions, ascending. The last one is the longest canvas."""
    canvases: tuple[int, ...] = (1,)
    """Numbers of canvases that can share a forward, ascending from 1. Together they have at most
    the largest number of `rows`."""
    shard_bytes: int = 2_000_000_000
    """Maximum size of a file of layers; TFLite supports up to 2 GiB."""
    phones: PhoneConfig = PhoneConfig()

    def __post_init__(self) -> None:
        require_choice("quant", self.quant, Quant)
        for name, least in (("rows", 1), ("caches", 0), ("canvases", 1)):
            buckets = ascending_counts(name, getattr(self, name), least)
            object.__setattr__(self, name, buckets)
        require(self.canvases[0] == 1, f"canvases is {self.canvases}; allowed: 1, and larger ones")
        require_counts(self, "shard_bytes", most=2**31 - 1)
