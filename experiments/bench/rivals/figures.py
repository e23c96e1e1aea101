"""What the suite `rivals` says besides: counts, the machine, and who is left out."""

import sys
from pathlib import Path

from llada_jax.config import ModelConfig
from llada_jax.model.params import named_specs


def multiplied(model: ModelConfig) -> int:
    """Counts the weights that every row is multiplied with, the head's included."""
    specs = named_specs(model)
    return sum(spec.size for name, spec in specs.items() if len(spec.shape) > 1) - (
        0 if model.tied_embeddings else specs["embedding"].size
    )


def instruction_sets() -> str:
    """Names the units of this CPU that multiply narrow numbers, as Linux does."""
    known = ("avx2", "vnni", "bf16", "amx", "i8mm", "asimddp")
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    lines = [line for line in text.splitlines() if line.startswith(("flags", "Features"))]
    words = sorted(set(lines[0].split())) if lines else []
    return " ".join(word for word in words if any(each in word for each in known)) or "unknown"


def left_out(name: str, why: str) -> None:
    """Says in a line who is not timed."""
    print(f"left out: {name}: {why}", file=sys.stderr)
