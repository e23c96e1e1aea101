"""Published mixture-of-experts models, as far as moving and running their experts needs them."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from llada_jax.config import require, require_counts


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
    sigmoid: bool = False
    """Router scores are sigmoids, not a softmax."""

    def __post_init__(self) -> None:
        require_counts(self, "n_layers", "n_experts", "width", "expert_width")
        require_counts(self, "experts_per_token", most=self.n_experts)

    @property
    def expert_weights(self) -> int:
        """Counts the numbers in the three matrices of one expert."""
        return 3 * self.width * self.expert_width

    def slots_at(self, ratio: float) -> int:
        """Returns a layer's slots for a share of all experts, as HybriMoE gives cache sizes."""
        least = 1 / self.n_experts
        require(
            least <= ratio <= 1,
            f"cache ratio is {ratio}; allowed: {least:g} (one expert of {self.n_experts}) to 1",
        )
        return int(ratio * self.n_experts)


def _published(name: str) -> MoEShape:
    sizes = tomllib.loads(Path(__file__).with_name("shapes.toml").read_text("utf-8"))[name]
    layer, others = sizes.pop("layer_weights"), sizes.pop("other_weights")
    return MoEShape(name=name, dense_weights=layer + others // sizes["n_layers"], **sizes)


LLADA2_MINI, LLADA_MOE = _published("llada2_mini"), _published("llada_moe")
QWEN2, DEEPSEEK, MIXTRAL = map(_published, ("qwen2", "deepseek", "mixtral"))
