"""The architecture of a model (`ModelConfig`), and the mesh of devices that share it.

Checkpoints of all families are converted to these fields (`llada_jax.model.families`), so the code
that runs a model does not depend on its family.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from llada_jax.config.checks import require, require_choices, require_counts, require_numbers

Router = Literal["softmax", "sigmoid"]
Causal = Literal["finished", "filled"]
RopeScaling = Literal["yarn", "llama3"]
_MAX_LAYERS, _MAX_EXPERTS = 1000, 4096  # bound the search for tensors by name
_MAX_SIZE = 1 << 24  # far above any model, and still small enough to allocate
_IDS = ("mask_id", "eos_id", "eot_id", "pad_id")


@dataclass(frozen=True, kw_only=True)
class MoEConfig:
    """Routed experts of the layers from `first_layer` on."""

    n_experts: int
    experts_per_token: int
    expert_width: int
    first_layer: int = 0
    shared_width: int = 0
    """Width of the always-active shared expert, or 0 without one."""
    router: Router = "softmax"
    n_groups: int = 1
    groups_per_token: int = 1
    """A token's experts come from its best `groups_per_token` of `n_groups` groups of experts."""
    normalize_weights: bool = False
    weight_scale: float = 1.0
    selection_bias: bool = False
    """Whether a learned bias affects the selection of experts, but not their weights."""

    def __post_init__(self) -> None:
        require_choices(self)
        require_counts(self, "n_experts", most=_MAX_EXPERTS)
        require_counts(self, "expert_width", most=_MAX_SIZE)
        require_counts(self, "shared_width", least=0, most=_MAX_SIZE)
        require_counts(self, "experts_per_token", "n_groups", "groups_per_token")
        require_counts(self, "first_layer", least=0)
        require_numbers(self, "weight_scale", above=0)
        for name, whole in (("experts_per_token", "n_experts"), ("groups_per_token", "n_groups")):
            value, most = getattr(self, name), getattr(self, whole)
            require(value <= most, f"{name} is {value}; allowed: 1 to {whole} ({most})")
        require(
            self.n_experts % self.n_groups == 0,
            f"n_groups is {self.n_groups}; allowed: a divisor of n_experts ({self.n_experts})",
        )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape of one dLLM. Letters as in `llada_jax.types`."""

    family: str
    vocab_size: int
    width: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn_width: int
    rope_theta: float
    norm_eps: float
    max_length: int
    """Longest canvas (prompt and generation) that the model supports, in tokens."""
    rotary_dims: int = 0
    """Number of leading dimensions of each head that RoPE rotates; 0 means all of them."""
    rope_scaling: RopeScaling | None = None
    """Method that lowers RoPE's low frequencies for contexts longer than the trained ones: YaRN
    (arXiv 2309.00071) or Llama 3.1's (arXiv 2407.21783); None for plain RoPE."""
    rope_factor: float = 1.0
    """Factor by which they are lowered; below 1 (0.25 in Nemotron's base models) they rise."""
    rope_length: int | None = None
    """Context length in tokens for which RoPE was trained before it was scaled."""
    qkv_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False
    shift_logits: bool = False
    """The output at position i predicts the token at i + 1 (Dream), not the one at i."""
    block_length: int | None = None
    """Block length of the block-causal attention mask, or None for another mask."""
    causal: Causal | None = None
    """Order of causal attention, in which a row sees only earlier rows; None if it sees all rows.

    - `finished`: Rows before the current block are ordered by position, and each predicts the next
      token. The current block follows, sees all of itself, and each row predicts its own token
      (Nemotron). Without a mask id the model is autoregressive, and blocks have one token (Llama).
    - `filled`: Tokens come before masks, and both are ordered by position (WeDLM).
    """
    moe: MoEConfig | None = None
    mask_id: int | None = None
    eos_id: int | None = None
    eot_id: int | None = None
    pad_id: int | None = None
    stop_ids: tuple[int, ...] = ()
    """Additional ids that end an answer, from the checkpoint."""

    def __post_init__(self) -> None:
        require_counts(self, "n_layers", most=_MAX_LAYERS)
        require_counts(self, "vocab_size", "width", "n_heads", "n_kv_heads", "head_dim",
                       "ffn_width", most=_MAX_SIZE)  # fmt: skip
        require_counts(self, "max_length", "block_length", "rope_length")
        require_numbers(self, "rope_theta", above=0)
        require_numbers(self, "norm_eps", least=0, most=0.1)
        require_numbers(self, "rope_factor", above=0)
        require_choices(self)
        require(
            self.causal is None or (self.block_length is None and not self.shift_logits),
            f"block_length is {self.block_length} and shift_logits {self.shift_logits} where "
            f"causal is {self.causal!r}; allowed: None and False",
        )
        require(
            self.rope_scaling is None or self.rope_length is not None,
            f"rope_scaling is {self.rope_scaling!r} and rope_length None; allowed: a whole number",
        )
        require_counts(self, *_IDS, least=0, most=self.vocab_size - 1)
        require(
            self.n_heads % self.n_kv_heads == 0,
            f"n_kv_heads is {self.n_kv_heads}; allowed: a divisor of n_heads ({self.n_heads})",
        )
        if not self.rotary_dims:
            object.__setattr__(self, "rotary_dims", self.head_dim)
        require(
            self.rotary_dims % 2 == 0 and 0 < self.rotary_dims <= self.head_dim,
            f"rotary_dims is {self.rotary_dims}; allowed: even, up to head_dim ({self.head_dim})",
        )
        object.__setattr__(self, "stop_ids", tuple(self.stop_ids))
        for id_ in self.stop_ids:
            require(
                isinstance(id_, int) and 0 <= id_ < self.vocab_size,
                f"stop_ids has {id_!r}; allowed: 0 to {self.vocab_size - 1}",
            )

    @property
    def autoregressive(self) -> bool:
        """Whether it only predicts the next token, and has no [MASK]."""
        return self.causal == "finished" and self.mask_id is None

    def replace(self, **changes: Any) -> "ModelConfig":
        """Returns a copy with some fields changed, checked again."""
        return dataclasses.replace(self, **changes)

    def require_room(self, name: str, length: int, generated: int = 0) -> None:
        """Raises ValueError if `length` tokens and `generated` new ones exceed `max_length`, beyond
        which the model's output is wrong without any other sign."""
        require(
            generated < self.max_length,
            f"gen_length is {generated}; allowed: up to {self.max_length - 1} (the model's "
            f"max_length is {self.max_length}, and a prompt has a token or more)",
        )
        most = self.max_length - generated
        limit = f"{self.max_length}, less {generated} that are generated"
        require(
            length <= most,
            f"{name} has {length} tokens; allowed: up to {most} (the model's "
            f"{limit if generated else 'max_length'})",
        )


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """The axes of a mesh of devices. All 1 means one device, without a mesh."""

    data: int = 1
    """Groups that decode different prompts."""
    model: int = 1
    """Parts of each group's attention heads, inner widths and vocabulary."""
    expert: int = 1
    """Parts of each group's experts, in addition to the split over `model`."""

    def __post_init__(self) -> None:
        require_counts(self, "data", "model", "expert")

    @property
    def devices(self) -> int:
        """Number of devices in the mesh."""
        return self.data * self.model * self.expert


ONE_DEVICE = MeshConfig()
