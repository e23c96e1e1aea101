"""The sequencer: fetches words, takes them apart, and knows when the next instruction may start.

A loop costs a cycle to enter and one to leave: the word behind is looked at as well, and where it
is the end of a loop that goes round, the loop's first word comes next. The end says where that is.
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

COUNT_BITS = 11
"""Of the counter of an instruction's cycles, which the longest `length` fits."""
_FIELDS = 4


class Sequencer:
    """The word that runs: `fields` are its registers' numbers, `count` its cycles until now."""

    def __init__(self, words: int) -> None:
        with unit("sequencer"):
            self._program = Memory("program", words, WORD_BITS)
            self._word, self._next = self._program.read(), self._program.read()
            self._running, self._begins = Register(1), Register(1, 1)
            self._place, self.count = Register(self._program.places), Register(COUNT_BITS)
            self.fields = [_field(self._word, i) for i in range(_FIELDS)]
            self._is = {
                name: self._running & self._word[:OPCODE_BITS].equals(spec.opcode)
                for name, spec in INSTRUCTION_SET.items()
            }
        self._finished: list[Wire] = []

    def is_(self, *names: str) -> Wire:
        """Returns whether one of these instructions runs."""
        return either([self._is[name] for name in names])

    def issues(self, *names: str) -> Wire:
        """Returns whether this is the first cycle of one of these instructions."""
        return self._begins & self.is_(*names)

    def number(self, name: str, word: Wire | None = None) -> Wire:
        """Returns the immediate where the word is this instruction."""
        begin = OPCODE_BITS + REGISTER_BITS * INSTRUCTION_SET[name].registers
        return (self._word if word is None else word)[begin:]

    def finishes(self, done: Wire) -> None:
        """Notes what an instruction's last cycle is known by."""
        self._finished.append(done)

    def close(self, registers: Sequence[Wire]) -> dict[str, Wire]:
        """Decides what comes next, with the integer registers, and returns the outputs."""
        with unit("sequencer"):
            self.finishes(self.is_("C_LOOP_START", "C_LOOP_END"))
            retires = either(self._finished)
            ends = self._next[:OPCODE_BITS].equals(INSTRUCTION_SET["C_LOOP_END"].opcode)
            self._counter = _field(self._next, 0)
            left = choose(self._counter, registers)
            self._goes_round = retires & ends & ~left.equals(1)
            self._fewer = left - 1
            target = self.number("C_LOOP_END", self._next)[: len(self._place)]
            following = mux(self._goes_round, target, self._place + 1)
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
        """Returns a register's number, less one where its loop goes round."""
        return mux(self._goes_round & self._counter.equals(register), self._fewer, number)


def _field(word: Wire, place: int) -> Wire:
    start = OPCODE_BITS + REGISTER_BITS * place
    return word[start : start + REGISTER_BITS]
