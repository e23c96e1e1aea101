"""LLaDA in PyTorch, for contenders: without this project's packages."""

from collections.abc import Callable, Sequence
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

Weight = Callable[[Sequence[str], int, int], Any]
"""Makes a matrix [outputs, inputs], which joins matrices that are called as in
`llada_jax.model.params.named_specs`."""


def random_weight(names: Sequence[str], outputs: int, inputs: int) -> Any:
    """Returns random numbers, in PyTorch's default dtype and device."""
    return torch.empty(outputs, inputs).normal_(std=0.02)


def linear(weight: Any) -> Any:
    """Returns the product with a matrix as a module."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    made.weight = nn.Parameter(weight)
    return made


class TorchLLaDA(nn.Module):
    """LLaDA, whose rows see their whole canvas, and tables of angles for `length` positions.

    Queries, keys and values are one product, and so are gate and up.
    """

    def __init__(
        self,
        shape: Any,
        length: int,
        weight: Weight = random_weight,
        product: Callable[[Any], Any] = linear,
    ):
        """`product` makes a module of a matrix [outputs, inputs]."""
        super().__init__()
        self._shape = shape
        embedding = weight(["embedding"], shape.vocab_size, shape.width)
        self.embedding = nn.Embedding.from_pretrained(embedding, freeze=False)
        self.layers = nn.ModuleList(
            _Layer(shape, i, weight, product) for i in range(shape.n_layers)
        )
        self.norm = nn.RMSNorm(shape.width, shape.norm_eps)
        if shape.tied_embeddings:
            self.head = linear(embedding)
            self.head.weight = self.embedding.weight
        else:
            self.head = product(weight(["head"], shape.vocab_size, shape.width))
        self.make_angles(length)

    def make_angles(self, length: int) -> None:
        """Makes the tables of angles."""
        steps = torch.arange(0, 1, 2 / self._shape.head_dim, dtype=torch.float32)
        angles = torch.arange(length)[:, None] / self._shape.rope_theta**steps
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def empty_cache(self, batch: int, length: int) -> Any:
        """Returns keys and values of all layers [N, 2, B, H, L, Dh]."""
        shape = self._shape
        return torch.zeros(shape.n_layers, 2, batch, shape.n_heads, length, shape.head_dim)

    def hidden(self, tokens: Any, positions: Any, cache: Any = None) -> Any:
        """Returns the outputs [B, R, D] of the layers for tokens [B, R] at positions [R]. With a
        cache, whose rows are replaced, rows see all of it; without one, they see each other."""
        x = self.embedding(tokens)
        cos, sin = self.cos[positions], self.sin[positions]
        for index, layer in enumerate(self.layers):
            x = layer(x, cos, sin, positions, None if cache is None else cache[index])
        return x

    def logits(self, hidden: Any) -> Any:
        """Returns the logits [B, R, V] of the layers' outputs."""
        return self.head(self.norm(hidden))


class _Layer(nn.Module):
    def __init__(self, shape: Any, index: int, weight: Weight, product: Callable[[Any], Any]):
        super().__init__()
        self._head_dim, mixed = shape.head_dim, shape.n_heads * shape.head_dim
        width, ffn_width = shape.width, shape.ffn_width
        self.attention_norm = nn.RMSNorm(width, shape.norm_eps)
        self.ffn_norm = nn.RMSNorm(width, shape.norm_eps)

        def joined(part: str, names: Sequence[str], outputs: int, inputs: int) -> Any:
            full_names = [f"layers.{index}.{part}.{name}" for name in names]
            return product(weight(full_names, outputs, inputs))

        self.projections = joined("attention", ("query", "key", "value"), 3 * mixed, width)
        self.output = joined("attention", ("output",), width, mixed)
        self.gate_and_up = joined("ffn", ("gate", "up"), 2 * ffn_width, width)
        self.down = joined("ffn", ("down",), width, ffn_width)

    def forward(self, x: Any, cos: Any, sin: Any, positions: Any, cache: Any) -> Any:
        projected = self.projections(self.attention_norm(x))
        parts = projected.unflatten(-1, (3, -1, self._head_dim)).transpose(1, 3)
        query, key, value = parts.unbind(2)
        query, key = _rotated(query, cos, sin), _rotated(key, cos, sin)
        if cache is not None:
            key = cache[0].index_copy_(2, positions, key)
            value = cache[1].index_copy_(2, positions, value)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        gate, up = self.gate_and_up(self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


def _rotated(x: Any, cos: Any, sin: Any) -> Any:
    """Applies RoPE by half rotation, in float32."""
    left, right = x.chunk(2, dim=-1)
    turned = torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)
    return turned.to(x.dtype)
