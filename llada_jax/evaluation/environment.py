"""Versions, machine and commit: what a run is told apart by when it goes on somewhere else."""

import os
import platform
import subprocess
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
PACKAGES = (
    *("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tokenizers"),
    *("litert-converter", "ai-edge-litert", "flatbuffers"),
    *("onnxruntime-qnn", "onnx", "ai-edge-quantizer"),
)
"""What numbers depend on; named where it is installed."""


@cache
def environment() -> dict[str, Any]:
    """Describes the process as plain JSON, as it finds itself first: what is committed while it
    goes on is not what it runs. The commit is None outside a checkout of this package."""
    # A virtual environment may lie in somebody else's checkout.
    is_own = _git("ls-files", "--error-unmatch", "__init__.py") is not None
    status = _git("status", "--porcelain") if is_own else None
    versions = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} CPU cores, {platform.machine()}",
        "processor": _processor(),
        "packages": versions,
        "git_sha": _git("rev-parse", "HEAD") if is_own else None,
        "git_dirty": None if status is None else status != "",
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _git(*arguments: str) -> str | None:
    """Returns what git prints in the package's folder; None where it fails or is not there."""
    command = ["git", "-C", str(PACKAGE), *arguments]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return finished.stdout.strip() if finished.returncode == 0 else None
