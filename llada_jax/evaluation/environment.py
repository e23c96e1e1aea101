"""Versions, machine and commit, stored with results so that they can be reproduced."""

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
"""Packages that results depend on; the versions of the installed ones are recorded."""


@cache
def environment() -> dict[str, Any]:
    """Describes the process as plain JSON. The commit is None outside a checkout of this package.

    Cached, because a commit made while the process runs is not the code that it runs.
    """
    # The package may be installed in a virtual environment inside some other project's checkout.
    is_own_checkout = _git("ls-files", "--error-unmatch", "__init__.py") is not None
    status = _git("status", "--porcelain") if is_own_checkout else None
    versions = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} CPU cores, {platform.machine()}",
        "processor": _processor(),
        "packages": versions,
        "git_sha": _git("rev-parse", "HEAD") if is_own_checkout else None,
        "git_dirty": None if status is None else status != "",
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _git(*arguments: str) -> str | None:
    """Returns git's output in the package's folder, or None if git fails or is not installed."""
    command = ["git", "-C", str(PACKAGE), *arguments]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return finished.stdout.strip() if finished.returncode == 0 else None
