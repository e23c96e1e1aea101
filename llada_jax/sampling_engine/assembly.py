"""Programs as text, and as nested loops."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from llada_jax.config import require
from llada_jax.sampling_engine.instructions import Instruction, check, spec_of


class Loop(NamedTuple):
    """A body that runs `count` times."""

    counter: int
    count: int
    body: "tuple[Node, ...]"


Node: TypeAlias = Instruction | Loop


def render(instructions: Sequence[Instruction]) -> str:
    """Writes one instruction a line, bodies of loops indented: `V_EXP_V gp3, gp3`."""
    lines, depth = [], 0
    for instruction in instructions:
        depth -= instruction.name == "C_LOOP_END"
        kinds = [operand.kind for operand in spec_of(instruction.name).operands]
        prefix = {"gp": "gp", "fp": "f", "imm": ""}
        operands = (f"{prefix[k]}{v}" for k, v in zip(kinds, instruction.operands, strict=True))
        lines.append("  " * depth + f"{instruction.name} {', '.join(operands)}".rstrip())
        depth += instruction.name == "C_LOOP_START"
    return "\n".join(lines) + "\n"


def parse(text: str) -> tuple[Instruction, ...]:
    """Reads the instructions of a program file. What follows `;` is a comment.

    Raises:
      ValueError: the line, and what is allowed there.
    """
    instructions = []
    for number, line in enumerate(text.splitlines(), 1):
        code = line.partition(";")[0].strip()
        if code:
            try:
                instructions.append(_instruction(code))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
    nested(instructions)
    return tuple(instructions)


def _instruction(code: str) -> Instruction:
    name, _, rest = code.partition(" ")
    words = [word.strip() for word in rest.split(",")] if rest.strip() else []
    spec = spec_of(name)
    require(
        len(words) == len(spec.operands),
        f"{name} has {len(words)} operands; "
        f"allowed: {', '.join(f'{o.name}:{o.kind}' for o in spec.operands)}",
    )
    values = [_value(word, o.kind) for word, o in zip(words, spec.operands, strict=True)]
    instruction = Instruction(name, tuple(values))
    check(instruction)
    return instruction


def _value(word: str, kind: str) -> int:
    prefix = {"gp": "gp", "fp": "f", "imm": ""}[kind]
    digits = word.removeprefix(prefix)
    sound = word.startswith(prefix) and digits.removeprefix("-").isdecimal()
    allowed = "a whole number" if kind == "imm" else f"{prefix}0, {prefix}1, ..."
    require(sound, f"operand is {word!r}; allowed: {allowed}")
    return int(digits)


def nested(instructions: Sequence[Instruction]) -> tuple[Node, ...]:
    """Checks the instructions, and returns them with loops as `Loop`s.

    Raises:
      ValueError: an unknown instruction, bad operands, or loops that do not match.
    """
    remaining = iter(instructions)
    body, end = _body(remaining)
    require(end is None, "C_LOOP_END without C_LOOP_START")
    return body


def _body(remaining: Iterator[Instruction]) -> tuple[tuple[Node, ...], Instruction | None]:
    """Returns what comes up to the next C_LOOP_END of this level, and that, or None at the end."""
    nodes: list[Node] = []
    for instruction in remaining:
        check(instruction)
        if instruction.name == "C_LOOP_END":
            return tuple(nodes), instruction
        if instruction.name == "C_LOOP_START":
            counter, count = instruction.operands
            body, end = _body(remaining)
            require(end is not None, f"C_LOOP_START gp{counter} has no C_LOOP_END")
            assert end is not None
            require(
                end.operands == (counter,),
                f"C_LOOP_START gp{counter} ends with C_LOOP_END gp{end.operands[0]}",
            )
            nodes.append(Loop(counter, count, body))
        else:
            nodes.append(instruction)
    return tuple(nodes), None
