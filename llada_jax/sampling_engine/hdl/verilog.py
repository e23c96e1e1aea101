"""Writes a circuit as Verilog, with a test bench for a program on the engine.

The bench compares memories with the functional machine, and cycles with the timing model.
"""

from collections.abc import Iterator

import numpy as np

from llada_jax.config import require
from llada_jax.sampling_engine.cycles import Hbm, time_program
from llada_jax.sampling_engine.formats import StoredLogits, rounded
from llada_jax.sampling_engine.hdl.engine import EngineSizes, engine
from llada_jax.sampling_engine.hdl.wires import Circuit, Memory, Wire
from llada_jax.sampling_engine.instructions import encode
from llada_jax.sampling_engine.machine import Machine
from llada_jax.sampling_engine.sampler_program import SamplerProgram

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
_LOAD = 30
"""Cycles of a load in the bench, for any number of rows."""

_BENCH = """\
// Runs program.hex, and compares memories and cycles with what they should be.
module bench;
reg clk = 0, valid = 0;
reg [{row}:0] row = 0;
wire request, halted, retires;
wire [31:0] address, word;
wire [{rows}:0] rows;
integer cycle = 0, due = 0, from = 0, left = 0, errors = 0, i;
reg [{row}:0] hbm [0:{last}];
{wanted}
engine dut(.clk(clk), .hbm_valid(valid), .hbm_row(row), .request(request), .address(address),
  .rows(rows), .halted(halted), .retires(retires), .word(word));
always #1 clk = ~clk;
initial begin
$readmemh("hbm.hex", hbm);
{loads}
end
always @(negedge clk) if (halted || cycle > {cycles} + 100) begin
{checks}
  if (cycle != {cycles}) errors = errors + 1;
  if (errors == 0) $display("PASS: %0d cycles", cycle);
  else $display("FAIL: %0d errors, %0d cycles; expected {cycles}", errors, cycle);
  $finish;
end else begin
  cycle = cycle + 1;
  valid = left > 0 && cycle >= due;
  if (valid) begin row = hbm[from]; from = from + 1; left = left - 1; end
  if (request) begin from = address; left = rows; due = cycle + {load} - rows + 1; end
end
endmodule
"""
_WANTED = "reg [{0}:0] wanted_{1} [0:{2}];"
_LOADS = '$readmemh("{0}.hex", dut.{0}); $readmemh("wanted_{0}.hex", wanted_{0});'
_CHECKS = """\
  for (i = 0; i <= {1}; i = i + 1) if (dut.{0}[i] !== wanted_{0}[i]) begin
    errors = errors + 1;
    $display("{0}[%0d] is %h; expected %h", i, dut.{0}[i], wanted_{0}[i]);
  end"""


def verilog(circuit: Circuit) -> str:
    """Writes a circuit as one module, with a comment at the beginning of each unit."""
    names = {wire: f"w{i}" for i, wire in enumerate(circuit.wires)}
    names |= {wire: port for port, wire in circuit.inputs.items()}
    ports = [f"input [{len(wire) - 1}:0] {port}" for port, wire in circuit.inputs.items()]
    ports += [f"output [{len(wire) - 1}:0] {port}" for port, wire in circuit.outputs.items()]
    lines = [f"module engine(input clk, {', '.join(ports)});"]
    for memory in circuit.memories:
        lines.append(f"reg [{memory.width - 1}:0] {memory.name} [0:{memory.words - 1}];")
    unit, edge = "", []
    for wire in circuit.wires:
        if wire.unit != unit:
            lines.append(f"// {(unit := wire.unit)}")
        inputs = [names[word] for word in wire.inputs]
        if wire.kind in _STATE:
            first = wire.data if wire.kind == "register" else 0
            lines.append(f"reg [{len(wire) - 1}:0] {names[wire]} = {len(wire)}'d{first};")
            edge.append(f"{names[wire]} <= {_STATE[wire.kind].format(*inputs, data=wire.data)};")
        elif wire.kind != "input":
            lines += _wire_lines(names[wire], wire, inputs)
    for memory in circuit.memories:
        edge += _memory_writes(memory, [names[wire] for wire in memory.port])
    lines += ["always @(posedge clk) begin", *edge, "end"]
    lines += [f"assign {port} = {names[wire]};" for port, wire in circuit.outputs.items()]
    return "\n".join([*lines, "endmodule", ""])


def _wire_lines(name: str, wire: Wire, inputs: list[str]) -> Iterator[str]:
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


def _memory_writes(memory: Memory, port: list[str]) -> Iterator[str]:
    lanes, address, word = port
    size = memory.width // memory.lanes
    for i in range(memory.lanes):
        bits = f"[{i * size} +: {size}]"
        yield f"if ({lanes}[{i}]) {memory.name}[{address}]{bits} <= {word}{bits};"


def verilog_files(program: SamplerProgram, machine: Machine) -> dict[str, str]:
    """Returns files by name: `engine.v`, `bench.v`, and memories before and after the program runs
    on a machine from `host.prepare_machine`.

    Raises ValueError for vectors that are not BF16, and instructions that are not in hardware.
    """
    cycles = round(time_program(program, Hbm(_LOAD, 0), "pipelined").cycles.total)
    circuit = engine(sizes_of(program))
    rows = hbm_words(machine.hbm)
    before = images(program, machine)
    machine.run(program.instructions)
    after = images(program, machine)
    sizes = {memory.name: (memory.width - 1, memory.words - 1) for memory in circuit.memories}
    bench = _BENCH.format(
        row=len(circuit.inputs["hbm_row"]) - 1,
        rows=len(circuit.outputs["rows"]) - 1,
        last=len(rows) - 1,
        wanted="\n".join(_WANTED.format(bits, name, last) for name, (bits, last) in sizes.items()),
        loads="\n".join(map(_LOADS.format, sizes)),
        checks="\n".join(_CHECKS.format(name, last) for name, (_, last) in sizes.items()),
        cycles=cycles,
        load=_LOAD,
    )
    words = {"hbm": rows, **before, **{f"wanted_{name}": image for name, image in after.items()}}
    texts = {
        f"{name}.hex": "\n".join(f"{word:x}" for word in image) for name, image in words.items()
    }
    return {"engine.v": verilog(circuit), "bench.v": bench, **texts}


def sizes_of(program: SamplerProgram) -> EngineSizes:
    """Returns the smallest engine that runs a program, with sizes that are powers of two."""
    words = {**program.memory_map.words, "program": len(program.instructions) + 1}
    sizes = {name: 1 << (count - 1).bit_length() for name, count in words.items()}
    return EngineSizes(program.engine.vlen, program.sampling.rows, sizes)


def images(program: SamplerProgram, machine: Machine) -> dict[str, list[int]]:
    """Returns the words of the engine's memories by name, from a machine's state.

    Raises ValueError for vectors that are not BF16.
    """
    require(program.engine.vector_format == "bfloat16", "vectors in float32; in hardware: bfloat16")
    contents = {
        "vector": _rows(machine.vector),
        "fp": machine.fp.view(np.uint32).tolist(),
        "int": (machine.int & 0xFFFFFFFF).tolist(),
        "program": encode(program.instructions),
    }
    sizes = sizes_of(program).words
    return {name: (words + [0] * sizes[name])[: sizes[name]] for name, words in contents.items()}


def hbm_words(stored: StoredLogits) -> list[int]:
    """Returns the rows of HBM in BF16, as the engine receives them."""
    return _rows(rounded(stored.read(0, len(stored.elements)), "bfloat16"))


def _rows(numbers: np.ndarray) -> list[int]:
    """Returns a word for each row of BF16 numbers, lane 0 in its lowest bits."""
    bits = (np.ascontiguousarray(numbers, np.float32).view(np.uint32) >> 16).astype("<u2")
    return [int.from_bytes(row.tobytes(), "little") for row in bits]
