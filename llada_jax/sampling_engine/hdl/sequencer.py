"""The sequencer: fetches and decodes words, and determines when the next instruction may start.

A loop costs one cycle to enter and one to leave, and nothing to repeat: the following word is
decoded as well, and if it is the end of a loop with iterations left, the loop's first word is
fetched next. The end's word has the address of the first.
"""

from collections.abc import Sequence

from llada_jax.sampling_engine.hdl.wires import (
    Memory,
    Register,
    Wire,
    choose,
    const,
    either,
    mux,
    unit,
)
from llada_jax.sampling_engine.instructions import (
    INSTRUCTION_SET,
    OPCODE_BITS,
    REGISTER_BITS,
    WORD_BITS,
)

_COUNT_BITS = 11
"""Width of the counter of an instruction's cycles; enough for the longest `length`."""
_FIELDS = 4


class Sequencer:
    """The current word: `fields` are register numbers, `count` is the number of earlier cycles."""

    def __init__(self, words: int) -> None:
        with unit("sequencer"):
            self._program = Memory("program", words, WORD_BITS)
            self._word, self._next = self._program.read(), self._program.read()
            self._running, self._begins = Register(1), Register(1, 1)
            self._place, self.count = Register(self._program.places), Register(_COUNT_BITS)
            self.fields = [_field(self._word, i) for i in range(_FIELDS)]
            self._is = {
                name: self._running & self._word[:OPCODE_BITS].equals(spec.opcode)
                for name, spec in INSTRUCTION_SET.items()
            }
        self._finished: list[Wire] = []

    def is_(self, *names: str) -> Wire:
        """Returns whether one of these instructions is running."""
        return either([self._is[name] for name in names])

    def issues(self, *names: str) -> Wire:
        """Returns whether this is the first cycle of one of these instructions."""
        return self._begins & self.is_(*names)

    def number(self, name: str, word: Wire | None = None) -> Wire:
        """Returns the immediate operand, if the word is this instruction."""
        begin = OPCODE_BITS + REGISTER_BITS * INSTRUCTION_SET[name].registers
        return (self._word if word is None else word)[begin:]

    def finishes(self, done: Wire) -> None:
        """Adds a condition that is true in an instruction's last cycle."""
        self._finished.append(done)

    def close(self, registers: Sequence[Wire]) -> dict[str, Wire]:
        """Determines the next word, given the integer registers, and returns the outputs."""
        with unit("sequencer"):
            self.finishes(self.is_("C_LOOP_START", "C_LOOP_END"))
            retires = either(self._finished)
            ends = self._next[:OPCODE_BITS].equals(INSTRUCTION_SET["C_LOOP_END"].opcode)
            self._counter = _field(self._next, 0)
            count = choose(self._counter, registers)
            self._repeats = retires & ends & ~count.equals(1)
            self._decremented = count - 1
            target = self.number("C_LOOP_END", self._next)[: len(self._place)]
            following = mux(self._repeats, target, self._place + 1)
            place = mux(self._running, mux(retires, following, self._place), 0)
            self._place.set(place)
            self._word.inputs = (place,)
            self._next.inputs = (place + 1,)
            self._running.set(const(1, 1))
            self._begins.set(mux(self._running, retires, 1))
            self.count.set(mux(self._running & ~retires, self.count + 1, 0))
            halted = self._running & self._word[:OPCODE_BITS].equals(0)
        return {"halted": halted, "retires": retires, "word": self._word}

    def counted(self, register: int, number: Wire) -> Wire:
        """Returns a register's number, decremented if its loop repeats."""
        return mux(self._repeats & self._counter.equals(register), self._decremented, number)


def _field(word: Wire, place: int) -> Wire:
    start = OPCODE_BITS + REGISTER_BITS * place
    return word[start : start + REGISTER_BITS]
