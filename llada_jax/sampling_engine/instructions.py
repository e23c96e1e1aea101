"""The instruction set as data: operands, meaning, latency, and where each number comes from.

Registers: 16 integer ones (gp0 is 0) and 8 floating-point ones (f0 is 0). Addresses count rows of
VLEN elements in vector memory and HBM, and words in the scalar memories.
"""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

from llada_jax.config import require

Unit = Literal["vector", "scalar", "memory", "control"]
Kind = Literal["gp", "fp", "imm"]
Column = Literal["calibrated", "behavioural", "tree"]
COLUMNS: tuple[Column, ...] = get_args(Column)

INTEGER_REGISTERS = 16
FLOAT_REGISTERS = 8
PREFETCH_ROWS = 4
"""Rows of one prefetch, `HBM_V_Prefetch_Amount` of the published settings."""

SIMULATOR = "latency table of the simulator behind arXiv 2601.20706"
TOPK_RTL = "published top-k unit: one element a cycle"
TREE_RTL = "published reduction unit: a registered tree of log2(VLEN) + 1 stages"
ZERO_OVERHEAD = (
    "assumed: 1 cycle to enter and 1 to leave a loop, none to go round; the published 3,609 "
    "control cycles are fewer than the iterations"
)
OURS = "ours"


class Latency(NamedTuple):
    """Cycles until the next instruction may start, in-order."""

    fixed: int = 0
    per_element: int = 0
    """For each element of an instruction that has a `length`."""
    per_level: int = 0
    """For each level of a binary tree over VLEN lanes."""

    def cycles(self, vlen: int, length: int = 0) -> int:
        levels = math.ceil(math.log2(vlen))
        return self.fixed + self.per_element * length + self.per_level * levels


class Operand(NamedTuple):
    """A register or a number in the instruction."""

    name: str
    kind: Kind


class Spec(NamedTuple):
    """One instruction of the set.

    `calibrated` is the published column for 1 GHz in 7 nm, `behavioural` the one of the
    behavioural RTL, and `tree` is `calibrated` with reductions as deep as the RTL's tree.
    """

    name: str
    operands: tuple[Operand, ...]
    meaning: str
    unit: Unit
    latency: Mapping[Column, Latency]
    source: str

    def operand_index(self, name: str) -> int | None:
        """Returns place of a named operand, or None."""
        names = [operand.name for operand in self.operands]
        return names.index(name) if name in names else None


class Instruction(NamedTuple):
    """A name of the set and its operands: register numbers and immediates."""

    name: str
    operands: tuple[int, ...] = ()


def _spec(
    text: str,
    meaning: str,
    unit: Unit,
    latency: tuple[int, int] | Latency,
    source: str = SIMULATOR,
    tree: Latency | None = None,
) -> Spec:
    """Reads `text`, the name and operands with their kinds: `S_ADDI_INT to:gp a:gp value:imm`."""
    name, *operands = text.split()
    if isinstance(latency, Latency):
        columns: dict[Column, Latency] = dict.fromkeys(COLUMNS, latency)
    else:
        calibrated, behavioural = map(Latency, latency)
        columns = {"calibrated": calibrated, "behavioural": behavioural, "tree": tree or calibrated}
    parsed = []
    for operand in operands:
        operand_name, _, kind = operand.partition(":")
        parsed.append(Operand(operand_name, kind))  # pyright: ignore[reportArgumentType]
    return Spec(name, tuple(parsed), meaning, unit, columns, source)


_TREE = Latency(fixed=1, per_level=1)
_ONE = Latency(1)
_PER_ELEMENT = Latency(per_element=1)

SPECS = (
    # Vector unit: rows of VLEN lanes, of which the first `C_SET_V_MASK` ones take part.
    _spec(
        "V_RED_MAX_IDX index:gp row:gp base:gp best:fp",
        "where the row's maximum is greater than best: best = it, index = base + its first lane",
        "vector", (4, 4), f"{SIMULATOR}; tree: {TREE_RTL}", _TREE,
    ),
    _spec("V_RED_MAX best:fp row:gp", "best = max(best, row)", "vector", (4, 4),
          f"{SIMULATOR}; tree: {TREE_RTL}", _TREE),
    _spec("V_RED_SUM total:fp row:gp", "total += sum of the row, added in a binary tree",
          "vector", (8, 20), f"{SIMULATOR}; tree: {TREE_RTL}", _TREE),
    _spec("V_SUB_VF to:gp row:gp scalar:fp reversed:imm",
          "to = row - scalar, or scalar - row where reversed is 1", "vector", (2, 7)),
    _spec("V_EXP_V to:gp row:gp", "to = exp(row)", "vector", (1, 6)),
    _spec("V_RECI_V to:gp row:gp", "to = 1 / row, and 0 for 0", "vector", (2, 7)),
    _spec("V_ADD_VV to:gp a:gp b:gp", "to = a + b", "vector", (2, 7)),
    _spec("V_MUL_VV to:gp a:gp b:gp", "to = a * b", "vector", (1, 5)),
    _spec("V_SELECT_VVM to:gp a:gp b:gp mask:gp", "to = a where mask is not 0, else b",
          "vector", (2, 7)),
    _spec(
        "V_TOPK_MASK to:gp row:gp mask:gp k:gp length:imm",
        "1 in the k largest positive lanes of the first `length` that mask admits, else 0; the "
        "first lane wins ties",
        "vector", _PER_ELEMENT, TOPK_RTL,
    ),
    _spec(
        "S_SELECT_INT to:gp a:gp b:gp mask:gp length:imm",
        "to[i] = a[i] where lane i of the mask row is not 0, else b[i]; in integer memory",
        "vector", _PER_ELEMENT, f"{SIMULATOR}; the paper counts it as a vector instruction",
    ),
    # Scalar unit.
    _spec("S_RECI_FP to:fp a:fp", "to = 1 / a, and 0 for 0", "scalar", (1, 2)),
    _spec("S_EXP_FP to:fp a:fp", "to = exp(a)", "scalar", (2, 2),
          "published behavioural latency; a calibrated one is not published, so the same"),
    _spec("S_ADD_FP to:fp a:fp b:fp", "to = a + b", "scalar", _ONE),
    _spec("S_SUB_FP to:fp a:fp b:fp", "to = a - b", "scalar", _ONE),
    _spec("S_MUL_FP to:fp a:fp b:fp", "to = a * b", "scalar", _ONE),
    _spec("S_LD_FP to:fp address:gp offset:imm", "to = fp memory[address + offset]",
          "scalar", _ONE),
    _spec("S_ST_FP value:fp address:gp offset:imm", "fp memory[address + offset] = value",
          "scalar", _ONE),
    _spec("S_LD_INT to:gp address:gp offset:imm", "to = integer memory[address + offset]",
          "scalar", _ONE),
    _spec("S_ST_INT value:gp address:gp offset:imm", "integer memory[address + offset] = value",
          "scalar", _ONE),
    _spec(
        "S_MAP_V_FP to:gp address:gp length:imm",
        "the first `length` lanes of row `to` = fp memory from address on; other lanes 0",
        "scalar", _PER_ELEMENT, f"{SIMULATOR}, as its statistics count it",
    ),
    _spec("S_ADDI_INT to:gp a:gp value:imm", "to = a + value", "scalar", _ONE),
    _spec("S_ADD_INT to:gp a:gp b:gp", "to = a + b", "scalar", _ONE),
    # HBM. Its time comes from a memory model, not from here. NaN becomes -inf on the way, and +inf
    # the largest finite number.
    _spec("H_PREFETCH_V to:gp address:gp rows:imm",
          "rows of HBM, converted, to vector memory; waits until they are there",
          "memory", Latency(), "HBM model"),
    _spec("H_START_V to:gp address:gp rows:imm",
          "as H_PREFETCH_V, but does not wait: the rows are there after H_WAIT",
          "memory", _ONE, OURS),
    _spec("H_WAIT started:imm", "wait until at most so many of the started loads are on their way",
          "memory", _ONE, OURS),
    # Control.
    _spec("C_SET_V_MASK lanes:imm", "vector instructions use the first `lanes` lanes",
          "control", _ONE),
    _spec("C_LOOP_START counter:gp count:imm", "repeat up to the matching C_LOOP_END",
          "control", _ONE, ZERO_OVERHEAD),
    _spec("C_LOOP_END counter:gp", "the end of the loop with this counter",
          "control", _ONE, ZERO_OVERHEAD),
)  # fmt: skip

INSTRUCTION_SET: Mapping[str, Spec] = {spec.name: spec for spec in SPECS}


def spec_of(name: str) -> Spec:
    """Looks an instruction up. Raises ValueError that lists the set for an unknown name."""
    require(
        name in INSTRUCTION_SET, f"instruction is {name!r}; allowed: {', '.join(INSTRUCTION_SET)}"
    )
    return INSTRUCTION_SET[name]


def check(instruction: Instruction) -> None:
    """Raises ValueError for an unknown name, a wrong number of operands, or no such register."""
    spec = spec_of(instruction.name)
    require(
        len(instruction.operands) == len(spec.operands),
        f"{spec.name} has {len(instruction.operands)} operands; "
        f"allowed: {', '.join(f'{o.name}:{o.kind}' for o in spec.operands)}",
    )
    for operand, value in zip(spec.operands, instruction.operands, strict=True):
        registers = {"gp": INTEGER_REGISTERS, "fp": FLOAT_REGISTERS}.get(operand.kind)
        require(
            registers is None or 0 <= value < registers,
            f"{operand.name} of {spec.name} is {operand.kind}{value}; "
            f"allowed: {operand.kind}0 to {operand.kind}{(registers or 0) - 1}",
        )
    _check_counts(spec, instruction)


def _check_counts(spec: Spec, instruction: Instruction) -> None:
    for name, least in (("count", 1), ("length", 1), ("rows", 1), ("lanes", 1), ("started", 0)):
        place = spec.operand_index(name)
        if place is not None:
            value = instruction.operands[place]
            require(value >= least, f"{name} of {spec.name} is {value}; allowed: {least} or more")
