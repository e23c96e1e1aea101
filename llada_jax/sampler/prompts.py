"""What a user hands to the sampler, checked before anything is computed."""

from collections.abc import Sequence

import jax
import numpy as np

from llada_jax.config import ModelConfig, SamplerConfig, require, require_seed

Prompts = Sequence[Sequence[int]] | np.ndarray | jax.Array


def with_ids(config: SamplerConfig, model: ModelConfig) -> SamplerConfig:
    """Returns the sampler's settings, with the model's special ids where they name no own ones.

    Raises ValueError where an id is needed and nobody names it, or is outside the vocabulary, and
    for other records than a SamplerConfig.
    """
    require(
        isinstance(config, SamplerConfig),
        f"config is {config!r}; allowed: a SamplerConfig, as SamplerConfig(gen_length=64)",
    )
    late = config.confidence_eos_eot_inf
    needs = {
        "mask_id": ("decoding", True),
        "eos_id": (
            "logits_eos_inf, confidence_eos_eot_inf and eos_early_stop",
            config.logits_eos_inf or late or config.eos_early_stop,
        ),
        "eot_id": ("confidence_eos_eot_inf", late),
    }
    ids = {}
    for name, (user, needed) in needs.items():
        own = getattr(config, name)
        ids[name] = found = getattr(model, name) if own is None else own
        require(
            found is None or 0 <= found < model.vocab_size,
            f"{name} is {found}; allowed: 0 to {model.vocab_size - 1}",
        )
        require(
            not needed or found is not None,
            f"{name} is not set by the model's configuration, and {user} needs it: set it in the "
            "SamplerConfig",
        )
    return config.replace(**ids)


def end_ids(config: SamplerConfig, model: ModelConfig) -> tuple[int, ...]:
    """Returns the ids that end a text or a turn: the sampler's, and the model's own."""
    ids = (each for source in (config, model) for each in (source.eos_id, source.eot_id))
    return tuple(dict.fromkeys(each for each in (*ids, *model.stop_ids) if each is not None))


def check_prompts(
    prompts: Prompts, config: SamplerConfig, model: ModelConfig, *, infill: bool
) -> list[np.ndarray]:
    """Returns the prompts as int32 arrays, or one clear ValueError."""
    is_batch = isinstance(prompts, Sequence | np.ndarray | jax.Array) and not any(
        isinstance(each, str | bytes) for each in (prompts, *prompts)
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


def check_seeds(seed: int | Sequence[int], batch: int) -> list[tuple[int, int]]:
    """Returns (seed, index folded into it) of each row; where it has its own seed, index 0."""
    given = np.asarray(seed).tolist()
    if not isinstance(given, list):
        require_seed("seed", given)
        return [(given, row) for row in range(batch)]
    require(len(given) == batch, f"{len(given)} seeds were given; allowed: one, or {batch}")
    for each in given:
        require_seed("a seed", each)
    return [(each, 0) for each in given]
