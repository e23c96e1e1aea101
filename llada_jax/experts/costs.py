"""What running and moving one expert costs, on the paper's desktop and on phones.

The accelerator takes the same time for an expert whatever its load (up to its row tile), the CPU's
time grows linearly with the load, and moving an expert takes the same time for each (arXiv
2504.05897, section III). A CPU may have a second kernel, for few rows.
"""

import math
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from llada_jax.config import require
from llada_jax.experts.shapes import MoEShape


@dataclass(frozen=True, kw_only=True)
class ExpertCosts:
    """Seconds, for the experts of one model on one machine."""

    cpu_expert: float
    """An expert on the CPU, beside its rows: reading its weights."""
    cpu_row: float
    """Each row of an expert on the CPU."""
    cpu_few_row: float = math.inf
    """Each row with a kernel that reads all weights for every row, taken where it is faster."""
    cpu_first: float
    """What the first expert of a layer on the CPU takes longer: cold caches, waking the threads."""
    accelerator: float
    """An expert on the accelerator."""
    transfer: float
    """Bringing an expert to the accelerator."""
    dense: float
    """The rest of a layer, on the accelerator, before its router is known."""

    def __post_init__(self) -> None:
        for name in ("accelerator", "transfer", "cpu_few_row"):
            value = getattr(self, name)
            require(value > 0, f"{name} is {value}; allowed: above 0 seconds")
        for name in ("cpu_expert", "cpu_row", "cpu_first", "dense"):
            value = getattr(self, name)
            require(value >= 0, f"{name} is {value}; allowed: 0 seconds or more")

    def cpu(self, loads: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Returns the seconds of experts on the CPU, by their loads."""
        many = self.cpu_expert + self.cpu_row * loads
        return many if math.isinf(self.cpu_few_row) else np.minimum(many, self.cpu_few_row * loads)


Tag = Literal["measured", "derived", "inferred", "fitted"]


class Figure(NamedTuple):
    """A number of a profile, how it was had, and where it comes from."""

    value: float
    tag: Tag
    source: str


@dataclass(frozen=True, kw_only=True)
class MachineProfile:
    """A machine, in the units in which its numbers are published: GB/s, billions of operations."""

    name: str
    bytes_per_weight: Figure
    expert_weights: Figure
    """Billions of weights a second that the accelerator's expert kernels take in."""
    dense_weights: Figure
    """The same of all other matrices."""
    accelerator_call: Figure
    """Microseconds of an expert beside its weights."""
    cpu_bandwidth: Figure
    cpu_rate: Figure
    """Billions of multiply-adds a second, 8-bit or 4-bit weights."""
    cpu_first: Figure
    """Microseconds."""
    transfer_bandwidth: Figure
    layer_overhead: Figure
    """Microseconds of a layer beside its weights: launches, norms, attention over a short cache."""

    def costs(self, shape: MoEShape) -> ExpertCosts:
        """Returns the costs of a model's experts on this machine."""
        weights = shape.expert_weights
        size = weights * self.bytes_per_weight.value
        return ExpertCosts(
            cpu_expert=size * 1e-9 / self.cpu_bandwidth.value,
            cpu_row=weights * 1e-9 / self.cpu_rate.value,
            cpu_first=self.cpu_first.value * 1e-6,
            accelerator=weights * 1e-9 / self.expert_weights.value
            + self.accelerator_call.value * 1e-6,
            transfer=size * 1e-9 / self.transfer_bandwidth.value,
            dense=shape.dense_weights * 1e-9 / self.dense_weights.value
            + self.layer_overhead.value * 1e-6,
        )

    def figures(self) -> dict[str, Figure]:
        """Returns all numbers by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "name"}
