"""The NPU's address space as a budget of bytes and mappings, and what a mapping costs."""

import math
from dataclasses import dataclass

from llada_jax.config import ModelConfig, require
from llada_jax.swap.graph import ACTIVATION_BYTES, Graph

MIB = 1 << 20


class PlanError(ValueError):
    """A graph that cannot run within a budget, with the reason."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What one session of the NPU may map.

    Defaults: llama.cpp's limits of a session on Hexagon V75 and later (ggml-hexagon.cpp and
    htp-ops.h: 3,200 MiB, 16 buffers of up to 1 GiB). Keys and values count at the length to which
    they will grow: a mapping that must move while a text is generated would cost a stall.
    """

    session_bytes: int = 3200 * MIB
    max_buffers: int = 16
    max_buffer_bytes: int = 1024 * MIB
    alignment: int = 4096
    kv_bytes_per_token: int = 0
    tokens: int = 0
    """Prompt and generated tokens, at the end of a generation."""
    reserved_bytes: int = 0
    """What the runtime itself maps."""

    def __post_init__(self) -> None:
        for name in ("session_bytes", "max_buffers", "max_buffer_bytes", "alignment"):
            value = getattr(self, name)
            require(isinstance(value, int) and value > 0, f"{name} is {value!r}; allowed: above 0")
        for name in ("kv_bytes_per_token", "tokens", "reserved_bytes"):
            value = getattr(self, name)
            require(
                isinstance(value, int) and value >= 0, f"{name} is {value!r}; allowed: 0 or more"
            )

    def aligned(self, size: int) -> int:
        """Bytes of the address space that `size` bytes take."""
        return -(-size // self.alignment) * self.alignment

    @property
    def fixed_bytes(self) -> int:
        """Keys, values and the runtime's own: mapped all the time."""
        return self.aligned(self.kv_bytes_per_token * self.tokens) + self.aligned(
            self.reserved_bytes
        )

    @property
    def fixed_buffers(self) -> int:
        """Mappings of those bytes."""
        parts = (self.kv_bytes_per_token * self.tokens, self.reserved_bytes)
        return sum(-(-self.aligned(part) // self.max_buffer_bytes) for part in parts)


def kv_bytes_per_token(config: ModelConfig) -> int:
    """Keys and values of one token in float16: 0.5 MiB for LLaDA-8B."""
    return 2 * config.n_layers * config.n_kv_heads * config.head_dim * ACTIVATION_BYTES


@dataclass(frozen=True)
class MappingPath:
    """A way to make weights visible to the NPU, with its cost and where that number is from."""

    map_ns: int
    """Each mapping."""
    bytes_per_second: float
    """`math.inf` where the bytes stay where they are."""
    tag: str
    source: str

    def price(self, graph: Graph) -> Graph:
        """The graph with this way's transfer times."""
        return graph.staged_at(self.bytes_per_second, self.map_ns)


PATHS = {
    "immediate": MappingPath(
        map_ns=25_200_000,
        bytes_per_second=math.inf,
        tag="measured, digitised",
        source="llada.cpp (arXiv 2606.13740) Figure 5d: an operator of 1.6 ms takes 29.2 and 24.4 "
        "ms where a mapping of unknown size is triggered; the mean difference",
    ),
    "copy": MappingPath(
        map_ns=0,
        bytes_per_second=2.12e9,
        tag="derived",
        source="llada.cpp (arXiv 2606.13740) Figure 13c, its two ends: 672 MiB in 335 ms and "
        "3744 MiB in 1830 ms; the mean",
    ),
    "delayed": MappingPath(
        map_ns=91_000,
        bytes_per_second=math.inf,
        tag="measured, unreviewed log",
        source="Dan1un1u/qwen3-block-htp L32-0048: HAP_mmap2 and HAP_munmap2 of 768 MiB that the "
        "host registered once, on SM8750: 30 to 35 us and 56 to 65 us; the means of three",
    ),
}
"""Published costs differ by a factor of thousands, so every result names its path."""


def mapping_path(name: str) -> MappingPath:
    """A path by name; raises ValueError for an unknown one."""
    require(name in PATHS, f"path is {name!r}; allowed: {', '.join(map(repr, PATHS))}")
    return PATHS[name]
