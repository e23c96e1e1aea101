"""Published mixture-of-experts models, as far as moving and running their experts needs them."""

from dataclasses import dataclass

from llada_jax.config import require


@dataclass(frozen=True, kw_only=True)
class MoEShape:
    """Sizes of one model. Weights are counted in numbers, not bytes."""

    name: str
    n_layers: int
    """Layers with routed experts."""
    n_experts: int
    experts_per_token: int
    width: int
    expert_width: int
    dense_weights: int
    """Weights that every step reads on the accelerator, for each routed layer: attention and shared
    experts; what the head and dense layers read is spread over the routed layers."""
    kv_bytes_per_token: int = 0
    """Keys and values in 16 bits, of all layers; 0 where they do not matter here."""
    sigmoid: bool = False
    """Router scores are sigmoids, not a softmax."""

    def __post_init__(self) -> None:
        for name in ("n_layers", "n_experts", "width", "expert_width"):
            value = getattr(self, name)
            require(value > 0, f"{name} of {self.name} is {value}; allowed: 1 or more")
        require(
            0 < self.experts_per_token <= self.n_experts,
            f"experts_per_token of {self.name} is {self.experts_per_token}; allowed: 1 to "
            f"n_experts ({self.n_experts})",
        )

    @property
    def expert_weights(self) -> int:
        """Counts the numbers in the three matrices of one expert."""
        return 3 * self.width * self.expert_width


def _attention(width: int, n_heads: int, n_kv_heads: int, head_dim: int) -> int:
    return width * head_dim * (2 * n_heads + 2 * n_kv_heads)


LLADA2_MINI = MoEShape(
    name="llada2_mini",
    n_layers=19,  # of 20, the first is dense
    n_experts=256,
    experts_per_token=8,
    width=2048,
    expert_width=512,
    dense_weights=_attention(2048, 16, 4, 128)
    + 3 * 2048 * 512  # shared expert
    + (3 * 2048 * 5120 + _attention(2048, 16, 4, 128) + 2048 * 157_184) // 19,
    kv_bytes_per_token=2 * 20 * 4 * 128 * 2,
    sigmoid=True,
)
"""inclusionAI/LLaDA2.0-mini, config.json."""

LLADA_MOE = MoEShape(
    name="llada_moe",
    n_layers=16,
    n_experts=64,
    experts_per_token=8,
    width=2048,
    expert_width=1024,
    dense_weights=_attention(2048, 16, 16, 128) + 2048 * 157_184 // 16,
    kv_bytes_per_token=2 * 16 * 16 * 128 * 2,
)
"""inclusionAI/LLaDA-MoE-7B-A1B (arXiv 2509.24389)."""

QWEN2 = MoEShape(
    name="qwen2",
    n_layers=28,
    n_experts=64,
    experts_per_token=8,
    width=3584,
    expert_width=2560,
    dense_weights=_attention(3584, 28, 4, 128)
    + 3 * 3584 * 20_480  # shared expert
    + 3584 * 151_936 // 28,
)
"""Qwen/Qwen2-57B-A14B, config.json."""

DEEPSEEK = MoEShape(
    name="deepseek",
    n_layers=26,  # of 27, the first is dense
    n_experts=64,
    experts_per_token=6,
    width=2048,
    expert_width=1408,
    dense_weights=2048 * (16 * 192 + 576 + 16 * 128)
    + 512 * 16 * 256
    + 3 * 2048 * 2 * 1408  # two shared experts
    + (3 * 2048 * 10_944 + 2048 * 102_400) // 26,
)
"""deepseek-ai/DeepSeek-V2-Lite, config.json; attention is MLA with rank 512."""

MIXTRAL = MoEShape(
    name="mixtral",
    n_layers=32,
    n_experts=8,
    experts_per_token=2,
    width=4096,
    expert_width=14_336,
    dense_weights=_attention(4096, 32, 8, 128) + 4096 * 32_000 // 32,
)
"""mistralai/Mixtral-8x7B (arXiv 2401.04088)."""

SHAPES = {shape.name: shape for shape in (LLADA2_MINI, LLADA_MOE, QWEN2, DEEPSEEK, MIXTRAL)}
