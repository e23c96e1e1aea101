"""Decodes on meshes of virtual devices, in a separate process: their number is set before
JAX starts. Reads cases as JSON, and writes a trace for each of their meshes."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import llada_jax as lj


def runs(case: dict[str, Any]) -> Iterator[lj.Result]:
    """Yields each mesh's result for one case; `None` runs without a mesh."""
    settings = lj.SamplerConfig.preset(case["preset"], **case["changes"])
    for shape in case["meshes"]:
        mesh = None if shape is None else lj.mesh(**shape)
        model = lj.load(case["model"], case["dtype"], mesh=mesh)
        rng = np.random.default_rng(0)
        top = model.config.vocab_size - 2
        prompts = [rng.integers(1, top, length).tolist() for length in case["lengths"]]
        yield lj.generate(
            model, prompts, settings, seed=3, loop=case["loop"], trace="margins",
            constraint=case.get("regex") and lj.regex(case["regex"]),
        )  # fmt: skip


if __name__ == "__main__":
    for number, case in enumerate(json.load(sys.stdin)):
        for place, found in enumerate(runs(case)):
            found.trace.save(Path(sys.argv[1], f"{number}-{place}.npz"))
