"""Measures a machine's time to run and to read an expert, to plan a run with a budget."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from llada_jax.config import ModelConfig, require
from llada_jax.experts.decoding.budgeted_forward import around_experts, run_expert
from llada_jax.experts.decoding.expert_file import ExpertFile, page_aligned
from llada_jax.experts.schedule import ExpertCosts
from llada_jax.io import atomic
from llada_jax.model.forward import cache_for, forward_rows
from llada_jax.model.grouped_product import tile_rows
from llada_jax.model.params import ModelParams
from llada_jax.rows import make_rows

_REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class MachineProfile:
    """Seconds on one machine, for the experts of one file (HybriMoE's warm-up phase)."""

    experts: tuple[Any, ...]
    """The file's `ExpertShape`."""
    rows: int
    """Rows of the measured forward pass."""
    run: dict[int, float]
    """Time to run an expert, by its rows."""
    read: float
    """Time to read an expert from the file."""
    dense: float
    """Time of the rest of a routed layer, plus its share of the other layers."""

    def costs(self, experts_per_token: int) -> ExpertCosts:
        """Returns the costs for planners. On one processor, an expert's cost is taken at the mean
        rows of an active expert if all are equally likely."""
        loads, seconds = (np.array(list(part), float) for part in (self.run, self.run.values()))
        row, expert = np.polyfit(loads, seconds, 1)
        n_experts = self.experts[1]
        idle = (1 - experts_per_token / n_experts) ** self.rows
        mean = self.rows * experts_per_token / (n_experts * (1 - idle))
        return ExpertCosts(
            cpu_expert=max(expert, 0.0),
            cpu_row=max(row, 0.0),
            cpu_first=0.0,
            accelerator=float(np.interp(mean, loads, seconds)),
            transfer=self.read,
            dense=self.dense,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        atomic.write_text(path, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str], file: ExpertFile) -> "MachineProfile":
        """Reads a file of `save`. Raises ValueError for other content, and for a profile of other
        experts than the file's."""
        try:
            content = json.loads(Path(path).read_text("utf-8"))
            run = {int(rows): float(seconds) for rows, seconds in content.pop("run").items()}
            profile = cls(**{**content, "experts": tuple(content["experts"]), "run": run})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is no profile of a machine: {error!r}") from error
        require(
            profile.experts == tuple(file.shape),
            f"{path} is of experts {profile.experts}; allowed: {tuple(file.shape)}",
        )
        return profile


def measure_machine(
    params: ModelParams, config: ModelConfig, file: ExpertFile, rows: int
) -> MachineProfile:
    """Measures reading experts, running one with 1, 2, 4, ... rows, and a forward pass of `rows`
    rows without experts; the medians of five measurements."""
    shape, moe = file.shape, config.moe
    assert moe is not None
    buffer = page_aligned(shape.expert_bytes)
    numbers = np.linspace(0, shape.n_layers * shape.n_experts - 1, _REPEATS + 1).astype(int)
    keys = iter([divmod(int(number), shape.n_experts) for number in numbers])
    read = _median(lambda: file.read(*next(keys), buffer))
    matrices = file.matrices(buffer)
    n_choices = rows * moe.experts_per_token
    inputs = jnp.ones((n_choices + rows, config.width), params.embedding.dtype)
    tile = tile_rows(n_choices, moe.n_experts)

    def run(count: int) -> Array:
        out, number = jnp.zeros_like(inputs), np.int32(count)
        return run_expert(out, inputs, np.int32(0), number, matrices, rows, tile)

    counts = [1 << power for power in range(rows.bit_length())]
    by_rows = {count: _median(lambda count=count: run(count)) for count in counts}
    position = jnp.arange(rows, dtype=jnp.int32)[None]
    live, nothing = jnp.ones((1, rows), bool), jnp.zeros((1, 0), bool)
    window = make_rows(jnp.zeros_like(position), position, live, nothing)
    cache, run_layer = cache_for(params, config, 1, 0), around_experts(lambda x, index: x)
    dense = _median(lambda: forward_rows(params, config, window, cache, run=run_layer))
    return MachineProfile(
        experts=tuple(shape), rows=rows, run=by_rows, read=read, dense=dense / shape.n_layers
    )


def _median(call: Callable[[], Any]) -> float:
    """Returns the median seconds of a call, after a first one that is not counted."""
    seconds = []
    for _ in range(_REPEATS + 1):
        began = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds[1:]))
