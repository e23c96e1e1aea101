"""The engine's memories, each with its own words, and where a program's data lie in them."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from llada_jax.config import require, require_choice, require_counts
from llada_jax.sampling_engine.sampling import Sampling

Domain = Literal["vector", "fp", "int"]
VectorFormat = Literal["bfloat16", "float32"]

FORMAT_BYTES = {"bfloat16": 2, "float32": 4}
SCALAR_BYTES = 4


class MemoryDomain(NamedTuple):
    """Words of one domain, and bytes a word. A word of vector memory is a row."""

    words: int
    word_bytes: int


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Sizes and number formats of one engine.

    The defaults are the published table's for VLEN = 2048 (arXiv 2601.20706 v1): 8 MB of vector
    memory in BF16, 8 kB of integers, and VLEN half words of scalars. Its simulator computes scalars
    in float16, whose largest number a sum of 126,464 terms may exceed; here they are float32.
    """

    vlen: int = 2048
    vector_bytes: int = 8 << 20
    int_bytes: int = 8 << 10
    fp_words: int | None = None
    """None: VLEN, as published."""
    vector_format: VectorFormat = "bfloat16"

    def __post_init__(self) -> None:
        require_choice("vector_format", self.vector_format, VectorFormat)
        require(
            self.vlen >= 8 and self.vlen & (self.vlen - 1) == 0,
            f"vlen is {self.vlen}; allowed: a power of two from 8 on",
        )
        require_counts(self, "vector_bytes", "int_bytes", "fp_words")

    def memory(self, domain: Domain) -> MemoryDomain:
        """Returns the size of a domain."""
        if domain == "vector":
            row = self.vlen * FORMAT_BYTES[self.vector_format]
            return MemoryDomain(self.vector_bytes // row, row)
        if domain == "fp":
            return MemoryDomain(self.fp_words or self.vlen, SCALAR_BYTES)
        return MemoryDomain(self.int_bytes // SCALAR_BYTES, SCALAR_BYTES)


class MemoryMap(NamedTuple):
    """First words of everything, and how many words each domain needs.

    Vector memory holds a row per batch row for the transfer mask, the input mask and the
    confidences, then the logits, over which their exponentials are written. FP memory holds the
    confidences of one batch row, used again by the next, and the lowest number that vectors have.
    Integer memory holds tokens, predictions, and k of every batch row.
    """

    transfer: int
    mask: int
    confidence: int
    logits: int
    logits_rows: int
    lowest: int
    tokens: int
    predictions: int
    k: int
    words: dict[Domain, int]


def memory_map_of(sampling: Sampling, engine: EngineConfig) -> MemoryMap:
    """Lays a program's data out.

    Raises ValueError where they do not fit a memory, or the block does not fit a vector row.
    """
    require(
        sampling.rows <= engine.vlen,
        f"rows is {sampling.rows}; allowed: up to vlen ({engine.vlen})",
    )
    batch, positions = sampling.batch, sampling.batch * sampling.rows
    row = sampling.vector_rows(engine.vlen)
    chunk = min(sampling.chunk_rows, row)
    whole = sampling.mode == "performance"
    logits_rows = sampling.rows * row if whole else chunk * sampling.stride
    words: dict[Domain, int] = {
        "vector": 3 * batch + logits_rows,
        "fp": sampling.rows + 1,
        "int": 2 * positions + batch,
    }
    for domain, needed in words.items():
        words_there, word_bytes = engine.memory(domain)
        require(
            needed <= words_there,
            f"a {sampling.mode} program needs {needed:,} words of {domain} memory "
            f"({needed * word_bytes:,} bytes); "
            f"allowed: up to {words_there:,} ({words_there * word_bytes:,} bytes)",
        )
    return MemoryMap(
        transfer=0,
        mask=batch,
        confidence=2 * batch,
        logits=3 * batch,
        logits_rows=logits_rows,
        lowest=sampling.rows,
        tokens=0,
        predictions=positions,
        k=2 * positions,
        words=words,
    )
