"""Compiles `.tflite` files for the Hexagon NPU (HTP) of Snapdragon phones.

The compiler is LiteRT's Qualcomm plugin with the QNN libraries from the `onnxruntime-qnn` wheel. It
runs offline, and does not estimate how long a phone takes.
"""

import importlib.util
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from llada_jax.backend.qnn.context import (
    Context,
    NpuGraph,
    operators_outside_npu,
    read_context,
    require_qnn,
)
from llada_jax.config import Soc, require_choice


class Traffic(NamedTuple):
    """Bytes between NPU and DRAM in one run of a graph, as reported by the compiler."""

    spill: int  # activations that do not fit the NPU's memory, written
    fill: int  # and read again
    write: int  # all writes, including spills
    read: int  # all reads: fills, weights, inputs


@dataclass(frozen=True)
class Compilation:
    """A context, and the compiler's report about it."""

    context: Context
    traffic: Mapping[str, Traffic]
    """By signature."""
    seconds: float
    qnn_version: str

    @property
    def compiled(self) -> memoryview:
        """The whole `.tflite` file, which contains the context."""
        return memoryview(self.context.binary.obj)


def compile_context(tflite: Path, soc: str, *, weight_sharing: bool = False) -> Compilation:
    """Compiles every signature of a .tflite file into a graph of one QNN context.

    Args:
      tflite: A float32 file, or one from `quantize`.
      soc: Name of the chip.
      weight_sharing: Store one copy of the weights for all signatures, as is best for a phone.

    Raises ImportError without the extra; ValueError for an unknown SoC, and for operations that the
    NPU does not support; RuntimeError with the end of its log if the compiler fails.
    """
    require_qnn()
    require_choice("soc", soc, Soc)
    if not tflite.is_file():
        raise FileNotFoundError(f"no file {tflite}")
    with tempfile.TemporaryDirectory(dir=tflite.parent) as folder:
        out = Path(folder, "compiled.tflite")  # each signature is one NPU operation in it
        start = time.perf_counter()
        log = _run_compiler(tflite, out, soc, weight_sharing)
        seconds = time.perf_counter() - start
        if outside := [*operators_outside_npu(out)]:
            complaints = [f"  {line}" for line in _complaints(log)[:6]]
            first = f"{soc} does not take the whole of each signature as one partition:"
            raise ValueError("\n".join([first, *outside, "the compiler says:", *complaints]))
        context = read_context(out)
    version = re.search(r"SDK version: v([\d.]+)", log.stderr)
    traffic = _traffic(log.stdout, context.graphs)
    return Compilation(context, traffic, seconds, version[1] if version else "unknown")


def _run_compiler(
    tflite: Path, out: Path, soc: str, weight_sharing: bool
) -> subprocess.CompletedProcess[str]:
    litert, qnn = _folder("ai_edge_litert"), _folder("onnxruntime_qnn")
    with tempfile.TemporaryDirectory() as stand_in:
        # The plugin is linked against a library for low-power audio, which the wheel lacks and HTP
        # never calls. A link to another library under that name satisfies the loader.
        Path(stand_in, "libQnnLpai.so").symlink_to(qnn / "libQnnSystem.so")
        folders = [str(qnn), stand_in, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        command = [
            str(litert / "tools" / "apply_plugin_main"),
            "--cmd=apply",
            f"--model={tflite}",
            f"--o={out}",
            "--soc_manufacturer=Qualcomm",
            f"--soc_model={soc}",
            f"--libs={litert / 'vendors' / 'qualcomm' / 'compiler'}",
            "--err=--",
            f"--qualcomm_enable_weight_sharing={str(weight_sharing).lower()}",
        ]
        environment = os.environ | {"LD_LIBRARY_PATH": ":".join(folders)}
        log = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace"
        )
    if log.returncode:
        raise RuntimeError(
            f"compiling {tflite} for {soc} failed with status {log.returncode}:\n"
            + "\n".join(_complaints(log)[-10:])
        )
    return log


def _folder(package: str) -> Path:
    """Returns a package's folder without importing it."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def _complaints(log: subprocess.CompletedProcess[str]) -> list[str]:
    """Returns the errors in the log without duplicates, or its last lines if there are none."""
    lines = [line.strip() for line in (log.stdout + log.stderr).splitlines()]
    errors = [
        re.split(r"<E>|\[ ERROR \]", line)[-1].strip()
        for line in lines
        if re.search("ERROR|Fail", line)
    ]
    return list(dict.fromkeys(errors)) or lines[-10:]


_GRAPH = re.compile(r"QnnGraph_create started for graph (\S+)")
_BYTES = re.compile(r"\b(spill|fill|write_total|read_total)_bytes=(\d+)")
_COUNTED = {*Traffic._fields}


def _traffic(log: str, graphs: Sequence[NpuGraph]) -> dict[str, Traffic]:
    """Returns the traffic by signature; in the log, a graph's summary follows its name."""
    totals: dict[str, dict[str, int]] = {}
    name = ""
    for line in log.splitlines():
        if graph := _GRAPH.search(line):
            name = graph[1]
        elif count := _BYTES.search(line):
            totals.setdefault(name, {})[count[1].removesuffix("_total")] = int(count[2])
    unknown = [graph.name for graph in graphs if set(totals.get(graph.name, ())) != _COUNTED]
    if unknown:
        raise RuntimeError(f"the compiler's log has no DDR summary of {', '.join(unknown)}")
    return {graph.signature: Traffic(**totals[graph.name]) for graph in graphs}
