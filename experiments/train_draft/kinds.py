"""The kinds of drafters that can be trained: DFlash, and gated LoRA.

Each function takes the drafter's configuration, which determines the kind.
"""

from pathlib import Path
from typing import Any

import jax

from llada_jax.draft.blocks import Blocks, draft_blocks, draft_loss
from llada_jax.draft.files import read_drafter, write_drafter
from llada_jax.draft.gated_lora import (
    GatedLoraConfig,
    gated_lora_drafts,
    gated_lora_loss,
    init_gated_lora,
)
from llada_jax.draft.gated_lora_files import DRAFT_CONFIG, read_gated_lora, write_gated_lora
from llada_jax.draft.network import DFlashConfig, init_drafter, start_from_target
from llada_jax.model.params import ModelParams

DraftConfig = DFlashConfig | GatedLoraConfig


def network(drafter: DraftConfig) -> tuple[Any, ...]:
    """Returns what the shapes of a drafter's parameters follow from."""
    if isinstance(drafter, GatedLoraConfig):
        return drafter.shape, drafter.lora, drafter.n_masks
    return drafter.shape, drafter.taps


def begin(drafter: DraftConfig, target: ModelParams, seed: int) -> Any:
    """Returns float32 parameters to start from."""
    key = jax.random.key(seed)
    if isinstance(drafter, GatedLoraConfig):
        return init_gated_lora(drafter, target.embedding, key)
    return start_from_target(init_drafter(drafter, key), drafter, target)


def read(folder: str) -> tuple[DraftConfig, Any]:
    """Reads the float32 parameters of a drafter."""
    reads = read_gated_lora if (Path(folder) / DRAFT_CONFIG).is_file() else read_drafter
    return reads(folder, "float32")


def write(folder: Path, drafter: DraftConfig, params: Any) -> None:
    """Writes a drafter in bfloat16."""
    writes: Any = write_gated_lora if isinstance(drafter, GatedLoraConfig) else write_drafter
    writes(folder, drafter, params)


def loss(
    params: Any, drafter: DraftConfig, target: ModelParams, blocks: Blocks, decay: float
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the loss and metrics, as `draft_loss`. Parameters have the target's dtype."""
    if isinstance(drafter, GatedLoraConfig):
        return gated_lora_loss(params, drafter, target, blocks, decay)
    return draft_loss(params, drafter, target.embedding, target.head, blocks, decay)


def drafts(params: Any, drafter: DraftConfig, target: ModelParams, blocks: Blocks) -> jax.Array:
    """Returns the drafts after each anchor, [B, N, k], as decoding makes them."""
    if isinstance(drafter, GatedLoraConfig):
        return gated_lora_drafts(params, drafter, target, blocks)
    return draft_blocks(params, drafter, target.embedding, target.head, blocks)
