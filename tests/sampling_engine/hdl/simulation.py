"""Runs a circuit's wires, cycle by cycle: words are whole numbers in one Python function."""

from collections.abc import Iterator

from llada_jax.sampling_engine.hdl.wires import STATE, Circuit, Wire

_EXPRESSIONS = {
    "not": "{0} ^ {mask}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "xor": "{0} ^ {1}",
    "add": "{0} + {1} & {mask}",
    "sub": "{0} - {1} & {mask}",
    "mul": "{0} * {1}",
    "less": "{0} < {1}",
    "equal": "{0} == {1}",
    "mux": "{1} if {0} else {2}",
    "slice": "{0} >> {data} & {mask}",
    "rom": "{data}[{0}]",
    "const": "{data}",
    "input": "inputs['{data}']",
}


class Simulation:
    """A circuit that runs. `memories` are its memories' words by name, to be read and written.

    All bits of the wire `broken` are inverted.
    """

    def __init__(self, circuit: Circuit, broken: Wire | None = None) -> None:
        self.memories = {memory.name: [0] * memory.words for memory in circuit.memories}
        registers = circuit.of_kind(*STATE)
        self._state = [wire.data if wire.kind == "register" else 0 for wire in registers]
        scope = {"merged": merged}
        exec("\n".join(_source(circuit, broken)), scope)
        self._step = scope["step"]

    def step(self, **inputs: int) -> dict[str, int]:
        """Returns the outputs of a cycle, and passes the edge of the clock at its end."""
        return self._step(self._state, self.memories, inputs)


def merged(old: int, new: int, lanes: int, size: int) -> int:
    """Returns a word after some of its lanes, of `size` bits each, are written."""
    mask, lane = 0, (1 << size) - 1
    while lanes:
        mask |= lane * (lanes & 1)
        lanes, lane = lanes >> 1, lane << size
    return old & ~mask | new & mask


def _source(circuit: Circuit, broken: Wire | None) -> Iterator[str]:
    """Yields the lines of `step(state, memories, inputs)`."""
    names = {wire: f"w{i}" for i, wire in enumerate(circuit.wires)}
    state = circuit.of_kind(*STATE)
    yield "def step(state, memories, inputs):"
    yield f" [{', '.join(names[wire] for wire in state)}] = state"
    for wire in circuit.wires:
        if wire.kind not in STATE:
            yield f" {names[wire]} = {_expression(wire, [names[each] for each in wire.inputs])}"
        if wire is broken:
            yield f" {names[wire]} ^= {(1 << len(wire)) - 1}"
    following = (
        f"memories[{wire.data.name!r}][{names[wire.inputs[0]]}]"
        if wire.kind == "read"
        else names[wire.inputs[0]]
        for wire in state
    )
    yield f" state[:] = [{', '.join(following)}]"
    for memory in circuit.memories:
        lanes, address, word = (names[each] for each in memory.port)
        yield f" if {lanes}:"
        yield f"  words = memories[{memory.name!r}]"
        size = memory.width // memory.lanes
        yield f"  words[{address}] = merged(words[{address}], {word}, {lanes}, {size})"
    outputs = ", ".join(f"{name!r}: {names[wire]}" for name, wire in circuit.outputs.items())
    yield f" return {{{outputs}}}"


def _expression(wire: Wire, inputs: list[str]) -> str:
    if wire.kind == "cat":
        places, terms = 0, []
        for name, each in zip(inputs, wire.inputs, strict=True):
            terms.append(f"{name} << {places}")
            places += len(each)
        return " | ".join(terms)
    return _EXPRESSIONS[wire.kind].format(*inputs, mask=(1 << len(wire)) - 1, data=wire.data)
