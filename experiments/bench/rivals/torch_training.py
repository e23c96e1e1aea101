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


class _Layer(nn.Module):
    def __init__(self, shape: Any):
        super().__init__()
        self.head_dim, self.eps = shape.head_dim, shape.norm_eps
        width, mixed = shape.width, shape.n_heads * shape.head_dim
        self.norms = nn.ParameterList(torch.ones(width) for _ in range(2))
        self.qkv, self.out = _matrix(3 * mixed, width), _matrix(width, mixed)
        self.gate_up = _matrix(2 * shape.ffn_width, width)
        self.down = _matrix(width, shape.ffn_width)

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        normed = F.rms_norm(x, x.shape[-1:], self.norms[0], self.eps)
        parts = F.linear(normed, self.qkv).unflatten(-1, (3, -1, self.head_dim)).transpose(1, 3)
        query, key, value = parts.unbind(2)
        mixed = F.scaled_dot_product_attention(_turned(query, cos, sin), _turned(key, cos, sin),
                                               value)  # fmt: skip
        x = x + F.linear(mixed.transpose(1, 2).flatten(2), self.out)
        normed = F.rms_norm(x, x.shape[-1:], self.norms[1], self.eps)
        gate, up = F.linear(normed, self.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down)


class _Model(nn.Module):
    def __init__(self, shape: Any, length: int):
        super().__init__()
        self.eps = shape.norm_eps
        self.embedding = _matrix(shape.vocab_size, shape.width)
        self.head = self.embedding if shape.tied_embeddings else _matrix(*self.embedding.shape)
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.n_layers))
        self.norm = nn.Parameter(torch.ones(shape.width))
        steps = torch.arange(0, shape.head_dim, 2) / shape.head_dim
        angles = torch.arange(length)[:, None] / shape.rope_theta**steps
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Any) -> Any:
        x = F.embedding(tokens, self.embedding)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return F.linear(F.rms_norm(x, x.shape[-1:], self.norm, self.eps), self.head)


def _matrix(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) * 0.02)


def _turned(x: Any, cos: Any, sin: Any) -> Any:
    left, right = x.chunk(2, dim=-1)
    turned = torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)
    return turned.to(x.dtype)


def main(settings: str) -> None:
    """Builds a model, and answers requests for a number of steps."""
    options = SimpleNamespace(**json.loads(settings))
    shape = SimpleNamespace(**options.model)
    torch.manual_seed(0)
    model = _Model(shape, options.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), fused=True)
    tokens = torch.randint(0, shape.vocab_size - 1, (options.batch_size, options.length))
    half = options.dtype == "bfloat16"

    def loss_of(tokens: Any) -> Any:
        probability = torch.rand(len(tokens), 1) * 0.999 + 0.001
        masked = torch.rand(tokens.shape) < probability
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits = model(torch.where(masked, shape.vocab_size - 1, tokens))
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
