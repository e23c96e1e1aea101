"""Runs a sampler's program on the engine's wires or gates, with a modelled HBM."""

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from llada_jax.config import require
from llada_jax.sampling_engine.cycles import Hbm, row_bytes
from llada_jax.sampling_engine.formats import StoredLogits
from llada_jax.sampling_engine.hdl.verilog import hbm_words, images
from llada_jax.sampling_engine.instructions import INSTRUCTION_SET, OPCODE_BITS
from llada_jax.sampling_engine.machine import Machine
from llada_jax.sampling_engine.sampler_program import SamplerProgram

NAMES = {spec.opcode: name for name, spec in INSTRUCTION_SET.items()}


class Hardware(Protocol):
    """A circuit that runs: its memories' words by name, and a cycle's outputs."""

    @property
    def memories(self) -> Mapping[str, list[int]]: ...

    def step(self, **inputs: int) -> Mapping[str, Any]: ...


class Ran(NamedTuple):
    """The memories after a program, and the cycles of each instruction that ran."""

    memories: dict[str, list[int]]
    cycles: list[tuple[str, int]]

    @property
    def total(self) -> int:
        return sum(cycles for _, cycles in self.cycles)


def run(
    hardware: Hardware, program: SamplerProgram, machine: Machine, hbm: Hbm, limit: int = 20_000
) -> Ran:
    """Runs a program from the content of a machine's memories and HBM.

    Raises ValueError if `limit` cycles are not enough.
    """
    for name, words in images(program, machine).items():
        hardware.memories[name][:] = words
    channel = _Channel(machine.hbm, hbm, program.engine.vlen)
    took, since = [], -1  # a cycle to fetch the first word
    for _ in range(limit):
        out = hardware.step(**channel.deliver())
        if out["halted"]:
            return Ran({name: list(words) for name, words in hardware.memories.items()}, took)
        if out["request"]:
            channel.ask(out["address"], out["rows"])
        since += 1
        if out["retires"]:
            took.append((NAMES.get(out["word"] & (1 << OPCODE_BITS) - 1, "none"), since))
            since = 0
    raise ValueError(f"the program has not ended after {limit} cycles")


class _Channel:
    """HBM that gives rows in the time that the model has for them, one a cycle at the end."""

    def __init__(self, stored: StoredLogits, hbm: Hbm, vlen: int) -> None:
        self._rows, self._hbm, self._row_bytes = hbm_words(stored), hbm, row_bytes(vlen)
        self._arriving: deque[int | None] = deque()
        self._owed = 0.0

    def ask(self, address: int, rows: int) -> None:
        """Lets rows arrive; the rest of a cycle counts for the next load."""
        self._owed += self._hbm.load(rows * self._row_bytes)
        cycles = int(self._owed)
        self._owed -= cycles
        found = self._rows[address : address + rows]
        require(len(found) == rows <= cycles, f"{rows} rows of HBM from {address} on")
        self._arriving = deque([None] * (cycles - rows) + found)

    def deliver(self) -> dict[str, int]:
        row = self._arriving.popleft() if self._arriving else None
        return {"hbm_valid": int(row is not None), "hbm_row": row or 0}
