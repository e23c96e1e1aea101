"""Details on which published samplers disagree."""

from dataclasses import dataclass
from typing import Literal

from llada_jax.config.checks import require_choices

Remasking = Literal["low_confidence", "random", "entropy", "margin", "sequential"]
Loop = Literal["compiled", "host"]
FloatDtype = Literal["float32", "float64"]
Progress = Literal["top1", "quota"]
Schedule = Literal["even", "noise"]


@dataclass(frozen=True, kw_only=True)
class Parity:
    """What a reference sampler does that is a choice of its code, not of its method.

    The defaults are this package's own. The presets `llada` and `fast_dllm` copy those two
    token for token, which `tests/sampler/test_goldens.py` holds.

    Attributes:
      confidence_dtype: In which logits become probabilities: `float32`, or `float64` as Fast-dLLM
        does.
      noise_dtype: Precision of the Gumbel noise: `float32`, or `float64` as LLaDA draws it.
      strict_threshold: Accept confidence > threshold instead of >=.
      forced_progress: What a step commits at the least under rules that compare: `top1`, the best
        candidate, or `quota`, what LLaDA's schedule would (Fast-dLLM's code for `threshold`).
      schedule: How `steps` share out a block's masks: `even`, LLaDA's equal parts; or `noise`, the
        share of what is left by which the noise level falls, rounded down (Dream's code: with a
        token a forward its first forward commits none, and its last one two).
      predict_mask: Let the model predict [MASK] itself, as both references do.
    """

    confidence_dtype: FloatDtype = "float32"
    noise_dtype: FloatDtype = "float32"
    strict_threshold: bool = False
    forced_progress: Progress = "top1"
    schedule: Schedule = "even"
    predict_mask: bool = False

    def __post_init__(self) -> None:
        require_choices(self)

    @property
    def wide(self) -> bool:
        """Whether float64 is needed, which JAX has off by default."""
        return "float64" in (self.confidence_dtype, self.noise_dtype)


HOUSE = Parity()
"""This package's own choices."""
