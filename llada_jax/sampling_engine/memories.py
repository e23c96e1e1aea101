"""The engine's memories: separate domains, each with its own word and size."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from llada_jax.config import require, require_choice
from llada_jax.sampling_engine.instructions import PREFETCH_ROWS

Domain = Literal["vector", "fp", "int"]
VectorFormat = Literal["bfloat16", "float32"]
ScalarFormat = Literal["bfloat16", "float16", "float32"]

FORMAT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
INT_BYTES = 4
PUBLISHED_VECTOR_BYTES = 8 << 20
PUBLISHED_INT_BYTES = 8 << 10


class Memory(NamedTuple):
    """One domain: how many words it has, and bytes a word. A word of vector memory is a row."""

    domain: Domain
    words: int
    word_bytes: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.words * self.word_bytes


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Sizes and number formats of one engine.

    The defaults are the published table's for VLEN = 2048 (arXiv 2601.20706 v1): 8 MB of vector
    memory in BF16, 8 kB of integers, and VLEN half words of scalars. Its simulator computes scalars
    in float16, whose largest number a sum of 126,464 terms may exceed; here they are float32.
    """

    vlen: int = 2048
    vector_bytes: int = PUBLISHED_VECTOR_BYTES
    int_bytes: int = PUBLISHED_INT_BYTES
    fp_words: int | None = None
    """None: VLEN, as published."""
    vector_format: VectorFormat = "bfloat16"
    scalar_format: ScalarFormat = "float32"
    prefetch_rows: int = PREFETCH_ROWS

    def __post_init__(self) -> None:
        require_choice("vector_format", self.vector_format, VectorFormat)
        require_choice("scalar_format", self.scalar_format, ScalarFormat)
        require(
            self.vlen >= 8 and self.vlen & (self.vlen - 1) == 0,
            f"vlen is {self.vlen}; allowed: a power of two from 8 on",
        )
        require(
            self.prefetch_rows > 0, f"prefetch_rows is {self.prefetch_rows}; allowed: 1 or more"
        )
        for name in ("vector_bytes", "int_bytes"):
            value = getattr(self, name)
            require(value > 0, f"{name} is {value}; allowed: 1 or more")
        require(
            self.fp_words is None or self.fp_words > 0,
            f"fp_words is {self.fp_words}; allowed: 1 or more",
        )

    def memory(self, domain: Domain) -> Memory:
        """The memory of a domain."""
        if domain == "vector":
            row = self.vlen * FORMAT_BYTES[self.vector_format]
            return Memory(domain, self.vector_bytes // row, row)
        if domain == "fp":
            return Memory(domain, self.fp_words or self.vlen, FORMAT_BYTES[self.scalar_format])
        return Memory(domain, self.int_bytes // INT_BYTES, INT_BYTES)


def check_fits(engine: EngineConfig, domain: Domain, words: int, what: str) -> None:
    """Raise ValueError where `what` needs more words than the domain has."""
    memory = engine.memory(domain)
    require(
        words <= memory.words,
        f"{what} needs {words:,} words of {domain} memory ({words * memory.word_bytes:,} bytes); "
        f"allowed: up to {memory.words:,} ({memory.size:,} bytes)",
    )
