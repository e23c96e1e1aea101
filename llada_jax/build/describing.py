"""What a checkpoint is, said without reading a weight."""

import os
from collections import Counter
from dataclasses import dataclass

from llada_jax.checkpoint import open_checkpoint
from llada_jax.config import ModelConfig
from llada_jax.model.families.family import Family, add_family, families
from llada_jax.model.params import param_count
from llada_jax.text import Tokenizer


@dataclass(frozen=True)
class Description:
    """A checkpoint that was looked through."""

    config: ModelConfig
    parameters: int
    bytes: int
    """Of its tensors, as they are stored."""
    kinds: dict[str, int]
    """How many tensors there are of each number type."""
    presets: tuple[str, ...]
    """Presets of `SamplerConfig` that decode it, the published one first."""
    missing: tuple[str, ...]
    """What decoding or a chat needs and the folder does not have."""

    def __str__(self) -> str:
        """Says it in lines."""
        config, moe = self.config, self.config.moe
        experts = f", {moe.n_experts} experts, {moe.experts_per_token} a token" if moe else ""
        ids = {name: getattr(config, f"{name}_id") for name in ("mask", "eos", "eot", "pad")}
        ids |= {"stop": ", ".join(map(str, config.stop_ids)) or None}
        blocks = f"causal between blocks of {config.block_length}"
        own = "predict the next position" if config.shift_logits else "predict their own"
        attention, outputs = {
            "finished": ("causal before the current block, which sees itself whole",
                         "predict the next position before the current block, there their own"),
            "filled": ("causal, tokens before masks", own),
        }.get(config.causal or "", (blocks if config.block_length else "full", own))  # fmt: skip
        lines = {
            "family": config.family,
            "shape": f"{config.n_layers} layers, width {config.width}, {config.n_heads} heads on "
            f"{config.n_kv_heads} of {config.head_dim}, feed-forward {config.ffn_width}, "
            f"vocabulary {config.vocab_size:,}, up to {config.max_length:,} tokens{experts}",
            "parameters": f"{self.parameters:,}",
            "bytes": f"{self.bytes:,} ({', '.join(f'{n} {k}' for k, n in self.kinds.items())})",
            "ids": ", ".join(f"{name} {id_}" for name, id_ in ids.items() if id_ is not None),
            "attention": attention,
            "outputs": outputs,
            "decoded by": ", ".join(self.presets) or "no preset",
            "missing": "; ".join(self.missing) or "nothing",
        }
        return "\n".join(f"{name:<11} {text}" for name, text in lines.items())


def describe(source: str | os.PathLike[str], *, family: Family | str | None = None) -> Description:
    """Looks a checkpoint through without loading it: the header of each file, no weight.

    Arguments and errors as `load`: what would not load is refused in the same sentence. Exports are
    refused.
    """
    name = None if family is None else add_family(family)
    checkpoint, folder = open_checkpoint(source, name)
    config, stored = checkpoint.config, checkpoint.stored.values()
    tokenizer = folder and Tokenizer.from_folder(folder)
    if config.mask_id is None and tokenizer is not None:
        config = config.replace(mask_id=tokenizer.mask_id)
    needed = {
        "a mask id (SamplerConfig(mask_id=...))": config.mask_id,
        "an EOS id": config.eos_id,
        "tokenizer.json": tokenizer,
        "a chat template": tokenizer and tokenizer.chat_template,
    }
    return Description(
        config,
        param_count(config),
        sum(tensor.row_bytes * tensor.shape[0] for tensor in stored),
        dict(Counter(tensor.kind for tensor in stored)),
        tuple(families()[config.family].presets),
        tuple(what for what, found in needed.items() if found is None),
    )
