"""Trains on a mesh of virtual devices, in a separate process: `python devices.py <JSON>`.

Prints the losses, the parameters' sums and the share of a matrix that is on one device.
"""

import hashlib
import json
import sys
from pathlib import Path

import jax
import numpy as np

from llada_jax.model.mesh import mesh as mesh_of
from llada_jax.training import loop
from tests.training import echo

MODEL = echo.MODEL.replace(
    vocab_size=32, n_heads=4, n_kv_heads=4, head_dim=4, rotary_dims=4, ffn_width=32
)
CONFIG = echo.CONFIG.replace(
    seed=5, steps=6, warmup_steps=1, batch_size=4, group_steps=2, log_every=1, checkpoint_every=3
)


def trained_on(folder: str, steps: int, mesh: tuple[int, int] | None, **changes) -> dict:
    """Trains up to a step; with a mesh, on its axes data and model."""
    seen = hashlib.sha256()
    step_on = loop.place_batch

    def watched(where, batch):
        placed = step_on(where, batch)
        for whole, part in zip(batch, placed, strict=True):
            assert (np.asarray(part) == whole).all()
        seen.update(b"".join(each.tobytes() for each in batch))
        return placed

    loop.place_batch = watched
    on = mesh_of(data=mesh[0], model=mesh[1]) if mesh else None
    config = CONFIG.replace(steps=steps, **changes)
    state = loop.train(Path(folder), MODEL, config, echo.example, progress=False, mesh=on)
    up = state.params.layers[0].ffn.up  # pyright: ignore[reportAttributeAccessIssue]
    return {
        "losses": [row["loss"] for row in loop.read_metrics(folder)],
        "sums": [float(np.abs(np.asarray(leaf)).sum()) for leaf in jax.tree.leaves(state.params)],
        "rows_on_a_device": up.addressable_shards[0].data.shape[0],
        "batches": seen.hexdigest(),
    }


if __name__ == "__main__":
    for case in json.loads(sys.argv[1]):
        print(json.dumps(trained_on(**case)), flush=True)
