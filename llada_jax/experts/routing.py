"""The routing trace: which experts every row took, in every layer of every step."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from llada_jax.config import require
from llada_jax.io.archive import ArrayField, load_archive, require_arrays, save_archive

FORMAT = 3
ABSENT = -1
"""In `experts`, for a row that a step did not run; in `foreseen`, for layers after the last too."""
LOOK_AHEAD = 3
"""Layers whose gates are asked early (HybriMoE, arXiv 2504.05897, section IV-C)."""
_FIELDS = {
    "scores": ArrayField("SNE", "f", -math.inf, math.inf),
    "experts": ArrayField("SNRk", least=ABSENT, most="E"),
    "foreseen": ArrayField("SNARk", least=ABSENT, most="E"),
    "changed": ArrayField("SR", "b"),
    "block": ArrayField("SR"),
    "committed": ArrayField("S"),
}


class Visit(NamedTuple):
    """One layer of one step, as a cache policy sees it once the router has run."""

    step: int
    layer: int
    loads: Int[np.ndarray, " E"]
    scores: Float[np.ndarray, " E"]
    foreseen: Int[np.ndarray, "A R k"]
    new_block: bool
    """The step is its block's first."""


@dataclass(frozen=True, eq=False)
class RoutingTrace:
    """S steps through N routed layers; R rows a step at the most, k experts a row, E in a layer."""

    experts: Int[np.ndarray, "S N R k"]
    scores: Float[np.ndarray, "S N E"]
    """Router scores (softmax or sigmoid) of all experts, the mean over the rows."""
    foreseen: Int[np.ndarray, "S N A R k"]
    """Experts of the A following layers as their own gates see them, one layer, two layers ...
    early: applied to this layer's input. Absent beyond the last layer; A may be 0."""
    changed: Bool[np.ndarray, "S R"]
    """Rows that feed another token than in the step before, or were not in it."""
    block: Int[np.ndarray, "S R"]
    """The block that each row belongs to. Rows of blocks after a step's first one are drafts."""
    committed: Int[np.ndarray, " S"]
    """Tokens that became final in each step."""
    settings: dict[str, Any]
    """Where the trace comes from: plain JSON."""

    def __post_init__(self) -> None:
        _check(vars(self))

    @property
    def n_steps(self) -> int:
        return self.experts.shape[0]

    @property
    def n_layers(self) -> int:
        return self.experts.shape[1]

    @property
    def n_experts(self) -> int:
        return self.scores.shape[2]

    @cached_property
    def loads(self) -> Int[np.ndarray, "S N E"]:
        """Counts the rows of each expert."""
        return loads_of(self.experts, self.n_experts)

    @cached_property
    def begins_block(self) -> Bool[np.ndarray, " S"]:
        """Marks steps that are the first of the block that they decode."""
        current = self.block.min(axis=1)
        return np.diff(current, prepend=current[:1] - 1) != 0

    def visits(self, step: int) -> list[Visit]:
        """Returns the layers of a step, as a policy visits them."""
        new_block = bool(self.begins_block[step])
        layers = zip(self.loads[step], self.scores[step], self.foreseen[step], strict=True)
        return [Visit(step, layer, *routing, new_block) for layer, routing in enumerate(layers)]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one .npz file, whole or not at all."""
        arrays = {name: getattr(self, name) for name in _FIELDS}
        save_archive(path, arrays, self.settings, FORMAT)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "RoutingTrace":
        """Reads a file that `save` wrote. Raises ValueError for anything else."""
        arrays, settings = load_archive(
            path, _FIELDS, FORMAT, kind="routing trace", short="routing",
            check=lambda arrays, _: _check(arrays),
        )  # fmt: skip
        return cls(settings=settings, **arrays)


def _check(arrays: Mapping[str, Any]) -> None:
    """Raises ValueError unless the arrays of a trace are of the right kind and fit each other."""
    sizes = require_arrays(arrays, _FIELDS)
    empty = [axis for axis, size in sizes.items() if size == 0 and axis != "A"]
    require(not empty, f"axes {', '.join(empty)} are empty; allowed: sizes of 1 or more")
    bad = int((~np.isfinite(arrays["scores"])).sum())
    require(bad == 0, f"scores has {bad} values that are NaN or infinite; allowed: none")
    ranked = np.sort(arrays["experts"], axis=-1)
    twice = (ranked[..., 1:] == ranked[..., :-1]) & (ranked[..., 1:] != ABSENT)
    require(not twice.any(), "a row takes an expert twice; allowed: once")


def loads_of(experts: Int[np.ndarray, "*lead R k"], n_experts: int) -> Int[np.ndarray, "*lead E"]:
    """Counts the rows that take each expert; absent rows take none."""
    lead, taken = experts.shape[:-2], experts.shape[-2] * experts.shape[-1]
    flat = experts.reshape(math.prod(lead), taken).astype(np.int64)
    offset = np.arange(len(flat))[:, None] * (n_experts + 1)
    places = (flat - ABSENT + offset).ravel()  # absent rows fall into column 0
    counted = np.bincount(places, minlength=len(flat) * (n_experts + 1))
    return counted.reshape(*lead, n_experts + 1)[..., 1:].astype(np.int32)


def joined(traces: Sequence[RoutingTrace]) -> RoutingTrace:
    """Returns runs of one model as one trace, one after another; blocks go on counting."""
    rows = max(trace.block.shape[1] for trace in traces)
    fills: dict[str, Any] = {"experts": ABSENT, "foreseen": ABSENT, "changed": True}
    parts: dict[str, list[np.ndarray]] = {name: [] for name in _FIELDS}
    first = 0
    for trace in traces:
        missing = rows - trace.block.shape[1]
        for name, field in _FIELDS.items():
            widths = [(0, missing * (axis == "R")) for axis in field.axes]
            padded = np.pad(getattr(trace, name), widths, constant_values=fills.get(name, 0))
            parts[name].append(padded)
        padded = np.arange(rows) >= rows - missing
        parts["block"][-1] += first + padded * trace.block.min(axis=1)[:, None].astype(np.int32)
        first = int(parts["block"][-1].max()) + 1
    arrays = {name: np.concatenate(each) for name, each in parts.items()}
    return RoutingTrace(**arrays, settings=traces[0].settings)


def experts_per_step(trace: RoutingTrace) -> float:
    """Counts the different experts that a layer runs in a step, on average."""
    return float((trace.loads > 0).sum(axis=-1).mean())


def step_similarity(trace: RoutingTrace, lag: int = 1) -> float:
    """Returns the mean cosine of a layer's loads, `lag` steps apart within a block."""
    require(lag > 0, f"lag is {lag}; allowed: 1 or more")
    before, after = trace.loads[:-lag].astype(np.float64), trace.loads[lag:].astype(np.float64)
    norms = np.linalg.norm(before, axis=-1) * np.linalg.norm(after, axis=-1)
    cosine = (before * after).sum(axis=-1) / norms
    current = trace.block.min(axis=1)
    same_block = current[:-lag] == current[lag:]
    require(bool(same_block.any()), f"lag is {lag}; allowed: less than the steps of a block")
    return float(cosine[same_block].mean())


def imbalance(trace: RoutingTrace) -> Float[np.ndarray, " N"]:
    """Returns the load of each layer's busiest expert over the mean, all steps together."""
    total = trace.loads.sum(axis=0)
    return total.max(axis=-1) / total.mean(axis=-1)


def row_reuse(trace: RoutingTrace) -> Float[np.ndarray, "S-1 R"]:
    """Returns the share of its experts that each row took in the step before as well, the mean over
    the layers; NaN where the two steps do not run the same rows of the same block."""
    before, after = trace.experts[:-1], trace.experts[1:]
    again = (after[..., :, None] == before[..., None, :]).any(axis=-1).mean(axis=(1, 3))
    present = (trace.experts[:, 0, :, 0] != ABSENT) & (trace.block == trace.block[:, :1])
    rows = present.sum(axis=1)
    compared = (rows[1:] == rows[:-1]) & (np.diff(trace.block.min(axis=1)) == 0)
    return np.where(present[1:] & compared[:, None], again, np.nan)


def gate_accuracy(trace: RoutingTrace) -> Float[np.ndarray, " A"]:
    """Returns the share of a row's experts that gates found one layer early, two layers ..."""
    shares = []
    for ahead in range(min(trace.foreseen.shape[2], trace.n_layers - 1)):
        taken, seen = trace.experts[:, ahead + 1 :], trace.foreseen[:, : -ahead - 1, ahead]
        found = (taken[..., :, None] == seen[..., None, :]).any(axis=-1)
        shares.append(float(found[taken != ABSENT].mean()))
    return np.array(shares)
