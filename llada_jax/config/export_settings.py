"""What an exported model can run, and the phones that it is compiled for."""

from dataclasses import dataclass
from typing import Literal

from llada_jax.config.checks import ascending_counts, require, require_choice, require_counts

Quant = Literal["float32", "int8", "int4", "int4_block32", "int4_block128"]
Soc = Literal["SM8550", "SM8650", "SM8750", "SM8850"]
Precision = Literal["fp16", "int8", "a16w8", "a8w8", "a16w4"]
STATIC_PRECISIONS = ("a16w8", "a8w8", "a16w4")
"""Precisions whose activations are integers in ranges that recorded forwards fix."""


@dataclass(frozen=True, kw_only=True)
class PhoneConfig:
    """Snapdragons whose NPU an export is compiled for."""

    socs: tuple[str, ...] = ()
    """`SM8550`, `SM8650`, `SM8750`, `SM8850`."""
    precision: Precision = "fp16"
    """How products with weights are computed; see `llada_jax.backend.qnn`."""
    calibration: bool = False
    """Whether graphs to time a phone by come along, and those that the emulator decodes with."""

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
    """What an exported model can run, and how its weights are stored."""

    quant: Quant = "int8"
    """`int8` and `int4` have one scale for each output row, the others one for each block of
    inputs. The head is int8 where the layers are integers: it decides, and costs little."""
    rows: tuple[int, ...] = (1, 4, 8, 16, 32, 64, 96, 128)
    """Rows of a forward, ascending. A forward takes the smallest bucket that holds it."""
    caches: tuple[int, ...] = (512,)
    """Cached positions, ascending: the longest canvas that can be decoded, and shorter ones."""
    canvases: tuple[int, ...] = (1,)
    """Canvases that share a forward, ascending from 1; together they have at most as many rows as
    the largest of `rows`."""
    shard_bytes: int = 2_000_000_000
    """Largest file of layers; TFLite ends at 2 GiB."""
    phones: PhoneConfig = PhoneConfig()

    def __post_init__(self) -> None:
        require_choice("quant", self.quant, Quant)
        for name, least in (("rows", 1), ("caches", 0), ("canvases", 1)):
            buckets = ascending_counts(name, getattr(self, name), least)
            object.__setattr__(self, name, buckets)
        require(self.canvases[0] == 1, f"canvases is {self.canvases}; allowed: 1, and larger ones")
        require_counts(self, "shard_bytes", most=2**31 - 1)
