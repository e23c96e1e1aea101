"""Sizes of published mixture-of-experts models, as needed to move and run their experts."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from llada_jax.config import require, require_counts


@dataclass(frozen=True, kw_only=True)
class MoEShape:
    """Sizes of one model. Weights are counted in numbers, not bytes."""

    name: str
    n_layers: int
    """Number of layers with routed experts."""
    n_experts: int
    experts_per_token: int
    width: int
    expert_width: int
    dense_weights: int
    """Weights that every step reads on the accelerator, per routed layer: attention and shared
    experts, and an equal share of the head and the dense layers."""
    sigmoid: bool = False
    """Whether router scores are sigmoids instead of a softmax."""

    def __post_init__(self) -> None:
        require_counts(self, "n_layers", "n_experts", "width", "expert_width")
        require_counts(self, "experts_per_token", most=self.n_experts)

    @property
    def expert_weights(self) -> int:
        """The number of weights of one expert's three matrices."""
        return 3 * self.width * self.expert_width

    def slots_at(self, ratio: float) -> int:
        """Returns the slots per layer for a share of all experts, HybriMoE's cache ratio."""
        smallest = 1 / self.n_experts
        require(
            smallest <= ratio <= 1,
            f"cache ratio is {ratio}; allowed: {smallest:g} (one expert of {self.n_experts}) to 1",
        )
        return int(ratio * self.n_experts)


def _published(name: str) -> MoEShape:
    sizes = tomllib.loads(Path(__file__).with_name("shapes.toml").read_text("utf-8"))[name]
    layer, others = sizes.pop("layer_weights"), sizes.pop("other_weights")
    return MoEShape(name=name, dense_weights=layer + others // sizes["n_layers"], **sizes)


LLADA2_MINI, LLADA_MOE = _published("llada2_mini"), _published("llada_moe")
QWEN2, DEEPSEEK, MIXTRAL = map(_published, ("qwen2", "deepseek", "mixtral"))
