"""Checks of prompts, seeds and ids, before anything is computed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from llada_jax.config import ModelConfig, require, require_seed
from llada_jax.sampler.config import SamplerConfig

Prompts = Sequence[Sequence[int]] | np.ndarray | jax.Array
Seeds = int | Sequence[int] | np.ndarray | jax.Array
"""A seed or a typed JAX key for the batch, or one for each sequence."""


def with_ids(config: SamplerConfig, model: ModelConfig) -> SamplerConfig:
    """Returns the sampler's settings with the model's special ids, unless they name others.

    Raises ValueError for an id that is needed but not set, or outside the vocabulary, and for
    anything but a SamplerConfig.
    """
    require(
        isinstance(config, SamplerConfig),
        f"config is {config!r}; allowed: a SamplerConfig, as SamplerConfig(gen_length=64)",
    )
    late = config.confidence_eos_eot_inf
    needs = {
        "mask_id": ("decoding", True),
        "eos_id": (
            "logits_eos_inf, confidence_eos_eot_inf, eos_early_stop and stop",
            config.logits_eos_inf or late or config.eos_early_stop or bool(config.stop),
        ),
        "eot_id": ("confidence_eos_eot_inf", late),
    }
    ids = {}
    if model.autoregressive and config.mask_id in (None, model.vocab_size):
        require(
            config.block_length == 1 or config.drafter is not None,
            f"block_length is {config.block_length} and the model has no [MASK], as an "
            "autoregressive one; allowed: 1 (preset 'autoregressive'), or a drafter ('lookup')",
        )
        needs.pop("mask_id")
        ids["mask_id"] = model.vocab_size  # no token: it marks what is open, and is never embedded
    for name, (user, needed) in needs.items():
        value = getattr(config, name)
        ids[name] = value = getattr(model, name) if value is None else value
        require(
            value is None or 0 <= value < model.vocab_size,
            f"{name} is {value}; allowed: 0 to {model.vocab_size - 1}",
        )
        require(
            not needed or value is not None,
            f"{name} is not set by the model's configuration, and {user} needs it: set it in the "
            "SamplerConfig",
        )
    return replace(config, **ids)


def end_ids(config: SamplerConfig, model: ModelConfig) -> tuple[int, ...]:
    """Returns the ids that end a text or a turn, of the sampler and of the model."""
    ids = (config.eos_id, config.eot_id, model.eos_id, model.eot_id, *model.stop_ids)
    return tuple(dict.fromkeys(id_ for id_ in ids if id_ is not None))


def check_prompts(
    prompts: Prompts, config: SamplerConfig, model: ModelConfig, *, infill: bool
) -> list[np.ndarray]:
    """Returns the prompts as int32 arrays, or one clear ValueError."""
    is_batch = isinstance(prompts, Sequence | np.ndarray | jax.Array) and not any(
        isinstance(value, str | bytes) for value in (prompts, *prompts)
    )
    require(
        is_batch,
        f"prompts is {repr(prompts)[:60]}; allowed: lists of ids (text is tokenized first: "
        "model.tokenizer.encode or encode_chat)",
    )
    require(len(prompts) > 0, "no prompts were given; allowed: 1 or more")
    require(
        all(np.ndim(prompt) == 1 for prompt in prompts),
        f"prompts have {1 + np.ndim(prompts[0])} dimensions; allowed: 2, a batch of id lists",
    )
    rows = [np.asarray(prompt) for prompt in prompts]
    for index, row in enumerate(rows):
        name = f"prompt {index}"
        require(len(row) > 0, f"{name} is empty; allowed: 1 token or more")
        require(
            np.issubdtype(row.dtype, np.integer), f"{name} has dtype {row.dtype}; allowed: integers"
        )
        outside = row[(row < 0) | (row >= model.vocab_size)]
        require(
            not outside.size,
            f"{name} has id {outside[:1]}; allowed: 0 to {model.vocab_size - 1} (the vocabulary)",
        )
        model.require_room(name, len(row), 0 if infill else config.gen_length)
        masks = np.flatnonzero(row == config.mask_id)
        require(
            infill or not masks.size,
            f"{name} contains [MASK] ({config.mask_id}) at position {masks[:1]}; allowed: only in "
            "infilling",
        )
    require(
        not infill or any((row == config.mask_id).any() for row in rows),
        f"no canvas has a hole; allowed: 1 or more [MASK] ({config.mask_id}) in infilling",
    )
    return [row.astype(np.int32) for row in rows]


def check_seeds(seed: Seeds, batch: int) -> list[tuple[Any, int]]:
    """Returns (seed or key, index folded into it) of each sequence; 0 if it has its own seed."""
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        if seed.ndim == 0:
            return [(seed, row) for row in range(batch)]
        require(
            seed.shape == (batch,),
            f"seed is keys of shape {seed.shape}; allowed: one key, or {batch}",
        )
        return [(seed[row], 0) for row in range(batch)]
    seeds = np.asarray(seed).tolist()
    if not isinstance(seeds, list):
        require_seed("seed", seeds)
        return [(seeds, row) for row in range(batch)]
    require(len(seeds) == batch, f"{len(seeds)} seeds were given; allowed: one, or {batch}")
    for value in seeds:
        require_seed("a seed", value)
    return [(value, 0) for value in seeds]


def sequence_keys(seeds: Sequence[tuple[Any, int]]) -> Key[Array, " B"]:
    """Returns the random keys of sequences, from `check_seeds`' seeds or keys and indices."""
    values, rows = zip(*seeds, strict=True)
    are_keys = isinstance(values[0], jax.Array)
    stacked = jnp.stack(values) if are_keys else np.array(values, np.int64)
    return _fold_in(stacked, np.array(rows, np.int32))


@jax.jit
def _fold_in(seeds: Array, rows: Int[Array, " B"]) -> Key[Array, " B"]:
    if not jnp.issubdtype(seeds.dtype, jax.dtypes.prng_key):
        seeds = jax.vmap(jax.random.key)(seeds)
    return jax.vmap(jax.random.fold_in)(seeds, rows)


def plain_seed(seed: Any) -> Any:
    """Returns a seed as plain data: an int, or the numbers of a key."""
    return jax.random.key_data(seed).tolist() if isinstance(seed, jax.Array) else seed
