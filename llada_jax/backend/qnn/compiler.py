"""`.tflite` files compiled for the Hexagon NPU (HTP) of Snapdragon phones.

The compiler is LiteRT's Qualcomm plugin on the QNN libraries of the `onnxruntime-qnn` wheel. It
runs offline, and does not say how long a phone takes.
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

from llada_jax.backend.qnn.context import Context, NpuGraph, left_outside, read_context, require_qnn
from llada_jax.config import Soc, require_choice


class Traffic(NamedTuple):
    """Bytes between NPU and DRAM in one run of a graph, by the compiler's own account."""

    spill: int  # activations that find no room in the NPU's memory
    fill: int  # and come back
    write: int  # all that is written, spills included
    read: int  # all that is read: fills, weights, inputs


@dataclass(frozen=True)
class Compilation:
    """A context, and what the compiler said about it."""

    context: Context
    traffic: Mapping[str, Traffic]
    """By signature."""
    seconds: float
    qnn_version: str

    @property
    def compiled(self) -> memoryview:
        """The whole `.tflite` file, of which the context is a slice."""
        return memoryview(self.context.binary.obj)


def compile_context(tflite: Path, soc: str, *, weight_sharing: bool = False) -> Compilation:
    """Compiles every signature of a .tflite file into a graph of one QNN context.
    The file is float32 or from `quantize`. `weight_sharing`: one copy of the weights for all
    signatures, as is right for a phone.

    Raises ImportError without the extra; ValueError for an unknown SoC, and where ops are left that
    the NPU does not take; RuntimeError with the end of its log where the compiler fails.
    """
    require_qnn()
    require_choice("soc", soc, Soc)
    if not tflite.is_file():
        raise FileNotFoundError(f"no file {tflite}")
    with tempfile.TemporaryDirectory(dir=tflite.parent) as folder:
        out = Path(folder, "compiled.tflite")  # each signature is a single op of the NPU there
        start = time.perf_counter()
        log = _run_compiler(tflite, out, soc, weight_sharing)
        seconds = time.perf_counter() - start
        _check_offloaded(out, soc, log)
        context = read_context(out)
    version = re.search(r"SDK version: v([\d.]+)", log.stderr)
    traffic = _traffic(log.stdout, context.graphs)
    return Compilation(context, traffic, seconds, version[1] if version else "unknown")


def _run_compiler(
    tflite: Path, out: Path, soc: str, weight_sharing: bool
) -> subprocess.CompletedProcess[str]:
    litert, qnn = _folder("ai_edge_litert"), _folder("onnxruntime_qnn")
    with tempfile.TemporaryDirectory() as stand_in:
        # The plugin is linked against a library for low-power audio that the wheel lacks and HTP
        # never calls. Under its name, one that is loaded anyway contents the loader.
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
    """Returns where a package lies, without importing it."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def _complaints(log: subprocess.CompletedProcess[str]) -> list[str]:
    """Returns what the log reports as errors, each once, or else its last lines."""
    lines = [line.strip() for line in (log.stdout + log.stderr).splitlines()]
    errors = [
        re.split(r"<E>|\[ ERROR \]", line)[-1].strip()
        for line in lines
        if re.search("ERROR|Fail", line)
    ]
    return list(dict.fromkeys(errors)) or lines[-10:]


def _check_offloaded(compiled: Path, soc: str, log: subprocess.CompletedProcess[str]) -> None:
    if outside := [*left_outside(compiled)]:
        complaints = [f"  {line}" for line in _complaints(log)[:6]]
        first = f"{soc} does not take the whole of each signature as one partition:"
        raise ValueError("\n".join([first, *outside, "the compiler says:", *complaints]))


_GRAPH = re.compile(r"QnnGraph_create started for graph (\S+)")
_BYTES = re.compile(r"\b(spill|fill|write_total|read_total)_bytes=(\d+)")
_COUNTED = {*Traffic._fields}


def _traffic(log: str, graphs: Sequence[NpuGraph]) -> dict[str, Traffic]:
    """Returns traffic by signature: the log names a graph and sums it up before the next one."""
    found: dict[str, dict[str, int]] = {}
    name = ""
    for line in log.splitlines():
        if begun := _GRAPH.search(line):
            name = begun[1]
        elif count := _BYTES.search(line):
            found.setdefault(name, {})[count[1].removesuffix("_total")] = int(count[2])
    unknown = [graph.name for graph in graphs if set(found.get(graph.name, ())) != _COUNTED]
    if unknown:
        raise RuntimeError(f"the compiler's log has no DDR summary of {', '.join(unknown)}")
    return {graph.signature: Traffic(**found[graph.name]) for graph in graphs}
