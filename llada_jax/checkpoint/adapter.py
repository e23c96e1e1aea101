"""LoRA adapters in peft's layout, merged into the tensors of their base while these are read.

`adapter_model.safetensors` has `base_model.model.MODULE.lora_A.weight` [r, in] and `.lora_B.weight`
[out, r] of each adapted matrix, to which `scale * B @ A` is added; the scale is `lora_alpha / r`,
or with rsLoRA `lora_alpha / sqrt(r)` (arXiv 2106.09685, 2312.03732). Modules that were trained
whole (`modules_to_save`) replace those of the base.
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
_PREFIX = "base_model.model."
_OTHER = ("fan_in_fan_out", "layer_replication", "lora_bias", "target_parameters",
          "trainable_token_indices", "alora_invocation_tokens")  # fmt: skip
_REWRITES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Ways to begin a LoRA that change the base's own weights."""


def adapter_settings(folder: Path) -> dict[str, Any]:
    """Reads `adapter_config.json`. Raises FileNotFoundError or ValueError for another kind than
    LoRA, and for a variant that computes something else."""
    if not (folder / ADAPTER_CONFIG).is_file():
        raise FileNotFoundError(f"no {ADAPTER_CONFIG} in {folder}; allowed: a LoRA adapter of peft")
    settings = read_object(folder / ADAPTER_CONFIG)
    kind = settings.get("peft_type")
    require(kind == "LORA", f"peft_type of {folder} is {kind!r}; allowed: 'LORA'")
    added = {key: value for key, value in settings.items() if value and _changes_lora(key)}
    begun = settings.get("init_lora_weights")
    if isinstance(begun, str) and begun.startswith(_REWRITES_BASE):
        added["init_lora_weights"] = begun
    require(not added, f"the adapter {folder} has {added!r:.200}; allowed: plain LoRA, or rsLoRA")
    alphas = [settings.get("lora_alpha"), *_pattern(settings, "alpha_pattern").values()]
    wrong = [a for a in alphas if type(a) not in (int, float) or not math.isfinite(a)]
    require(not wrong, f"lora_alpha of {folder} is {wrong[:1]}; allowed: a number")
    return settings


def _changes_lora(key: str) -> bool:
    variant = key.startswith("use_") and key != "use_rslora"
    return variant or key.endswith("_config") or key in _OTHER


def merged(
    stored: Mapping[str, StoredTensor],
    adapter: Mapping[str, StoredTensor],
    settings: Mapping[str, Any],
    folder: Path,
) -> dict[str, StoredTensor]:
    """Returns the base's tensors, each adapted one merged as it is read.

    Raises ValueError for a tensor of the adapter that no tensor of the base takes, or that does not
    fit it.
    """
    tensors, halves = dict(stored), {}
    for name, tensor in adapter.items():
        module, found, half = name.removeprefix(_PREFIX).partition(".lora_")
        if found and half in ("A.weight", "B.weight"):
            halves.setdefault(module, {})[half[0]] = tensor
            continue
        plain = module.replace(".modules_to_save.default", "").replace(".base_layer", "")
        fits = not found and plain in stored and stored[plain].shape == tensor.shape
        require(fits, f"{folder} has {name}, which no tensor of the base takes")
        tensors[plain] = tensor
    require(len(halves) > 0 or len(tensors) > 0, f"{folder} has no tensors of LoRA")
    for module, pair in halves.items():
        name = f"{module}.weight"
        require(name in stored, f"{folder} adapts {module}, and the base has no {name}")
        missing = [half for half in "AB" if half not in pair]
        require(not missing, f"{folder} lacks {listed([f'{module}.lora_{h}' for h in missing])}")
        tensors[name] = _merged(stored[name], pair["A"], pair["B"], _alpha(settings, module),
                                bool(settings.get("use_rslora")))  # fmt: skip
    return tensors


def _merged(
    base: StoredTensor, a: StoredTensor, b: StoredTensor, alpha: float, root: bool
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
    down *= alpha / (math.sqrt(rank) if root else rank)

    def rows(start: int, stop: int) -> np.ndarray:
        up = b.decode(b.read(start, stop)).astype(np.float32)
        return base.decode(base.read(start, stop)).astype(np.float32) + up @ down

    return ComputedTensor.of(base, rows, base.shape, base.kind, base.dtype)


def _alpha(settings: Mapping[str, Any], module: str) -> float:
    """Returns the module's alpha: that of the first pattern which fits the end of its name."""
    for pattern, alpha in _pattern(settings, "alpha_pattern").items():
        if re.fullmatch(rf"(.*\.)?({re.escape(pattern)})", module):
            return alpha
    return settings["lora_alpha"]


def _pattern(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = settings.get(name) or {}
    require(
        isinstance(found, Mapping) and all(re.fullmatch(r"[\w.]+", key) for key in found),
        f"{name} is {found!r}; allowed: an object whose keys are the ends of modules' names",
    )
    return found
