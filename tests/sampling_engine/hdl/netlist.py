"""A simulator of gate netlists, as Yosys writes them in JSON: many streams at a time.

A wire holds an array of bits, one for each stream that runs beside the others.
"""

from collections.abc import Mapping
from graphlib import TopologicalSorter
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llada_jax.sampling_engine.hdl.synthesis import FLIP_FLOP

GATES = {
    "$_NOT_": lambda a: ~a,
    "$_AND_": lambda a, b: a & b,
    "$_XOR_": lambda a, b: a ^ b,
    "$_MUX_": lambda a, b, s: np.where(s, b, a),
}
Wire = int | str
"""A number, or the constants "0", "1" and "x"."""


class NetlistCell(NamedTuple):
    """One gate or flip-flop."""

    kind: str
    inputs: tuple[Wire, ...]
    output: int


class Netlist(NamedTuple):
    """Gates in an order in which each comes after those it reads, and flip-flops."""

    cells: tuple[NetlistCell, ...]
    ports: Mapping[str, tuple[Wire, ...]]
    """Wires of each port, lowest bit first."""
    initial: Mapping[int, bool]
    """What the outputs of flip-flops start with; 0 where nothing is said."""

    @classmethod
    def of(cls, module: Mapping[str, Any]) -> "Netlist":
        """Reads the netlist of a module of Yosys' JSON."""
        cells = {}
        for cell in module["cells"].values():
            kind, wires = cell["type"], cell["connections"]
            named, out = ("D", "Q") if kind == FLIP_FLOP else ("ABS", "Y")
            inputs = tuple(wires[name][0] for name in named if name in wires)
            cells[wires[out][0]] = NetlistCell(kind, inputs, wires[out][0])
        before = {
            output: [] if cell.kind == FLIP_FLOP else [w for w in cell.inputs if w in cells]
            for output, cell in cells.items()
        }
        order = TopologicalSorter(before).static_order()
        ports = {name: tuple(port["bits"]) for name, port in module["ports"].items()}
        initial = {  # an attribute of the named wires, highest bit first
            bit: True
            for wire in module["netnames"].values()
            for bit, value in zip(
                wire["bits"], reversed(wire["attributes"].get("init", "")), strict=False
            )
            if value == "1"
        }
        return cls(tuple(cells[output] for output in order), ports, initial)


class NetlistSimulator:
    """A netlist that runs, `streams` of them side by side. Inputs that nobody sets are 0."""

    def __init__(self, netlist: Netlist, streams: int) -> None:
        self._ports = netlist.ports
        self._gates = [cell for cell in netlist.cells if cell.kind != FLIP_FLOP]
        self._flip_flops = [cell for cell in netlist.cells if cell.kind == FLIP_FLOP]
        names: chain[Wire] = chain("0x", *netlist.ports.values())
        self._wires: dict[Wire, np.ndarray] = {name: np.zeros(streams, bool) for name in names}
        self._wires["1"] = np.ones(streams, bool)
        for cell in self._flip_flops:
            self._wires[cell.output] = np.full(streams, netlist.initial.get(cell.output, False))

    def set(self, port: str, values: NDArray[np.integer]) -> None:
        """Puts a number on an input port, for each stream."""
        for place, wire in enumerate(self._ports[port]):
            self._wires[wire] = (values >> place & 1).astype(bool)

    def get(self, port: str) -> NDArray[np.int64]:
        """Returns the number on a port, for each stream."""
        self._settle()
        bits = [self._wires[wire].astype(np.int64) for wire in self._ports[port]]
        return np.sum([bit << place for place, bit in enumerate(bits)], axis=0)

    def tick(self) -> None:
        """Passes one edge of the clock."""
        self._settle()
        taken = [self._wires[cell.inputs[0]] for cell in self._flip_flops]
        for cell, value in zip(self._flip_flops, taken, strict=True):
            self._wires[cell.output] = value

    def _settle(self) -> None:
        for kind, inputs, output in self._gates:
            self._wires[output] = GATES[kind](*(self._wires[wire] for wire in inputs))
