"""How many devices share a model and a batch."""

from dataclasses import dataclass

from llada_jax.config.checks import require_counts


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """The axes of a mesh of devices; all 1: no mesh."""

    data: int = 1
    """Groups that decode different prompts."""
    model: int = 1
    """Parts of each group's attention heads, inner widths and vocabulary."""
    expert: int = 1
    """Parts of each group's experts, beside those of `model`."""

    def __post_init__(self) -> None:
        require_counts(self, "data", "model", "expert")

    @property
    def devices(self) -> int:
        """Returns how many there are."""
        return self.data * self.model * self.expert


ONE_DEVICE = MeshConfig()
