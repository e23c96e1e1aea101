"""Implementation details in which published samplers differ."""

from dataclasses import dataclass
from typing import Literal

from llada_jax.config.checks import require_choices

Remasking = Literal["low_confidence", "random", "entropy", "margin", "sequential"]
Loop = Literal["compiled", "host"]
FloatDtype = Literal["float32", "float64"]
Progress = Literal["top1", "quota"]
Schedule = Literal["even", "noise", "linear"]
BlockOrigin = Literal["canvas", "prompt"]
LastBlock = Literal["whole", "cut"]


@dataclass(frozen=True, kw_only=True)
class Parity:
    """Choices of a reference sampler's code that its paper does not prescribe.

    The defaults are this package's choices. The presets `llada` and `fast_dllm` reproduce those
    samplers token for token, which `tests/sampler/test_goldens.py` checks.

    Attributes:
      confidence_dtype: Dtype in which logits are converted to probabilities: `float32`, or
        `float64` as in Fast-dLLM.
      noise_dtype: Dtype of the Gumbel noise: `float32`, or `float64` as in LLaDA.
      strict_threshold: Accept confidence > threshold instead of >=.
      forced_progress: Minimum that a step commits under threshold rules: the best candidate
        (`top1`), or the number of LLaDA's schedule (`quota`, Fast-dLLM's code for `threshold`).
      schedule: Division of a block's masks over `steps`: equal parts (`even`, LLaDA), the
        relative decrease of the noise level times the remaining masks, rounded down (`noise`,
        Dream; with one token per forward, its first forward commits none and its last one two), or
        masks in proportion to the steps that are left, rounded down (`linear`, Open-dCoder's P2).
      predict_mask: Whether [MASK] itself can be predicted, as in both references.
      block_origin: Start of the blocks of a model whose attention is causal between blocks: the
        canvas (position 0, as in training), or the end of the prompt (`prompt`, dllm's BD3LM). The
        blocks of other models start at the end of the prompt.
      last_block: Decoding of a last block that `gen_length` does not fill: with all its masks, of
        which the surplus is cut off afterwards (`whole`, SDAR), or without the surplus (`cut`,
        WeDLM, Stable-DiffCoder, dllm). With `cut`, `gen_length` need not be a multiple of
        `block_length`, and the steps of a block are rounded up.
    """

    confidence_dtype: FloatDtype = "float32"
    noise_dtype: FloatDtype = "float32"
    strict_threshold: bool = False
    forced_progress: Progress = "top1"
    schedule: Schedule = "even"
    predict_mask: bool = False
    block_origin: BlockOrigin = "canvas"
    last_block: LastBlock = "whole"

    def __post_init__(self) -> None:
        require_choices(self)

    @property
    def wide(self) -> bool:
        """Whether float64 is needed, which JAX has off by default."""
        return "float64" in (self.confidence_dtype, self.noise_dtype)


HOUSE = Parity()
"""This package's own choices."""
