"""Settings for training masked-diffusion models, and for LoRA adapters."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from llada_jax.config.checks import (
    require,
    require_choices,
    require_counts,
    require_multiple,
    require_numbers,
    require_seed,
)

MatmulDtype = Literal["float32", "bfloat16"]
Optimizer = Literal["adamw", "muon"]
Start = Literal["random", "copying"]
Objective = Literal["finetune", "pretrain"]


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters (LoRA, Hu et al., arXiv 2106.09685): the product of two narrow matrices is
    trained and added to a matrix, which itself stays fixed and can be quantized."""

    rank: int = 8
    alpha: float = 16.0
    """The product is scaled by alpha / rank."""
    targets: tuple[str, ...] = ("query", "key", "value", "output", "gate", "up", "down")
    """Names of matrices; routed experts have no adapters."""

    def __post_init__(self) -> None:
        require_counts(self, "rank")
        require_numbers(self, "alpha", above=0)
        allowed = LoraConfig.targets
        require(
            len(self.targets) > 0 and set(self.targets) <= set(allowed),
            f"lora.targets is {list(self.targets)}; allowed: one or more of {', '.join(allowed)}",
        )


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """Settings of a training loop. Equal settings give the same run, bit for bit."""

    seed: int = 0
    steps: int
    batch_size: int = 32
    clip_norm: float = 1.0
    log_every: int = 50
    checkpoint_every: int = 500
    keep_checkpoints: int = 2
    evaluate_every: int = 0
    """Steps between calls of the caller's evaluation; 0 disables it."""

    def __post_init__(self) -> None:
        require_choices(self)
        require_counts(self, "steps", "batch_size", "log_every", "checkpoint_every",
                       "keep_checkpoints")  # fmt: skip
        require_counts(self, "seed", "evaluate_every", least=0)
        require_seed("seed", self.seed)
        require_numbers(self, "clip_norm", above=0)
        # Running means restart at each log line, so a resumed run must start right after one.
        require_multiple(self, "checkpoint_every", "evaluate_every", of="log_every")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(LoopConfig):
    """Settings of a training run of a masked-diffusion model."""

    matmul_dtype: MatmulDtype = "float32"
    """Dtype of the inputs of the layers' matrix products. Parameters, sums and activations between
    products stay float32."""
    activation_dtype: MatmulDtype = "float32"
    """With bfloat16, activations, embedding and head are bfloat16 as well. Stored parameters, sums
    of gradients and the loss stay float32."""
    remat: bool = False
    """Whether to store only the inputs of layers for the gradient, and compute each layer twice."""
    accumulate: int = 1
    """Number of batches whose mean gradient makes one update; each batch is a step."""
    lora: LoraConfig | None = None
    """Train adapters of a parent's matrices instead of its parameters."""
    start: Start = "random"
    """`random` parameters, or `copying`: random parameters, except that the first three layers have
    heads that copy tokens (`llada_jax.training.copying`)."""
    objective: Objective = "finetune"
    """`finetune` masks answers only, `pretrain` any token of the canvas."""
    optimizer: Optimizer = "muon"
    peak_lr: float = 3e-3
    warmup_steps: int = 100
    decay_steps: int = 1000
    """Last steps, over which the learning rate falls linearly to zero; constant before them."""
    weight_decay: float = 0.01
    balance_weight: float = 0.01
    """Weight of the loss that balances the load of routed experts, as in LLaDA-MoE (arXiv
    2509.24389)."""
    router_z_weight: float = 0.001
    """Weight of the loss that keeps router logits small, as in LLaDA-MoE."""
    min_mask_probability: float = 1e-3
    """Masking probabilities are uniform from this value to 1."""
    block_length: int = 32
    """Canvases are cut at multiples of this length, counted from the answer's start."""
    max_gen_length: int = 160
    """Longest answer region, padding included; a multiple of `block_length`."""
    block_share: float = 0.5
    """Share of canvases with clean earlier blocks and one block partly masked (`finetune`)."""
    cut_share: float = 0.5
    """Share of these canvases that end with that block; the others continue with masks only."""
    length_multiple: int = 32
    """Batches are padded to a multiple of this length. A larger one means fewer shapes to compile
    and more padding."""
    group_steps: int = 8
    """Number of batches that are drawn together and sorted by length, which reduces padding."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.activation_dtype == "float32" or self.matmul_dtype == "bfloat16",
            f"activation_dtype is {self.activation_dtype!r} with matmul_dtype "
            f"{self.matmul_dtype!r}; allowed: 'float32', or both 'bfloat16'",
        )
        require_counts(self, "block_length", "max_gen_length", "length_multiple", "group_steps",
                       "accumulate")  # fmt: skip
        require_counts(self, "warmup_steps", "decay_steps", least=0)
        require_numbers(self, "weight_decay", "balance_weight", "router_z_weight", least=0)
        require_numbers(self, "block_share", "cut_share", least=0, most=1)
        require_numbers(self, "peak_lr", above=0)
        require(
            0 < self.min_mask_probability < 1,
            f"min_mask_probability is {self.min_mask_probability}; allowed: between 0 and 1",
        )
        require(
            self.lora is None or self.optimizer == "adamw",
            f"optimizer is {self.optimizer!r} with lora; allowed: 'adamw'",
        )
        require(
            self.warmup_steps + self.decay_steps <= self.steps,
            f"warmup_steps + decay_steps is {self.warmup_steps + self.decay_steps}; allowed: up to "
            f"steps ({self.steps})",
        )
        require_multiple(self, "max_gen_length", of="block_length")

    def replace(self, **changes: Any) -> "TrainConfig":
        """Returns a copy with some fields changed, checked again."""
        return dataclasses.replace(self, **changes)
