"""The NPU's address space as a budget of bytes and mappings, and what a mapping costs."""

from dataclasses import dataclass, replace

from llada_jax.config import ModelConfig, require_counts
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
    temporary_bytes: int = 0
    """Activations, of which all layers share the place."""

    def __post_init__(self) -> None:
        require_counts(self, "session_bytes", "max_buffers", "max_buffer_bytes", "alignment")
        require_counts(self, "kv_bytes_per_token", "tokens", "temporary_bytes", least=0)

    def aligned(self, size: int) -> int:
        """Returns the bytes of the address space that `size` bytes take."""
        return -(-size // self.alignment) * self.alignment

    def sizes(self, graph: Graph) -> list[int]:
        """Returns the bytes of the address space that each operator's weights take."""
        return [self.aligned(operator.weight_bytes) for operator in graph.operators]

    @property
    def fixed_bytes(self) -> int:
        """Bytes of keys, values and temporaries, which are mapped all the time."""
        return sum(map(self.aligned, self._fixed_parts))

    @property
    def fixed_buffers(self) -> int:
        """Mappings of the fixed bytes."""
        return sum(-(-self.aligned(part) // self.max_buffer_bytes) for part in self._fixed_parts)

    @property
    def _fixed_parts(self) -> tuple[int, int]:
        return self.kv_bytes_per_token * self.tokens, self.temporary_bytes


def kv_bytes_per_token(config: ModelConfig) -> int:
    """Returns the bytes of one token's keys and values in float16: 0.5 MiB for LLaDA-8B."""
    return 2 * config.n_layers * config.n_kv_heads * config.head_dim * ACTIVATION_BYTES


@dataclass(frozen=True)
class MappingPath:
    """A way to make weights visible to the NPU, with its cost and where that number is from."""

    map_ns: int
    """Time of each mapping."""
    step_ns: int
    """Time once in each step that stages anything, whatever its size."""
    bytes_per_second: float
    """Speed of the bytes; `math.inf` where they stay where they are."""
    tag: str
    source: str

    def price(self, graph: Graph, transfers: int = 0) -> Graph:
        """Returns the graph with this way's transfer times.

        Args:
          transfers: those of a plan, over which `step_ns` is spread; 0 before there is one, since
            a planner does not know how many it will make.
        """
        once = self.step_ns // transfers if transfers else 0
        operators = tuple(
            replace(each, transfer_ns=round(each.weight_bytes / self.bytes_per_second * 1e9))
            for each in graph.operators
        )
        return Graph(operators, self.map_ns + once)
