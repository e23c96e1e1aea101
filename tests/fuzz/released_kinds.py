"""Checkpoints in the formats of other projects: LoRA adapters, MLX weights, hub caches."""

import json
import os
import shutil
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from llada_jax.checkpoint import load_params
from tests.checkpoint.folders import GOLDENS, golden_config, golden_tensors, write_folder
from tests.checkpoint.test_mlx import GROUP, quantized
from tests.fuzz.damage import HOSTILE_NAMES, VALUES, Damage, damage_bytes, damage_json_file

BASE = "ar-llama"


def _damage_weights(rng: Random, path: Path) -> Damage:
    """Damages the bytes of a safetensors file: its header, its data, or both."""
    before = path.read_bytes()
    end = 8 + int.from_bytes(before[:8], "little")
    label, now = damage_bytes(rng, path), path.read_bytes()
    return Damage(label, raw_weights=len(now) == len(before) and now[:end] == before[:end])


class Adapter:
    """LoRA adapters in peft's layout."""

    weights = ""

    def build(self, folder: Path) -> None:
        shutil.copytree(GOLDENS / "ar-llama-lora", folder)
        (folder / "forward.npz").unlink()

    def damage(self, rng: Random, folder: Path) -> Damage:
        if rng.random() < 0.5:
            return _damage_weights(rng, folder / "adapter_model.safetensors")
        config = folder / "adapter_config.json"
        settings = json.loads(config.read_text())
        if rng.random() < 0.5:
            key = rng.choice(["alpha_pattern", "rank_pattern", "lora_alpha", "use_rslora", "use_x"])
            value = rng.choice([*VALUES, {"": 1}, {"(a+)+$": 3}, {"v_proj": "1"}, {"v_proj": []}])
            config.write_text(json.dumps(settings | {key: value}))
            return Damage(f"{key} is {str(value)[:40]}", states_other=True)
        return damage_json_file(rng, config)._replace(states_other=True)

    def load(self, folder: Path) -> Any:
        return load_params(GOLDENS / BASE, adapter=folder)[:2]


class Mlx:
    """Folders that MLX quantized."""

    weights = ""

    def build(self, folder: Path) -> None:
        stored = {}
        for name, tensor in golden_tensors(BASE).items():
            parts = quantized(tensor, 4)[0] if tensor.ndim == 2 else {"weight": tensor}
            stored |= {f"{name.removesuffix('weight')}{part}": each for part, each in parts.items()}
        settings = {"group_size": GROUP, "bits": 4, "lm_head": {"group_size": GROUP, "bits": 4}}
        write_folder(folder, golden_config(BASE) | {"quantization": settings}, stored)

    def damage(self, rng: Random, folder: Path) -> Damage:
        if rng.random() < 0.5:
            return _damage_weights(rng, folder / "model.safetensors")
        config = folder / "config.json"
        hf = json.loads(config.read_text())
        layer = rng.choice(["lm_head", "model.layers.0.mlp.up_proj", None])
        settings = hf["quantization"] if layer is None else hf["quantization"].setdefault(layer, {})
        key = rng.choice(["bits", "group_size", "mode"])
        settings[key] = rng.choice([*VALUES, 2, 8, 3, 64, 32])
        config.write_text(json.dumps(hf))
        return Damage(f"{key} of {layer} is {str(settings[key])[:40]}", states_other=True)

    def load(self, folder: Path) -> Any:
        return load_params(folder)[:2]


class HubCache:
    """Caches of the hub, which contain files that name folders."""

    def build(self, folder: Path) -> None:
        repository = folder / "models--some-org--tiny"
        for commit, golden in (("a1b2", BASE), ("c3d4", "ar-qwen2")):
            snapshot = repository / "snapshots" / commit
            snapshot.mkdir(parents=True)
            for name in ("config.json", "model.safetensors"):
                shutil.copy(GOLDENS / golden / name, snapshot)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text("a1b2")

    def damage(self, rng: Random, folder: Path) -> Damage:
        repository = folder / "models--some-org--tiny"
        reference, snapshot = repository / "refs" / "main", repository / "snapshots" / "a1b2"
        kind = rng.choice(["reference", "reference", "bytes", "missing", "file", "link"])
        if kind == "reference":
            name = rng.choice([*HOSTILE_NAMES, "..", ".", "../a1b2", "c3d4", "a1b2\n", "a" * 10**6])
            absolute = folder.parent.parent / "outside"
            reference.write_text(name.format(name="models--some-org--tiny", absolute=absolute))
            return Damage(f"reference {name[:40]!r}", states_other=name == "c3d4")
        if kind == "bytes":
            return Damage(damage_bytes(rng, reference), states_other=True)
        gone = rng.choice([reference, snapshot, snapshot / "config.json", repository / "snapshots"])
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        if kind == "file":
            gone.write_text("a1b2")
        if kind == "link":
            gone.symlink_to(gone)  # to itself
        return Damage(f"{kind}: {gone.name}", states_other=True)

    def load(self, folder: Path) -> Any:
        settings = {"HF_HUB_CACHE": str(folder), "HF_HUB_OFFLINE": "1"}
        with mock.patch.dict(os.environ, settings):
            named = load_params("some-org/tiny")[:2]
        return named, load_params(folder / "models--some-org--tiny")[:2]
