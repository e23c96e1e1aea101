"""Opens untrusted `.tflite` files for the first time in a separate process.

LiteRT trusts a file's content, and a damaged file crashes the process that opens it; verifiers only
check the flatbuffer's frame. So a child process opens each file, packs its weights and runs its
signatures, and only then gives the packed file its name. The name depends on the `.tflite` file's
hash: an existing packed file proves that the `.tflite` file was opened and run.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from llada_jax.backend.litert.runtime import LiteRT
from llada_jax.io import atomic

_SECONDS, _BYTES_PER_SECOND = 120, 1_000_000
"""Time limit: intact files are packed a hundred times as fast as this."""


def pack_in_child(packed: Mapping[Path, Path]) -> None:
    """Opens and runs each file, and packs its weights into the path it maps to.

    Raises ValueError that names a file that cannot be opened or run.
    """
    pairs = [str(path) for pair in packed.items() for path in pair]
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-m", __name__, *pairs],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS + sum(path.stat().st_size for path in packed) / _BYTES_PER_SECOND,
        )
    except subprocess.TimeoutExpired as error:
        end, printed = "it goes on without end", (error.stdout or b"").decode()
    else:
        # Some damaged files make LiteRT call `exit(0)`.
        if child.returncode == 0 and all(path.exists() for path in packed.values()):
            return
        end, printed = f"its process ended with status {child.returncode}", child.stdout
    for folder in {path.parent for path in packed.values()}:
        atomic.remove_temporaries(folder)
    at = ["a file", *printed.splitlines()][-1]
    raise ValueError(f"LiteRT cannot run {at}: {end}; allowed: a file that is whole")


def _pack(path: Path, packed: Path) -> None:
    with atomic.new_file(packed) as part:
        for executable in LiteRT().open(path, part).values():
            executable.run({name: executable.allocate(name) for name in executable.inputs})


if __name__ == "__main__":
    for path, packed in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        print(path, flush=True)
        try:
            _pack(Path(path), Path(packed))
        except Exception as error:
            print(f"{path} ({str(error).splitlines()[0]})", flush=True)
            sys.exit(1)
