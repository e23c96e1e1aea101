"""The software of a phone: which processor runs which part, with which kernels and runtime."""

from dataclasses import dataclass
from typing import Literal

from llada_jax.config import require, require_choices
from llada_jax.phones.profile import CpuClass

Processor = Literal["npu", "cpu"]
ScoresOn = Literal["cpu", "npu"]
"""Processor of the head and its scores. The CPU has its own copy of the head's weights. On the NPU,
the kernels multiply, and tokens and confidences are vector work on the logits."""

Runtime = Literal["none", "remap", "paging", "swap", "delayed", "wide"]
"""How weights become visible in the NPU's address space:

- `none`: everything is mapped once, and a model that does not fit cannot run.
- `remap`: each buffer has a fixed address, but is mapped again at each use beyond the cap.
- `paging`: a buffer replaces another one, without resident weights, slots or shared temporaries.
- `swap`: a budget of weights is resident, the rest is copied into two slots during the compute.
- `delayed`: buffers are registered once, and mapped and unmapped from the NPU.
- `wide`: 64-bit addresses, so everything is mapped once.
"""


@dataclass(frozen=True, kw_only=True)
class System:
    """The software of a phone."""

    body: Processor = "npu"
    kernels: str = "llada_cpp"
    """NPU kernel library of the body."""
    cpu: CpuClass = "plain"
    """CPU kernel library of revisions, and of the body if it is on the CPU."""
    head: CpuClass = "tuned"
    """CPU kernel library of the head if the body is on the NPU."""
    scores_on: ScoresOn = "cpu"
    """Processor of the head."""
    runtime: Runtime = "swap"
    """How weights become visible to the NPU."""
    resident_mib: float = 3072
    """Largest amount of weights that the runtime `swap` keeps mapped."""

    def __post_init__(self) -> None:
        require_choices(self)
        require(
            self.body == "npu" or self.scores_on == "cpu",
            f"scores_on is {self.scores_on!r}; allowed: 'cpu', since the body is on the CPU",
        )
        value = self.resident_mib
        require(value >= 0, f"resident_mib is {value}; allowed: 0 or more")

    def uses(self, number: str) -> bool:
        """Returns whether a number of a profile, by its path, can change a latency."""
        section, _, rest = number.partition(".")
        library = rest.partition(".")[0]
        if section == "npu":
            return self.body == "npu" and library == self.kernels
        if section == "cpu":
            return library == self.cpu or (self.body == "npu" and library == self.head)
        return section == "memory" or (section == "mapping" and self.body == "npu")

    @property
    def head_on_npu(self) -> bool:
        """Whether the NPU runs the head, and needs its weights."""
        return self.scores_on != "cpu"
