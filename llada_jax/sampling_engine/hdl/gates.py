"""Reduces a circuit to gates: inverters, AND, OR and XOR of two inputs, multiplexers, flip-flops.

Constants are folded, and equal gates are shared. Memories are not reduced.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partialmethod
from itertools import zip_longest
from typing import Any, NamedTuple

from llada_jax.sampling_engine.hdl.wires import Circuit, Wire, choose

GATES = ("not", "and", "or", "xor", "mux")
_FLIP_FLOP = "flip_flop"
_TRANSISTORS = {"not": 2, "and": 6, "or": 6, "xor": 12, "mux": 12, _FLIP_FLOP: 16}
"""Transistors in static CMOS."""
_NAND2_TRANSISTORS = 4
_DEPTH = {"not": 0, "and": 1, "or": 1, "xor": 1, "mux": 2}
"""Depth in two-input gates; an inverter is counted as part of its neighbour."""
NO, YES = 0, 1
Bits = list[int]
"""Indices of the lines of a word, lowest bit first. Lines 0 and 1 are constants."""
_SOURCES = {"input": "input", "register": _FLIP_FLOP, "read": "memory"}
"""Drivers of lines that are not driven by gates, by kind of wire."""


class _Gate(NamedTuple):
    """The driver of a line: a gate, or a source ("input", "flip_flop", "memory")."""

    kind: str
    inputs: tuple[int, ...]
    unit: str


class Netlist:
    """The gates of a circuit: the driver of each line in topological order, and each word's
    lines."""

    def __init__(self, circuit: Circuit) -> None:
        self.circuit = circuit
        self.lines: dict[int, _Gate] = {line: _Gate("const", (), "") for line in (NO, YES)}
        self.bits: dict[Wire, Bits] = {}
        self._known: dict[tuple, int] = {}
        for wire in circuit.wires:
            self._unit = wire.unit
            if wire.kind in _SOURCES:
                self.bits[wire] = [self._line(_SOURCES[wire.kind], ()) for _ in range(len(wire))]
            else:
                self.bits[wire] = self._lower(wire, [self.bits[word] for word in wire.inputs])
        self._drop_unused()

    def _drop_unused(self) -> None:
        """Removes gates that drive nothing."""
        used = {NO, YES}.union(*(self.bits[wire] for wire in self.circuit.ends))
        for line, gate in reversed(self.lines.items()):
            if gate.kind not in GATES:
                used.add(line)
            elif line in used:
                used.update(gate.inputs)
        self.lines = {line: gate for line, gate in self.lines.items() if line in used}

    def cells(self) -> dict[str, Counter[str]]:
        """Counts the gates and flip-flops of each unit."""
        counts: dict[str, Counter[str]] = {}
        for kind, _, unit in self.lines.values():
            if kind in _TRANSISTORS:
                counts.setdefault(unit, Counter())[kind] += 1
        return counts

    def depths(self) -> dict[str, int]:
        """Returns the longest path between registers, in gates, among paths that end in a unit."""
        arrival, depths = Counter[int](), Counter[str]()
        for line, (kind, inputs, unit) in self.lines.items():
            if kind in GATES:
                arrival[line] = _DEPTH[kind] + max(arrival[i] for i in inputs)
                depths[unit] = max(depths[unit], arrival[line])
        return dict(depths)

    def _line(self, kind: str, inputs: tuple[int, ...]) -> int:
        self.lines[len(self.lines)] = _Gate(kind, inputs, self._unit)
        return len(self.lines) - 1

    def _gate(self, kind: str, *inputs: int) -> int:
        key = (kind, *inputs)
        if key not in self._known:
            self._known[key] = self._line(kind, inputs)
        return self._known[key]

    # Gates, with constant folding.

    def _not(self, a: int) -> int:
        if a in (NO, YES):
            return 1 - a
        gate = self.lines[a]
        return gate.inputs[0] if gate.kind == "not" else self._gate("not", a)

    def _opposite(self, a: int, b: int) -> bool:
        return self.lines[b].kind == "not" and self.lines[b].inputs[0] == a

    def _pair(self, kind: str, absorbing: int, a: int, b: int) -> int:
        a, b = sorted((a, b))
        if absorbing in (a, b) or self._opposite(a, b):
            return absorbing
        return b if a in (1 - absorbing, b) else self._gate(kind, a, b)

    _and, _or = partialmethod(_pair, "and", NO), partialmethod(_pair, "or", YES)

    def _xor(self, a: int, b: int) -> int:
        a, b = sorted((a, b))
        if a in (NO, YES):
            return self._not(b) if a else b
        if a == b:
            return NO
        return YES if self._opposite(a, b) else self._gate("xor", a, b)

    def _mux(self, condition: int, yes: int, no: int) -> int:
        if condition in (NO, YES) or yes == no:
            return yes if condition else no
        if yes in (NO, YES):
            return self._or(condition, no) if yes else self._and(self._not(condition), no)
        if no in (NO, YES):
            return self._or(self._not(condition), yes) if no else self._and(condition, yes)
        if self._opposite(*sorted((yes, no))):
            return self._xor(condition, no)
        return self._gate("mux", condition, yes, no)

    # Words.

    def _lower(self, wire: Wire, words: list[Bits]) -> Bits:
        if wire.kind in ("not", "and", "or", "xor"):
            gate = getattr(self, f"_{wire.kind}")
            return [gate(*bits) for bits in zip(*words, strict=True)]
        if wire.kind == "mux":
            return [self._mux(words[0][0], *bits) for bits in zip(*words[1:], strict=True)]
        if wire.kind == "const":
            return [wire.data >> i & 1 for i in range(len(wire))]
        if wire.kind == "slice":
            return words[0][wire.data : wire.data + len(wire)]
        if wire.kind == "cat":
            return [bit for word in words for bit in word]
        if wire.kind == "rom":
            tables = ([word >> i & 1 for word in wire.data] for i in range(len(wire)))
            return [choose(words[0], table, self._mux) for table in tables]
        a, b = words
        inverted = [self._not(bit) for bit in b]
        if wire.kind == "equal":
            equal_bits = [self._xor(x, y) for x, y in zip(a, inverted, strict=True)]
            return [self._tree(self._and, equal_bits)]
        if wire.kind == "less":
            carry, _ = self._tree(self._join_spans, [(YES, NO), *self._spans(a, inverted)])
            return [self._not(carry)]
        if wire.kind == "mul":
            return self._product(a, b)
        return self._sum(a, b, NO) if wire.kind == "add" else self._sum(a, inverted, YES)

    def _tree(self, gate: Callable[[Any, Any], Any], ends: list) -> Any:
        while len(ends) > 1:
            pairs = zip_longest(ends[::2], ends[1::2])
            ends = [x if y is None else gate(x, y) for x, y in pairs]
        return ends[0]

    def _join_spans(self, low: tuple[int, int], high: tuple[int, int]) -> tuple[int, int]:
        """Joins two adjacent spans of an adder: (generates a carry, propagates a carry)."""
        (makes, passes), (makes_high, passes_high) = low, high
        carry = self._or(makes_high, self._and(passes_high, makes))
        return carry, self._and(passes_high, passes)

    def _spans(self, a: Bits, b: Bits) -> list[tuple[int, int]]:
        return [(self._and(x, y), self._xor(x, y)) for x, y in zip(a, b, strict=True)]

    def _sum(self, a: Bits, b: Bits, carry: int) -> Bits:
        """Adds with a parallel-prefix carry tree (Sklansky): two gates per doubling of the
        width."""
        bit_spans = self._spans(a, b)
        spans = [(carry, NO), *bit_spans]
        by = 1
        while by < len(spans):
            spans = [
                self._join_spans(spans[i // by * by - 1], span) if i // by % 2 else span
                for i, span in enumerate(spans)
            ]
            by *= 2
        return [self._xor(passes, spans[i][0]) for i, (_, passes) in enumerate(bit_spans)]

    def _product(self, a: Bits, b: Bits) -> Bits:
        """Reduces partial products in columns with full adders (three bits to two), then adds."""
        width = len(a) + len(b)
        columns: list[Bits] = [[] for _ in range(width)]
        for i, x in enumerate(a):
            for j, y in enumerate(b):
                if (term := self._and(x, y)) != NO:
                    columns[i + j].append(term)
        while max(map(len, columns)) > 2:
            reduced: list[Bits] = [[] for _ in range(width + 1)]
            for place, column in enumerate(columns):
                for i in range(0, len(column) - 2, 3):
                    x, y, z = column[i : i + 3]
                    both = self._xor(x, y)
                    reduced[place].append(self._xor(both, z))
                    reduced[place + 1].append(self._or(self._and(x, y), self._and(both, z)))
                reduced[place] += column[len(column) // 3 * 3 :]
            columns = [[bit for bit in column if bit != NO] for column in reduced[:width]]
        rows = [[column[i] if i < len(column) else NO for column in columns] for i in range(2)]
        return self._sum(rows[0], rows[1], NO)


def gate_equivalents(cells: Mapping[str, int]) -> float:
    """Returns the size of cells in two-input NAND gates with the same number of transistors."""
    return sum(_TRANSISTORS[kind] * count for kind, count in cells.items()) / _NAND2_TRANSISTORS
