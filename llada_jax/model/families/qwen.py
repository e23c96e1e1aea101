"""Qwen's architectures, and what was adapted from them: Dream (arXiv 2508.15487), A2D models."""

from llada_jax.model.families.family import (
    HF_ATTENTION,
    HF_CONSTANTS,
    HF_FEED_FORWARD,
    HF_KEYS,
    HF_OUTSIDE,
    Family,
)

_NAMES = {**HF_OUTSIDE, **HF_ATTENTION, **HF_FEED_FORWARD}
_CONSTANTS = {**HF_CONSTANTS, "use_sliding_window": False}

DREAM = Family(
    model_types=("Dream", "dream"),
    architecture="DreamModel",
    names=_NAMES,
    keys=HF_KEYS,
    constants=_CONSTANTS,
    facts={"qkv_bias": True, "shift_logits": True},
    gguf_architecture="dream",
    mask_id=151666,
)
QWEN2 = Family(
    model_types=("qwen2", "a2d-qwen2"),
    architecture="Qwen2ForCausalLM",
    names=_NAMES,
    keys=HF_KEYS,
    constants=_CONSTANTS,
    facts={"qkv_bias": True},
)
QWEN3 = Family(
    model_types=("qwen3", "a2d-qwen3"),
    architecture="Qwen3ForCausalLM",
    names=_NAMES,
    keys=HF_KEYS,
    constants={**_CONSTANTS, "attention_bias": False},
    facts={"qk_norm": True},
)
