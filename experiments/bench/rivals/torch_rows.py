"""Forwards of LLaDA's architecture in PyTorch with fused attention, for an interpreter with
PyTorch: whole canvases, and a block after a cache."""

import json
import sys
from types import SimpleNamespace

import torch  # pyright: ignore[reportMissingImports]

from experiments.bench.rivals.answers import LayerClock, answer_lines
from experiments.bench.rivals.torch_model import TorchLLaDA


def main(settings: str) -> None:
    """Builds a model, and answers requests for a number of positions."""
    options = SimpleNamespace(**json.loads(settings))
    shape, block = SimpleNamespace(**options.model), options.block
    torch.manual_seed(0)
    with torch.inference_mode():
        model = TorchLLaDA(shape, options.longest)
        cache = model.empty_cache(1, options.longest)

        def first(length: int) -> None:
            positions = torch.arange(length)
            model.hidden(positions[None] % 8, positions)

        def cached(length: int) -> None:
            positions = torch.arange(length - block, length)
            model.hidden(positions[None] % 8, positions, cache[..., :length, :])

        about = f"PyTorch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
        answer_lines(about, LayerClock(), {"first": first, "cached": cached})


if __name__ == "__main__":
    main(*sys.argv[1:])
