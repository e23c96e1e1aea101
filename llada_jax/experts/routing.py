"""Routing traces: the experts chosen for every row, in every layer of every step.

A trace is recorded from a real run (`decoding.recording`) or drawn from published statistics
(`synthetic`), and replayed to compare expert policies. In addition to the choices it contains the
router scores, which some cache policies use, and the predictions of later layers' gates, which
prefetching uses. The functions at the end compute statistics that papers report.
"""

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
"""Entry of `experts` for rows that a step did not run, and of `foreseen` after the last layer."""
LOOK_AHEAD = 3
"""Number of later layers whose gates are evaluated early (HybriMoE, arXiv 2504.05897, IV-C)."""
_FIELDS = {
    "scores": ArrayField("SNE", "f", -math.inf, math.inf),
    "experts": ArrayField("SNRk", least=ABSENT, most="E"),
    "foreseen": ArrayField("SNARk", least=ABSENT, most="E"),
    "changed": ArrayField("SR", "b"),
    "block": ArrayField("SR"),
    "committed": ArrayField("S"),
}


class Visit(NamedTuple):
    """One layer of one step, as a cache policy sees it after the router has run."""

    step: int
    layer: int
    loads: Int[np.ndarray, " E"]
    scores: Float[np.ndarray, " E"]
    foreseen: Int[np.ndarray, "A R k"]
    new_block: bool
    """Whether the step is its block's first."""


@dataclass(frozen=True, eq=False)
class RoutingTrace:
    """S steps of N routed layers; at most R rows in a step, k experts for a row, E in a layer."""

    experts: Int[np.ndarray, "S N R k"]
    scores: Float[np.ndarray, "S N E"]
    """Router scores (softmax or sigmoid) of all experts, averaged over the rows."""
    foreseen: Int[np.ndarray, "S N A R k"]
    """Experts of the next A layers, predicted by applying their gates to this layer's input.
    ABSENT after the last layer; A may be 0."""
    changed: Bool[np.ndarray, "S R"]
    """Rows with another token than in the previous step, or that were not in it."""
    block: Int[np.ndarray, "S R"]
    """Block of each row. Rows of later blocks than a step's first row are drafts."""
    committed: Int[np.ndarray, " S"]
    """Tokens that became final in each step."""
    settings: dict[str, Any]
    """Origin of the trace, as plain JSON."""

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
        """The number of rows of each expert."""
        return loads_of(self.experts, self.n_experts)

    @cached_property
    def begins_block(self) -> Bool[np.ndarray, " S"]:
        """Marks steps that are the first of their block."""
        current = self.block.min(axis=1)
        return np.diff(current, prepend=current[:1] - 1) != 0

    def visits(self, step: int) -> list[Visit]:
        """Returns the layers of a step, in the order in which a policy visits them."""
        new_block = bool(self.begins_block[step])
        layers = zip(self.loads[step], self.scores[step], self.foreseen[step], strict=True)
        return [Visit(step, layer, *routing, new_block) for layer, routing in enumerate(layers)]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one .npz file, atomically."""
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
    """Raises ValueError unless the arrays of a trace have valid types, shapes and values."""
    sizes = require_arrays(arrays, _FIELDS)
    empty = [axis for axis, size in sizes.items() if size == 0 and axis != "A"]
    require(not empty, f"axes {', '.join(empty)} are empty; allowed: sizes of 1 or more")
    bad = int((~np.isfinite(arrays["scores"])).sum())
    require(bad == 0, f"scores has {bad} values that are NaN or infinite; allowed: none")
    ranked = np.sort(arrays["experts"], axis=-1)
    twice = (ranked[..., 1:] == ranked[..., :-1]) & (ranked[..., 1:] != ABSENT)
    require(not twice.any(), "a row takes an expert twice; allowed: once")


def loads_of(experts: Int[np.ndarray, "*lead R k"], n_experts: int) -> Int[np.ndarray, "*lead E"]:
    """Counts the rows of each expert; absent rows count for none."""
    lead, n_choices = experts.shape[:-2], experts.shape[-2] * experts.shape[-1]
    flat = experts.reshape(math.prod(lead), n_choices).astype(np.int64)
    offset = np.arange(len(flat))[:, None] * (n_experts + 1)
    bins = (flat - ABSENT + offset).ravel()  # absent rows are counted in column 0
    counts = np.bincount(bins, minlength=len(flat) * (n_experts + 1))
    return counts.reshape(*lead, n_experts + 1)[..., 1:].astype(np.int32)


def joined(traces: Sequence[RoutingTrace]) -> RoutingTrace:
    """Joins several runs of one model into one trace, with consecutive block numbers."""
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
        is_padding = np.arange(rows) >= rows - missing
        first_block = trace.block.min(axis=1)[:, None].astype(np.int32)
        parts["block"][-1] += first + is_padding * first_block
        first = int(parts["block"][-1].max()) + 1
    arrays = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    return RoutingTrace(**arrays, settings=traces[0].settings)


def experts_per_step(trace: RoutingTrace) -> float:
    """Returns the mean number of different experts that a layer runs in a step."""
    return float((trace.loads > 0).sum(axis=-1).mean())


def step_similarity(trace: RoutingTrace, lag: int = 1) -> float:
    """Returns the mean cosine similarity of a layer's loads `lag` steps apart in a block."""
    require(lag > 0, f"lag is {lag}; allowed: 1 or more")
    before, after = trace.loads[:-lag].astype(np.float64), trace.loads[lag:].astype(np.float64)
    norms = np.linalg.norm(before, axis=-1) * np.linalg.norm(after, axis=-1)
    cosine = (before * after).sum(axis=-1) / norms
    current = trace.block.min(axis=1)
    same_block = current[:-lag] == current[lag:]
    require(bool(same_block.any()), f"lag is {lag}; allowed: less than the steps of a block")
    return float(cosine[same_block].mean())


def imbalance(trace: RoutingTrace) -> Float[np.ndarray, " N"]:
    """Returns the load of each layer's busiest expert divided by the mean, over all steps."""
    total = trace.loads.sum(axis=0)
    return total.max(axis=-1) / total.mean(axis=-1)


def row_reuse(trace: RoutingTrace) -> Float[np.ndarray, "S-1 R"]:
    """Returns for each row the share of its experts that it also had in the previous step, averaged
    over layers; NaN if the two steps do not have the same rows of the same block."""
    before, after = trace.experts[:-1], trace.experts[1:]
    again = (after[..., :, None] == before[..., None, :]).any(axis=-1).mean(axis=(1, 3))
    present = (trace.experts[:, 0, :, 0] != ABSENT) & (trace.block == trace.block[:, :1])
    rows = present.sum(axis=1)
    compared = (rows[1:] == rows[:-1]) & (np.diff(trace.block.min(axis=1)) == 0)
    return np.where(present[1:] & compared[:, None], again, np.nan)


def gate_accuracy(trace: RoutingTrace) -> Float[np.ndarray, " A"]:
    """Returns the share of a row's experts that gates predict one layer early, two layers, ..."""
    shares = []
    for ahead in range(min(trace.foreseen.shape[2], trace.n_layers - 1)):
        actual, predicted = trace.experts[:, ahead + 1 :], trace.foreseen[:, : -ahead - 1, ahead]
        hit = (actual[..., :, None] == predicted[..., None, :]).any(axis=-1)
        shares.append(float(hit[actual != ABSENT].mean()))
    return np.array(shares)
