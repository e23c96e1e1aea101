"""Merges LoRA adapters in peft's layout into the tensors of their base model.

For each adapted matrix, `adapter_model.safetensors` has `base_model.model.MODULE.lora_A.weight`
[r, in] and `.lora_B.weight` [out, r]. The merged matrix is `W + scale * B @ A`, with a scale of
`lora_alpha / r` (LoRA, arXiv 2106.09685) or `lora_alpha / sqrt(r)` (rsLoRA, arXiv 2312.03732).
It is computed row by row while the base is read, so no second copy of the model is held. Modules
that were trained in full (`modules_to_save`) replace the modules of the base.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from llada_jax.checkpoint.sources import ComputedTensor, StoredTensor, listed
from llada_jax.config import require
from llada_jax.config.checks import read_object

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
DRAFT_CONFIG = "draft.json"  # of an adapter that drafts (`llada_jax.draft.gated_lora_files`)
PREFIX = "base_model.model."
_OTHER = ("fan_in_fan_out", "layer_replication", "lora_bias", "target_parameters",
          "trainable_token_indices", "alora_invocation_tokens")  # fmt: skip
_REWRITES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initializations of LoRA that also change the weights of the base."""


def adapter_settings(folder: Path) -> dict[str, Any]:
    """Reads `adapter_config.json`.

    Raises FileNotFoundError if it is missing, and ValueError for adapters other than LoRA and
    rsLoRA, and for options that change the computation.
    """
    if not (folder / ADAPTER_CONFIG).is_file():
        raise FileNotFoundError(f"no {ADAPTER_CONFIG} in {folder}; allowed: a LoRA adapter of peft")
    settings = read_object(folder / ADAPTER_CONFIG)
    kind = settings.get("peft_type")
    require(kind == "LORA", f"peft_type of {folder} is {kind!r}; allowed: 'LORA'")
    unsupported = {key: value for key, value in settings.items() if value and _changes_lora(key)}
    initialization = settings.get("init_lora_weights")
    if isinstance(initialization, str) and initialization.startswith(_REWRITES_BASE):
        unsupported["init_lora_weights"] = initialization
    require(
        not unsupported,
        f"the adapter {folder} has {unsupported!r:.200}; allowed: plain LoRA, or rsLoRA",
    )
    alphas = [settings.get("lora_alpha"), *_pattern(settings, "alpha_pattern").values()]
    wrong = [a for a in alphas if type(a) not in (int, float) or not math.isfinite(a)]
    require(not wrong, f"lora_alpha of {folder} is {wrong[:1]}; allowed: a number")
    return settings


def _changes_lora(key: str) -> bool:
    variant = key.startswith("use_") and key != "use_rslora"
    return variant or key.endswith("_config") or key in _OTHER


def merge_adapter(
    stored: Mapping[str, StoredTensor],
    adapter: Mapping[str, StoredTensor],
    settings: Mapping[str, Any],
    folder: Path,
) -> dict[str, StoredTensor]:
    """Returns the base's tensors, with the ones that the adapter changes replaced.

    A merged matrix computes its rows when they are read. Raises ValueError for a tensor of the
    adapter without a counterpart of the right shape in the base.
    """
    tensors, halves = dict(stored), {}
    for name, tensor in adapter.items():
        module, is_lora, half = name.removeprefix(PREFIX).partition(".lora_")
        if is_lora and half in ("A.weight", "B.weight"):
            halves.setdefault(module, {})[half[0]] = tensor
            continue
        base_name = module.replace(".modules_to_save.default", "").replace(".base_layer", "")
        fits = not is_lora and base_name in stored and stored[base_name].shape == tensor.shape
        require(fits, f"{folder} has {name}, which no tensor of the base takes")
        tensors[base_name] = tensor
    require(len(halves) > 0 or len(tensors) > 0, f"{folder} has no tensors of LoRA")
    for module, pair in halves.items():
        name = f"{module}.weight"
        require(name in stored, f"{folder} adapts {module}, and the base has no {name}")
        missing = [half for half in "AB" if half not in pair]
        require(not missing, f"{folder} lacks {listed([f'{module}.lora_{h}' for h in missing])}")
        alpha, rank_stabilized = _alpha(settings, module), bool(settings.get("use_rslora"))
        a, b = pair["A"], pair["B"]
        tensors[name] = _merge_matrix(stored[name], a, b, alpha, rank_stabilized)
    return tensors


def _merge_matrix(
    base: StoredTensor, a: StoredTensor, b: StoredTensor, alpha: float, rank_stabilized: bool
) -> StoredTensor:
    rank = a.shape[0] if a.shape else 0
    require(
        len(base.shape) == 2
        and rank > 0
        and (a.shape, b.shape) == ((rank, base.shape[1]), (base.shape[0], rank)),
        f"{a.name} and B are {list(a.shape)} and {list(b.shape)}; allowed for {list(base.shape)}: "
        "[r, in] and [out, r]",
    )
    require(a.dtype is not None and b.dtype is not None, f"{a.name} is {a.kind}; allowed: floats")
    down = a.decode(a.read(0, rank)).astype(np.float32)
    down *= alpha / (math.sqrt(rank) if rank_stabilized else rank)

    def rows(start: int, stop: int) -> np.ndarray:
        up = b.decode(b.read(start, stop)).astype(np.float32)
        return base.decode(base.read(start, stop)).astype(np.float32) + up @ down

    return ComputedTensor.of(base, rows, base.shape, base.kind, base.dtype)


def _alpha(settings: Mapping[str, Any], module: str) -> float:
    """Returns the alpha of the first pattern in `alpha_pattern` that matches the end of a module's
    name, or else `lora_alpha`."""
    for pattern, alpha in _pattern(settings, "alpha_pattern").items():
        if re.fullmatch(rf"(.*\.)?({re.escape(pattern)})", module):
            return alpha
    return settings["lora_alpha"]


def _pattern(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    pattern = settings.get(name) or {}
    require(
        isinstance(pattern, Mapping) and all(re.fullmatch(r"[\w.]+", key) for key in pattern),
        f"{name} is {pattern!r}; allowed: an object whose keys are the ends of modules' names",
    )
    return pattern
