"""One of several processes that share a mesh: joins the others, decodes, writes its trace.

python tests/mesh/joined.py PORT COUNT RANK FOLDER  < case.json
"""

import json
import sys
from pathlib import Path

import jax

from tests.mesh.decoded import runs

if __name__ == "__main__":
    port, count, rank = map(int, sys.argv[1:4])
    jax.distributed.initialize(
        f"localhost:{port}", count, rank, initialization_timeout=60, heartbeat_timeout_seconds=10
    )
    case = json.load(sys.stdin)
    for place, found in enumerate(runs(case.get(str(rank), case))):
        found.trace.save(Path(sys.argv[4], f"{rank}-{place}.npz"))
