"""The software of a phone: which processor runs what, by which kernels, within which memory."""

from dataclasses import dataclass
from typing import Literal

from llada_jax.config import require, require_choices
from llada_jax.phones.profile import CpuClass

Processor = Literal["npu", "cpu"]
ScoresOn = Literal["cpu", "npu"]
"""The CPU has its own copy of the head. On the NPU, the product is the kernels', and what makes
tokens and confidences of the logits is their vector work."""

Runtime = Literal["none", "remap", "paging", "swap", "delayed", "wide"]
"""`none`: all is mapped once, or the run fails. `remap`: every buffer keeps its place in the
address space, but beyond the cap it is mapped anew at each use. `paging`: buffers are replaced,
with neither lifetimes nor slots. `swap`: a resident budget, the rest is copied through two slots
while the NPU computes. `delayed`: registered buffers, mapped from the NPU's side. `wide`: 64-bit
mappings, nothing is ever mapped twice."""


@dataclass(frozen=True, kw_only=True)
class System:
    """Which software runs where."""

    body: Processor = "npu"
    kernels: str = "llada_cpp"
    """NPU kernel class of the body."""
    cpu: CpuClass = "plain"
    """CPU kernel class of the body on the CPU, and of revisions."""
    head: CpuClass = "tuned"
    """CPU kernel class of the head, where the body is on the NPU and the head is not."""
    scores_on: ScoresOn = "cpu"
    """Where the head runs."""
    runtime: Runtime = "swap"
    """How weights find room in the NPU's address space."""
    resident_mib: float = 3072
    """Weights that the runtime `swap` keeps mapped at the most."""

    def __post_init__(self) -> None:
        require_choices(self)
        require(
            self.body == "npu" or self.scores_on == "cpu",
            f"scores_on is {self.scores_on!r}; allowed: 'cpu', where the body is on the CPU",
        )
        value = self.resident_mib
        require(value >= 0, f"resident_mib is {value}; allowed: 0 or more")

    def uses(self, number: str) -> bool:
        """Tells whether a number of a profile, by its path, can change how long something takes."""
        room, _, rest = number.partition(".")
        classes = {self.cpu} if self.body == "cpu" else {self.cpu, self.head}
        used = {"memory": True, "mapping": self.body == "npu", "power": False, "session": False}
        used |= {"npu": self.body == "npu" and rest.partition(".")[0] == self.kernels}
        return used.get(room, rest.partition(".")[0] in classes)

    @property
    def head_on_npu(self) -> bool:
        """Whether the NPU runs the head, and so needs its matrix."""
        return self.scores_on != "cpu"
