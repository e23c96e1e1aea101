"""What running and moving one expert costs.

The accelerator takes the same time for an expert whatever its load (up to its row tile), the CPU's
time grows linearly with the load, and moving an expert takes the same time for each (arXiv
2504.05897, section III). A CPU may have a second kernel, for few rows.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from llada_jax.config import require, require_numbers


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
        require_numbers(self, "cpu_expert", "cpu_row", "cpu_first", "dense", least=0)

    def cpu(self, loads: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Returns the seconds of experts on the CPU, by their loads."""
        many = self.cpu_expert + self.cpu_row * loads
        return many if math.isinf(self.cpu_few_row) else np.minimum(many, self.cpu_few_row * loads)
