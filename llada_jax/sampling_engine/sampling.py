"""What a sampling program is for."""

from dataclasses import dataclass
from typing import Literal

from llada_jax.config import require, require_choice, require_counts

Mode = Literal["performance", "edge", "one_pass"]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """One step of the sampler of a denoising block: the k best positions are committed.

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
    """Vector rows of VLEN logits in a chunk; performance mode has none."""
    noisy: bool = False
    """Ours: HBM has a row of noise behind each row of logits, the temperature times Gumbel's. The
    token is the best of their sums, its confidence that of the logits alone."""

    def __post_init__(self) -> None:
        require_counts(self, "batch", "rows", "vocab", "chunk_rows")
        require_choice("mode", self.mode, Mode)
        require(
            not self.noisy or self.mode == "one_pass",
            f"mode of a noisy sampler is {self.mode!r}; allowed: 'one_pass'",
        )

    @property
    def stride(self) -> int:
        """Vector rows from one row of logits to the next."""
        return 1 + self.noisy

    def vector_rows(self, vlen: int) -> int:
        """Returns vector rows of one position's logits; the last may be shorter."""
        return -(-self.vocab // vlen)

    def tail(self, vlen: int) -> int:
        """Counts the logits in the last of them."""
        return self.vocab - (self.vector_rows(vlen) - 1) * vlen
