"""What a sampling program is for, and where its data lie in the memories."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from llada_jax.config import require, require_choice
from llada_jax.sampling_engine.memories import Domain, EngineConfig, check_fits

Mode = Literal["performance", "edge", "one_pass", "one_pass_overlapped"]
Key = Literal["confidence", "odds"]
CONSTANTS = ("lowest", "threshold", "one", "below_one")


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The sampler of one denoising block.

    Modes: `performance` loads all logits of a batch row at once; `edge` streams chunks of the
    vocabulary twice, for the maximum and for the sum; `one_pass` (ours) streams them once, with a
    running maximum and a rescaled sum; `one_pass_overlapped` (ours) also loads the next chunk
    while it computes.

    Keys, by which the k best are chosen and which a threshold is compared with: `confidence` p =
    1 / sum, as published; `odds` (ours) p / (1 - p) = 1 / (sum - 1), which tells apart in BF16 what
    is nearly sure, where confidences are all 1.
    """

    batch: int
    rows: int
    """Positions of the block."""
    vocab: int
    steps: int = 1
    mode: Mode = "performance"
    chunk_rows: int = 4
    """Vector rows of VLEN logits in a chunk; performance mode has none."""
    key: Key = "confidence"
    threshold: float | None = None
    """Confidence that commits a token, besides the k best; None: only the k best."""
    strict_threshold: bool = False
    """Whether a confidence has to exceed the threshold; else it may equal it."""

    def __post_init__(self) -> None:
        for name in ("batch", "rows", "vocab", "steps", "chunk_rows"):
            value = getattr(self, name)
            require(value > 0, f"{name} is {value}; allowed: 1 or more")
        require_choice("mode", self.mode, Mode)
        require_choice("key", self.key, Key)
        require(
            self.threshold is None or 0 <= self.threshold <= 1,
            f"threshold is {self.threshold}; allowed: 0 to 1, or none",
        )

    def vector_rows(self, vlen: int) -> int:
        """Vector rows of one position's logits; the last may be shorter."""
        return -(-self.vocab // vlen)

    def tail(self, vlen: int) -> int:
        """Logits in the last of them."""
        return self.vocab - (self.vector_rows(vlen) - 1) * vlen


class Layout(NamedTuple):
    """First words of everything, and how many words each domain needs.

    Vector memory: a row per batch row for the transfer mask, the input mask and the confidences,
    then the logits, over which their exponentials are written. FP memory: the confidences of one
    batch row, used again by the next, and constants. Integer memory: tokens, predictions, and k of
    every step and batch row.
    """

    transfer: int
    mask: int
    confidence: int
    logits: int
    logits_rows: int
    vector_words: int
    fp_constants: int
    fp_words: int
    tokens: int
    predictions: int
    k: int
    int_words: int

    def words(self, domain: Domain) -> int:
        """Words of a domain that are in use."""
        return {"vector": self.vector_words, "fp": self.fp_words, "int": self.int_words}[domain]

    def size(self, domain: Domain, engine: EngineConfig) -> int:
        """Bytes of a domain that are in use."""
        return self.words(domain) * engine.memory(domain).word_bytes


def layout_of(sampling: Sampling, engine: EngineConfig) -> Layout:
    """Where the data lie.

    Raises:
      ValueError: they do not fit a memory, or the block does not fit a vector row.
    """
    require(
        sampling.rows <= engine.vlen,
        f"rows is {sampling.rows}; allowed: up to vlen ({engine.vlen})",
    )
    batch, positions = sampling.batch, sampling.batch * sampling.rows
    logits_rows = _logits_rows(sampling, engine)
    layout = Layout(
        transfer=0,
        mask=batch,
        confidence=2 * batch,
        logits=3 * batch,
        logits_rows=logits_rows,
        vector_words=3 * batch + logits_rows,
        fp_constants=sampling.rows,
        fp_words=sampling.rows + len(CONSTANTS),
        tokens=0,
        predictions=positions,
        k=2 * positions,
        int_words=2 * positions + sampling.steps * batch,
    )
    for domain in ("vector", "fp", "int"):
        check_fits(engine, domain, layout.words(domain), f"a {sampling.mode} program")
    return layout


def _logits_rows(sampling: Sampling, engine: EngineConfig) -> int:
    row = sampling.vector_rows(engine.vlen)
    chunk = min(sampling.chunk_rows, row)
    buffers = {
        "performance": sampling.rows * row,
        "edge": chunk,
        "one_pass": chunk,
        "one_pass_overlapped": 2 * chunk,
    }
    return buffers[sampling.mode]
