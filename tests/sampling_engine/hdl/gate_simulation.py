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

    The gate that drives the line `broken` gives the inverted value.
    """

    def __init__(self, netlist: Netlist, streams: int = 1, broken: int | None = None) -> None:
        self._netlist = netlist
        self._levels(netlist, broken)
        self._circuit = netlist.circuit
        self.memories = {memory.name: [0] * memory.words for memory in self._circuit.memories}
        self._values = np.zeros((len(netlist.lines), streams), bool)
        self._values[self._place[1]] = True
        self._reads = self._circuit.of_kind("read")
        registers = self._circuit.of_kind("register")
        self._to, self._from = (
            self._lines(chain.from_iterable(netlist.bits[wire] for wire in wires))
            for wires in (registers, [wire.inputs[0] for wire in registers])
        )
        for wire in registers:
            self._set(netlist.bits[wire], wire.data)

    def step(self, **inputs: Number) -> dict[str, Number]:
        """Returns the outputs of a cycle, and passes the edge of the clock at its end."""
        bits = self._netlist.bits
        for name, number in inputs.items():
            if name in self._circuit.inputs:
                self._set(bits[self._circuit.inputs[name]], number)
        values = self._values
        for kind, lines, ports in self._groups:
            values[lines] = _COMPUTE[kind](*(values[port] for port in ports))
            if self._broken is not None and lines.start <= self._broken < lines.stop:
                values[self._broken] ^= True
        outputs = {name: self._get(bits[wire]) for name, wire in self._circuit.outputs.items()}
        read = [
            (bits[wire], self.memories[wire.data.name][int(self._get(bits[wire.inputs[0]]))])
            for wire in self._reads
        ]
        for memory in self._circuit.memories:
            lanes, at, word = (self._get(bits[wire]) for wire in memory.port)
            if lanes:
                words = self.memories[memory.name]
                words[at] = merged(words[at], word, lanes, memory.width // memory.lanes)
        values[self._to] = values[self._from]
        for to, word in read:
            self._set(to, word)
        return outputs

    def _levels(self, netlist: Netlist, broken: int | None) -> None:
        """Orders the lines by depth and kind, so that lines of a group are adjacent."""
        depth = dict.fromkeys(netlist.lines, 0)
        for line, gate in netlist.lines.items():
            if gate.kind in GATES:
                depth[line] = 1 + max(depth[each] for each in gate.inputs)

        def rank(line: int) -> tuple[int, str]:
            return depth[line], netlist.lines[line].kind

        order = sorted(netlist.lines, key=rank)
        self._place = np.zeros(max(order) + 1, np.intp)  # 0 for lines that drive nothing
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
