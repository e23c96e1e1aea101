"""A circuit as Verilog."""

from collections.abc import Iterator

from llada_jax.sampling_engine.hdl.wires import Circuit, Memory, Wire

_EXPRESSIONS = {
    "const": "{width}'d{data}",
    "not": "~{0}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "xor": "{0} ^ {1}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "less": "{0} < {1}",
    "equal": "{0} == {1}",
    "mux": "{0} ? {1} : {2}",
    "slice": "{0}[{data} +: {width}]",
}
_STATE = {"register": "{0}", "read": "{data.name}[{0}]"}


def verilog(circuit: Circuit, name: str = "engine") -> str:
    """Writes a circuit as one module, with a comment where another unit begins."""
    names = {wire: f"w{i}" for i, wire in enumerate(circuit.wires)}
    names |= {wire: port for port, wire in circuit.inputs.items()}
    ports = [f"input [{len(wire) - 1}:0] {port}" for port, wire in circuit.inputs.items()]
    ports += [f"output [{len(wire) - 1}:0] {port}" for port, wire in circuit.outputs.items()]
    lines = [f"module {name}(input clk, {', '.join(ports)});"]
    for memory in circuit.memories:
        lines.append(f"reg [{memory.width - 1}:0] {memory.name} [0:{memory.words - 1}];")
    unit, edge = "", []
    for wire in circuit.wires:
        if wire.unit != unit:
            lines.append(f"// {(unit := wire.unit)}")
        inputs = [names[each] for each in wire.inputs]
        if wire.kind in _STATE:
            first = wire.data if wire.kind == "register" else 0
            lines.append(f"reg [{len(wire) - 1}:0] {names[wire]} = {len(wire)}'d{first};")
            edge.append(f"{names[wire]} <= {_STATE[wire.kind].format(*inputs, data=wire.data)};")
        elif wire.kind != "input":
            lines += _assigned(names[wire], wire, inputs)
    for memory in circuit.memories:
        edge += _written(memory, [names[wire] for wire in memory.port])
    lines += ["always @(posedge clk) begin", *edge, "end"]
    lines += [f"assign {port} = {names[wire]};" for port, wire in circuit.outputs.items()]
    return "\n".join([*lines, "endmodule", ""])


def _assigned(name: str, wire: Wire, inputs: list[str]) -> Iterator[str]:
    width = len(wire)
    if wire.kind == "rom":
        table = sum(word << i * width for i, word in enumerate(wire.data))
        bits = len(wire.data) * width
        yield f"localparam [{bits - 1}:0] t{name} = {bits}'h{table:x};"
        text = f"t{name}[{inputs[0]} * {width} +: {width}]"
    elif wire.kind == "cat":
        text = f"{{{', '.join(reversed(inputs))}}}"
    else:
        text = _EXPRESSIONS[wire.kind].format(*inputs, width=width, data=wire.data)
    yield f"wire [{width - 1}:0] {name} = {text};"


def _written(memory: Memory, port: list[str]) -> Iterator[str]:
    lanes, address, word = port
    size = memory.width // memory.lanes
    for i in range(memory.lanes):
        bits = f"[{i * size} +: {size}]"
        yield f"if ({lanes}[{i}]) {memory.name}[{address}]{bits} <= {word}{bits};"
