"""Small models of every family that eight devices can share, and runs of them on meshes."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import llada_jax as lj
from llada_jax.checkpoint import save_huggingface
from llada_jax.config import ModelConfig, MoEConfig
from llada_jax.model.families.family import families
from tests.drawn_params import drawn_params

ROOT = Path(__file__).parents[2]
LIMIT = 900
"""Seconds after which a process counts as hung."""
CASE = {
    "dtype": "int8",
    "loop": "compiled",
    "preset": "threshold",
    "changes": {"gen_length": 16, "block_length": 8, "threshold": 0.03},
    "lengths": [5, 9],
}


def divisible(family: str) -> ModelConfig:
    """Returns a shape with at least eight of everything that a mesh divides."""
    row, moe = families()[family], None
    if row.moe_facts is not None:
        moe = MoEConfig(n_experts=16, experts_per_token=2, expert_width=32, **row.moe_facts)
    facts = {**row.facts, "qk_norm": row.facts.get("qk_norm", bool(row.presence))}
    if "block_length" in row.required or facts.get("block_length"):
        facts |= {"block_length": 8}
    return ModelConfig(
        family=family, vocab_size=128, width=64, n_layers=2, n_heads=8, n_kv_heads=8, head_dim=8,
        ffn_width=64, rope_theta=1e4, norm_eps=1e-6, max_length=64, mask_id=127, eos_id=0,
        moe=moe, **facts,
    )  # fmt: skip


def written(folder: Path, family: str) -> Path:
    """Writes such a model, drawn at random, and returns its folder."""
    config = divisible(family)
    save_huggingface(folder, config, drawn_params(config), "float32")
    return folder


def traces(folder: Path, cases: Sequence[Mapping[str, Any]]) -> list[list[lj.Trace]]:
    """Decodes cases in a process with eight devices; returns a trace for each of their meshes."""
    folder.mkdir(exist_ok=True)
    whole = [{**CASE, **case} for case in cases]
    process(["tests/mesh/decoded.py", str(folder)], 8, json.dumps(whole))
    return [
        [lj.Trace.load(folder / f"{number}-{place}.npz") for place in range(len(case["meshes"]))]
        for number, case in enumerate(whole)
    ]


def process(command: Sequence[str], devices: int, text: str = "") -> str:
    """Runs a program on a number of virtual devices, and returns its output."""
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment(devices), input=text,
        capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def environment(devices: int) -> dict[str, str]:
    """Returns this process's environment, for another one with its own number of devices."""
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "PYTHONPATH": str(ROOT),
    }
