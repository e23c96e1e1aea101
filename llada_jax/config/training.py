"""How a masked-diffusion model is trained."""

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
    """Which matrices get a trained product of two narrow ones beside them (LoRA, Hu et al., arXiv
    2106.09685), while they themselves stay as they are, quantized or not."""

    rank: int = 8
    alpha: float = 16.0
    """The product counts alpha / rank times."""
    targets: tuple[str, ...] = ("query", "key", "value", "output", "gate", "up", "down")
    """Names of matrices; those of routed experts have no adapters."""

    def __post_init__(self) -> None:
        require_counts(self, "rank")
        require_numbers(self, "alpha", above=0)
        allowed = LoraConfig.targets
        require(
            len(self.targets) > 0 and set(self.targets) <= set(allowed),
            f"lora.targets is {list(self.targets)}; allowed: one or more of {', '.join(allowed)}",
        )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a masked-diffusion model is trained. The same values give the same run, bit for bit."""

    seed: int = 0
    steps: int
    batch_size: int = 32
    matmul_dtype: MatmulDtype = "float32"
    """Of the layers' matrix products; parameters, sums and what lies between them stay float32."""
    activation_dtype: MatmulDtype = "float32"
    """bfloat16: activations, embedding and head as well; the parameters that are kept, their
    gradients' sums and the loss stay float32."""
    remat: bool = False
    """Keep the inputs of layers alone for the gradient, and run each layer a second time for it."""
    accumulate: int = 1
    """Batches whose mean gradient makes one update; each of them is a step."""
    lora: LoraConfig | None = None
    """Train adapters of a parent's matrices, in place of its parameters."""
    start: Start = "random"
    """`random` parameters, or `copying`: random but for heads that copy, in the first three layers
    (`llada_jax.training.copying`)."""
    objective: Objective = "finetune"
    """`finetune` masks answers only, `pretrain` any token of the canvas."""
    optimizer: Optimizer = "muon"
    peak_lr: float = 3e-3
    warmup_steps: int = 100
    decay_steps: int = 1000
    """Last steps, over which the learning rate falls linearly to zero; constant before them."""
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    balance_weight: float = 0.01
    """Of the loss that keeps the loads of routed experts even; as LLaDA-MoE (arXiv 2509.24389)."""
    router_z_weight: float = 0.001
    """Of the loss that keeps router logits small; as LLaDA-MoE."""
    min_mask_probability: float = 1e-3
    """Masking probabilities are uniform from here to 1."""
    block_length: int = 32
    """Grid, counted from the answer's start, on which canvases are cut."""
    max_gen_length: int = 160
    """Longest answer region, padding included; a multiple of `block_length`."""
    block_share: float = 0.5
    """Share of canvases with clean earlier blocks and one block partly masked (`finetune`)."""
    cut_share: float = 0.5
    """Share of those that end with that block; the others go on with masks only."""
    length_multiple: int = 32
    """Batches are padded to such a length: fewer shapes to compile, more padding."""
    group_steps: int = 8
    """Batches drawn together and sorted by length, against padding."""
    log_every: int = 50
    checkpoint_every: int = 500
    keep_checkpoints: int = 2
    evaluate_every: int = 0
    """Steps between calls of the caller's evaluation; 0 for none."""

    def __post_init__(self) -> None:
        require_choices(self)
        require(
            self.activation_dtype == "float32" or self.matmul_dtype == "bfloat16",
            f"activation_dtype is {self.activation_dtype!r} with matmul_dtype "
            f"{self.matmul_dtype!r}; allowed: 'float32', or both 'bfloat16'",
        )
        require_counts(self, "steps", "batch_size", "block_length", "max_gen_length",
                       "length_multiple", "group_steps", "log_every", "checkpoint_every",
                       "keep_checkpoints", "accumulate")  # fmt: skip
        require_counts(self, "seed", "warmup_steps", "decay_steps", "evaluate_every", least=0)
        require_seed("seed", self.seed)
        require_numbers(self, "weight_decay", "balance_weight", "router_z_weight", least=0)
        require_numbers(self, "block_share", "cut_share", least=0, most=1)
        require_numbers(self, "peak_lr", "clip_norm", above=0)
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
        # Running means restart at each log line, so a resumed run must start right after one.
        require_multiple(self, "checkpoint_every", "evaluate_every", of="log_every")

    def replace(self, **changes: Any) -> "TrainConfig":
        """Returns a copy with some fields changed, checked again."""
        return dataclasses.replace(self, **changes)
