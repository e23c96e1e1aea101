"""The instruction set: operands, meaning and latency, from `instructions.toml`.

Registers: 16 integer ones (gp0 is 0) and 8 floating-point ones (f0 is 0). Addresses count rows of
VLEN elements in vector memory and HBM, and words in the scalar memories.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from llada_jax.config import require

Unit = Literal["vector", "memory", "scalar", "control"]
Column = Literal["calibrated", "pipelined"]

REGISTERS = {"gp": 16, "fp": 8}
_PREFIX = {"gp": "gp", "fp": "f", "imm": ""}
"""Prefix of an operand in a program's text, by its kind."""
PREFETCH_ROWS = 4
"""Maximum rows of one prefetch, `HBM_V_Prefetch_Amount` of the published settings."""
WORD_BITS, OPCODE_BITS, REGISTER_BITS = 32, 6, 4
_LEAST = {"count": 1, "length": 1, "rows": 1, "lanes": 1}
"""Smallest values of unsigned immediates, by the operand's name; others are signed."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One instruction of the set."""

    operands: Mapping[str, str]
    """Kind of each operand by name: gp, fp, or imm for a number."""
    meaning: str
    unit: Unit
    opcode: int
    calibrated: int = 0
    pipelined: int | None = None
    """None if the instruction is not in hardware."""
    a_level: int = 0
    per_element: bool = False
    source: str = "latency table of the simulator behind arXiv 2601.20706"

    @property
    def registers(self) -> int:
        """The number of register operands; an immediate occupies the rest of the word."""
        return sum(kind != "imm" for kind in self.operands.values())

    def cycles(self, column: Column, vlen: int, length: int = 0) -> int:
        """Returns the cycles until the next instruction may start, in order."""
        cycles = self.calibrated
        if column == "pipelined":
            cycles = (self.pipelined or 0) + self.a_level * math.ceil(math.log2(vlen))
        return cycles + length * self.per_element

    def values(self, operand: str) -> range:
        """Returns the allowed values; an immediate has the bits left by opcode and registers."""
        if self.operands[operand] in REGISTERS:
            return range(REGISTERS[self.operands[operand]])
        size = 1 << WORD_BITS - OPCODE_BITS - REGISTER_BITS * self.registers
        signed = operand not in _LEAST
        return range(-size // 2, size // 2) if signed else range(_LEAST[operand], size)


def _read(path: Path) -> dict[str, Spec]:
    entries = tomllib.loads(path.read_text(encoding="utf-8"))
    for entry in entries.values():
        entry["operands"] = dict(operand.split(":") for operand in entry["operands"].split())
    return {name: Spec(**entry) for name, entry in entries.items()}


INSTRUCTION_SET: Mapping[str, Spec] = _read(Path(__file__).with_name("instructions.toml"))


class Instruction(NamedTuple):
    """A name in the instruction set, and operands: register numbers and immediates."""

    name: str
    operands: tuple[int, ...] = ()

    def operand(self, name: str) -> int:
        """Returns the operand with this name, or 0 if the instruction has none."""
        by_name = dict(zip(INSTRUCTION_SET[self.name].operands, self.operands, strict=True))
        return by_name.get(name, 0)


def render(instructions: Sequence[Instruction]) -> str:
    """Writes one instruction per line, with loop bodies indented: `V_EXP_V gp3, gp3`."""
    lines, depth = [], 0
    for name, operands in instructions:
        depth -= name == "C_LOOP_END"
        kinds = INSTRUCTION_SET[name].operands.values()
        words = (f"{_PREFIX[kind]}{value}" for kind, value in zip(kinds, operands, strict=True))
        lines.append("  " * depth + f"{name} {', '.join(words)}")
        depth += name == "C_LOOP_START"
    return "\n".join(lines) + "\n"


def encode(instructions: Sequence[Instruction]) -> list[int]:
    """Returns a program as words: opcode, registers, immediate, from the lowest bit.

    The end of a loop has the address of the loop's first word, for the sequencer. Raises the errors
    of `loops`.
    """
    starts = loops(instructions)
    words: list[int] = []
    for name, operands in instructions:
        if name == "C_LOOP_END":
            operands = (*operands, starts[len(words)] + 1)
        spec, place = INSTRUCTION_SET[name], OPCODE_BITS
        word = spec.opcode
        for i, value in enumerate(operands):
            width = REGISTER_BITS if i < spec.registers else WORD_BITS - place
            word |= (value & (1 << width) - 1) << place
            place += width
        words.append(word)
    return words


def loops(instructions: Sequence[Instruction]) -> dict[int, int]:
    """Checks a program, and returns the index of each loop's start by the index of its end.

    Raises ValueError for an unknown instruction, bad operands, or loops that do not match.
    """
    starts: dict[int, int] = {}
    open_loops: list[tuple[int, int]] = []
    for index, (name, operands) in enumerate(instructions):
        _check(name, operands)
        if name == "C_LOOP_START":
            open_loops.append((index, operands[0]))
        elif name == "C_LOOP_END":
            require(bool(open_loops), "C_LOOP_END without C_LOOP_START")
            starts[index], counter = open_loops.pop()
            require(
                operands[0] == counter,
                f"C_LOOP_START gp{counter} ends with C_LOOP_END gp{operands[0]}",
            )
    counter = open_loops[-1][1] if open_loops else 0
    require(not open_loops, f"C_LOOP_START gp{counter} has no C_LOOP_END")
    return starts


def _check(name: str, operands: tuple[int, ...]) -> None:
    """Raises ValueError for an unknown name, a wrong number of operands, or a bad operand."""
    known = ", ".join(INSTRUCTION_SET)
    require(name in INSTRUCTION_SET, f"instruction is {name!r}; allowed: {known}")
    spec = INSTRUCTION_SET[name]
    signature = ", ".join(map(":".join, spec.operands.items()))
    count = len(operands)
    require(count == len(spec.operands), f"{name} has {count} operands; allowed: {signature}")
    for (operand, kind), value in zip(spec.operands.items(), operands, strict=True):
        prefix, allowed = _PREFIX[kind], spec.values(operand)
        bounds = f"{prefix}{allowed[0]} to {prefix}{allowed[-1]}"
        require(value in allowed, f"{operand} of {name} is {prefix}{value}; allowed: {bounds}")
