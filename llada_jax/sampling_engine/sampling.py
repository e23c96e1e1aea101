"""The parameters of a sampling program, and of the engine that it runs on."""

from dataclasses import dataclass
from typing import Literal, get_args

from llada_jax.config import require, require_choice, require_counts

Mode = Literal["performance", "edge", "one_pass"]
MODES: tuple[Mode, ...] = get_args(Mode)
Domain = Literal["vector", "fp", "int"]
VectorFormat = Literal["bfloat16", "float32"]

_FORMAT_BYTES = {"bfloat16": 2, "float32": 4}
_SCALAR_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """One step of the sampler of a denoising block, which commits the k best positions.

    Modes: `performance` loads all logits of a batch row at once; `edge` streams chunks of the
    vocabulary twice, for the maximum and for the sum; `one_pass` (ours) streams them once, with a
    running maximum and a rescaled sum.
    """

    batch: int
    rows: int
    """Positions of the block."""
    vocab: int
    mode: Mode = "performance"
    chunk_rows: int = 4
    """Vector rows of VLEN logits in a chunk; unused in performance mode."""
    noisy: bool = False
    """Ours: in HBM, a row of noise (Gumbel's times the temperature) follows each row of logits. The
    token has the highest sum of both; its confidence is computed from the logits alone."""

    def __post_init__(self) -> None:
        require_counts(self, "batch", "rows", "vocab", "chunk_rows")
        require_choice("mode", self.mode, Mode)
        require(
            not self.noisy or self.mode == "one_pass",
            f"mode of a noisy sampler is {self.mode!r}; allowed: 'one_pass'",
        )

    @property
    def stride(self) -> int:
        """Distance between rows of logits, in vector rows."""
        return 1 + self.noisy

    def vector_rows(self, vlen: int) -> int:
        """Returns the vector rows of one position's logits; the last may be shorter."""
        return -(-self.vocab // vlen)

    def tail(self, vlen: int) -> int:
        """Returns the number of logits in the last vector row."""
        return self.vocab - (self.vector_rows(vlen) - 1) * vlen


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Sizes and number formats of one engine; each memory has words of a different size.

    The defaults are from the published table for VLEN = 2048 (arXiv 2601.20706 v1): 8 MB of
    vector memory in BF16, 8 kB of integers, and VLEN half words of scalars. The paper's simulator
    computes scalars in float16, which a sum of 126,464 terms can overflow; here they are float32.
    """

    vlen: int = 2048
    vector_bytes: int = 8 << 20
    int_bytes: int = 8 << 10
    fp_words: int | None = None
    """None for VLEN, as published."""
    vector_format: VectorFormat = "bfloat16"

    def __post_init__(self) -> None:
        require_choice("vector_format", self.vector_format, VectorFormat)
        require(
            self.vlen >= 8 and self.vlen & (self.vlen - 1) == 0,
            f"vlen is {self.vlen}; allowed: a power of two from 8 on",
        )
        require_counts(self, "vector_bytes", "int_bytes", "fp_words")

    def word_bytes(self, domain: Domain) -> int:
        """Returns the bytes of a memory's word; a word of vector memory is a row."""
        row_bytes = self.vlen * _FORMAT_BYTES[self.vector_format]
        return row_bytes if domain == "vector" else _SCALAR_BYTES

    def words(self, domain: Domain) -> int:
        """Returns the number of words of a memory."""
        if domain == "fp":
            return self.fp_words or self.vlen
        size = self.vector_bytes if domain == "vector" else self.int_bytes
        return size // self.word_bytes(domain)
