"""A hardware description in Python: wires, registers and memories.

A unit is a function from wires to wires. Simulation, gates and Verilog are derived from the same
wires.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

from llada_jax.config import require

_UNITS = [""]


@contextmanager
def unit(name: str) -> Iterator[None]:
    """Assigns the wires that are created inside to a unit."""
    _UNITS.append(name)
    yield
    _UNITS.pop()


def _operation(kind: str, width: int | None = None) -> "Callable[[Wire, Wire | int], Wire]":
    """Returns an operator on words of equal width; the result has this width unless given."""

    def operate(self: "Wire", other: "Wire | int") -> "Wire":
        if isinstance(other, int):
            other = const(other, self.width)
        require(self.width == other.width, f"{kind} of {self.width} and {other.width} bits")
        return Wire(kind, [self, other], width or self.width)

    return operate


class Wire:
    """A word of `width` bits, lowest first: the result of an operation (`kind`) on its inputs.

    Numbers are unsigned, and sums wrap around at the width of their terms.
    """

    __slots__ = ("data", "inputs", "kind", "unit", "width")

    def __init__(self, kind: str, inputs: Sequence["Wire"], width: int, data: Any = None) -> None:
        self.kind, self.inputs, self.width, self.data = kind, tuple(inputs), width, data
        self.unit = _UNITS[-1]

    def __len__(self) -> int:
        return self.width

    def __invert__(self) -> "Wire":
        return Wire("not", [self], self.width)

    __and__ = _operation("and")
    __or__ = _operation("or")
    __xor__ = _operation("xor")
    __add__ = _operation("add")
    __sub__ = _operation("sub")
    __lt__ = _operation("less", 1)
    equals = _operation("equal", 1)

    def __mul__(self, other: "Wire") -> "Wire":
        return Wire("mul", [self, other], self.width + other.width)

    def __gt__(self, other: "Wire") -> "Wire":
        return Wire.__lt__(other, self)

    def any(self) -> "Wire":
        return ~self.equals(0)

    def all(self) -> "Wire":
        return self.equals((1 << self.width) - 1)

    def __getitem__(self, places: int | slice) -> "Wire":
        if isinstance(places, int):
            places = slice(places, places + 1 or None)
        start, stop, _ = places.indices(self.width)
        require(start < stop, f"bits {start} to {stop} of a wire of {self.width}")
        if (start, stop) == (0, self.width):
            return self
        return Wire("slice", [self], stop - start, start)

    def wide(self, width: int) -> "Wire":
        """Extends the word with zeros."""
        return self if width == self.width else cat(self, const(0, width - self.width))

    def signed(self, width: int) -> "Wire":
        """Extends the word with copies of its highest bit."""
        return cat(self, *[self[-1]] * (width - self.width))


def const(value: int, width: int) -> Wire:
    return Wire("const", [], width, value & (1 << width) - 1)


def cat(*words: Wire) -> Wire:
    """Joins words, the lowest first."""
    return words[0] if len(words) == 1 else Wire("cat", words, sum(map(len, words)))


def mux(condition: Wire, yes: Wire | int, no: Wire | int) -> Wire:
    width = next(len(word) for word in (yes, no) if isinstance(word, Wire))
    yes, no = (const(word, width) if isinstance(word, int) else word for word in (yes, no))
    require(
        (len(condition), len(yes)) == (1, len(no)),
        f"mux of {len(condition)}, {len(yes)} and {len(no)} bits",
    )
    return Wire("mux", [condition, yes, no], len(yes))


def rom(address: Wire, words: Sequence[int], width: int) -> Wire:
    """Reads a table of constants, with one word per address."""
    require(len(words) == 1 << len(address), f"{len(words)} words at {len(address)} bits")
    return Wire("rom", [address], width, tuple(words))


def choose(address: Any, words: Sequence[Any], mux: Callable[..., Any] = mux) -> Any:
    """Returns one of 2**len(address) words, with a tree of multiplexers."""
    for bit in range(len(address)):
        pairs = zip(words[::2], words[1::2], strict=True)
        words = [mux(address[bit], odd, even) for even, odd in pairs]
    return words[0]


def either(wires: Sequence[Wire]) -> Wire:
    return reduce(Wire.__or__, wires)


def source(name: str, width: int) -> Wire:
    """Returns an input of the circuit."""
    return Wire("input", [], width, name)


class Register(Wire):
    """A word that takes the value of its input at each clock edge; `data` is the initial value."""

    __slots__ = ()

    def __init__(self, width: int, initial: int = 0) -> None:
        super().__init__("register", [], width, initial)

    def set(self, following: Wire) -> None:
        require(len(following) == self.width, f"{len(following)} bits for {self.width}")
        self.inputs = (following,)


def delay(wire: Wire, initial: int = 0, cycles: int = 1) -> Wire:
    for _ in range(cycles):
        register = Register(len(wire), initial)
        register.set(wire)
        wire = register
    return wire


class Memory:
    """A memory of at least `words` words, with any number of reading ports and one writing port.

    Read data is available after the next edge, without the write of that edge. A word has lanes,
    which are written separately.
    """

    def __init__(self, name: str, words: int, width: int, lanes: int = 1) -> None:
        self.places = max((words - 1).bit_length(), 1)
        self.name, self.words, self.width, self.lanes = name, 1 << self.places, width, lanes
        self.port: tuple[Wire, ...] = (const(0, lanes), const(0, 1), const(0, width))

    def read(self, *address: Wire) -> Wire:
        """Returns a reading port for the address; without one, `inputs` must be set later."""
        return Wire("read", [*map(self.at, address)], self.width, self)

    def write(self, lanes: Wire, address: Wire, word: Wire) -> None:
        require((len(lanes), len(word)) == (self.lanes, self.width), f"ports of {self.name}")
        self.port = (lanes, self.at(address), word)

    def at(self, address: Wire) -> Wire:
        return address[: self.places] if len(address) > self.places else address.wide(self.places)


STATE = ("register", "read")


class Circuit:
    """All wires that outputs depend on: state and inputs first, then others in topological order.

    `memories` are the memories with a reading port. `ends` are the results of a cycle: outputs, and
    inputs of registers and memories.
    """

    def __init__(self, outputs: Mapping[str, Wire]) -> None:
        self.outputs = dict(outputs)
        self.wires: list[Wire] = []
        self.memories: list[Memory] = []
        seen: set[Wire] = set()
        open_ends = list(outputs.values())
        while open_ends:
            for wire in _before([open_ends.pop()], seen):
                self.wires.append(wire)
                if wire.kind in STATE:
                    open_ends += wire.inputs
                if wire.kind == "read" and wire.data not in self.memories:
                    self.memories.append(wire.data)
                    open_ends += wire.data.port
        ends = [wire for memory in self.memories for wire in memory.port]
        ends += [word for wire in self.of_kind(*STATE) for word in wire.inputs]
        self.ends = [*ends, *self.outputs.values()]
        self.inputs = {wire.data: wire for wire in self.of_kind("input")}
        self.wires.sort(key=lambda wire: wire.kind not in (*STATE, "input", "const"))

    def of_kind(self, *kinds: str) -> list[Wire]:
        return [wire for wire in self.wires if wire.kind in kinds]


def _before(ends: list[Wire], seen: set[Wire]) -> Iterator[Wire]:
    """Yields the wires from which `ends` are computed within one cycle, in topological order."""
    stack = [(wire, False) for wire in ends]
    while stack:
        wire, ready = stack.pop()
        if ready:
            yield wire
        elif wire not in seen:
            seen.add(wire)
            stack.append((wire, True))
            if wire.kind not in STATE:
                stack += ((word, False) for word in wire.inputs)
