"""Training steps of LLaDA's architecture in PyTorch: fused attention, fused AdamW, autocast for
bfloat16, eager or compiled. For an interpreter with PyTorch.

A step is a step of the objective `pretrain`: mask with a probability by canvas, predict, weight
the cross-entropy of masks by its inverse, clip the gradient and update.
"""

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional as F  # pyright: ignore[reportMissingImports]

from experiments.bench.rivals.answers import LayerClock, answer_lines
from experiments.bench.rivals.torch_model import TorchLLaDA


def main(settings: str) -> None:
    """Builds a model, and answers requests for a number of steps."""
    options = SimpleNamespace(**json.loads(settings))
    shape = SimpleNamespace(**options.model)
    torch.manual_seed(0)
    model, positions = TorchLLaDA(shape, options.length), torch.arange(options.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), fused=True)
    tokens = torch.randint(0, shape.vocab_size - 1, (options.batch_size, options.length))
    half = options.dtype == "bfloat16"

    def loss_of(tokens: Any) -> Any:
        probability = torch.rand(len(tokens), 1) * 0.999 + 0.001
        masked = torch.rand(tokens.shape) < probability
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            hidden = model.hidden(torch.where(masked, shape.vocab_size - 1, tokens), positions)
            logits = model.logits(hidden)
        each = F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten(), reduction="none")
        return (torch.where(masked, each.view_as(tokens), 0) / probability).mean()

    loss_of = torch.compile(loss_of) if options.compiled else loss_of

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss_of(tokens).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    train(1)  # compiles
    about = f"PyTorch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
    answer_lines(about, LayerClock(), {"train": train})


if __name__ == "__main__":
    main(*sys.argv[1:])
