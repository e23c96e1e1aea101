"""Runs a netlist: gates of one kind and depth work at once, for many streams of inputs."""

from itertools import chain, groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llada_jax.sampling_engine.hdl.gates import GATES, Bits, Netlist
from tests.sampling_engine.hdl.simulation import merged

_COMPUTE = {
    "not": np.logical_not,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "mux": np.where,
}
Number = int | NDArray[np.int64]
"""Of a word: one, or in several streams an array of at most 63 bits."""


class _Group(NamedTuple):
    """Gates of one kind and depth: the lines that they drive, and read."""

    kind: str
    lines: slice
    inputs: tuple[NDArray[np.intp], ...]


class GateSimulation:
    """A netlist that runs. `memories` are whole words by name, for circuits in a single stream.

    The gate behind the line `broken` gives the opposite of what it should.
    """

    def __init__(self, netlist: Netlist, streams: int = 1, broken: int | None = None) -> None:
        self._netlist = netlist
        self._levels(netlist, broken)
        self.memories = {memory.name: [0] * memory.words for *_, memory in netlist.reads}
        self._values = np.zeros((len(netlist.lines), streams), bool)
        self._values[self._place[1]] = True
        self._to = self._lines(chain.from_iterable(to for to, *_ in netlist.registers))
        self._from = self._lines(chain.from_iterable(after for _, after, _ in netlist.registers))
        for to, _, initial in netlist.registers:
            self._set(to, initial)

    def step(self, **inputs: Number) -> dict[str, Number]:
        """Returns the outputs of a cycle, and passes the edge of the clock at its end."""
        for name, number in inputs.items():
            self._set(self._netlist.inputs.get(name, []), number)
        values = self._values
        for kind, lines, ports in self._groups:
            values[lines] = _COMPUTE[kind](*(values[port] for port in ports))
            if self._broken is not None and lines.start <= self._broken < lines.stop:
                values[self._broken] ^= True
        outputs = {name: self._get(bits) for name, bits in self._netlist.outputs.items()}
        read = [(to, self._word(memory.name, at)) for to, at, memory in self._netlist.reads]
        for memory in {memory.name: memory for *_, memory in self._netlist.reads}.values():
            lanes, at, word = map(self._get, self._netlist.ports[memory.name])
            if lanes:
                words = self.memories[memory.name]
                words[at] = merged(words[at], word, lanes, memory.width // memory.lanes)
        values[self._to] = values[self._from]
        for to, word in read:
            self._set(to, word)
        return outputs

    def _levels(self, netlist: Netlist, broken: int | None) -> None:
        """Orders the lines by depth and kind, so that those of a group lie together."""
        depth = [0] * len(netlist.lines)
        for line, gate in enumerate(netlist.lines):
            if gate.kind in GATES:
                depth[line] = 1 + max(depth[each] for each in gate.inputs)
        kinds = [gate.kind for gate in netlist.lines]

        def rank(line: int) -> tuple[int, str]:
            return depth[line], kinds[line]

        order = sorted(range(len(kinds)), key=rank)
        self._place = np.empty(len(order), np.intp)
        self._place[order] = np.arange(len(order))
        self._broken = None if broken is None else int(self._place[broken])
        self._groups: list[_Group] = []
        for (_, kind), group in groupby(order, key=rank):
            lines = list(group)
            if kind in GATES:
                ports = zip(*(netlist.lines[line].inputs for line in lines), strict=True)
                start = int(self._place[lines[0]])
                inputs = tuple(map(self._lines, ports))
                self._groups.append(_Group(kind, slice(start, start + len(lines)), inputs))

    def _lines(self, bits) -> NDArray[np.intp]:
        return self._place[np.fromiter(bits, np.intp)]

    def _word(self, memory: str, address: Bits) -> int:
        return self.memories[memory][int(self._get(address))]

    def _set(self, bits: Bits, number: Number) -> None:
        if isinstance(number, int):
            data = np.frombuffer(number.to_bytes(len(bits) // 8 + 1, "little"), np.uint8)
            found = np.unpackbits(data, count=len(bits), bitorder="little")[:, None]
        else:
            found = number >> np.arange(len(bits))[:, None] & 1
        self._values[self._lines(bits)] = found

    def _get(self, bits: Bits) -> Number:
        found = self._values[self._lines(bits)]
        if found.shape[1] == 1:
            return int.from_bytes(np.packbits(found, bitorder="little").tobytes(), "little")
        return (found.astype(np.int64) << np.arange(len(bits))[:, None]).sum(axis=0)
