"""Times one layer shaped like LLaDA-8B's in PyTorch, for an interpreter that has it.

    python -m experiments.bench.torch_layer 32,128

Prints one line: a JSON object of seconds by `<dtype>/<rows>`. It imports nothing of this
repository, so that its environment needs only PyTorch; without that the exit code is `NO_TORCH`.
"""

import importlib
import importlib.util
import json
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

# Any, and None where it is missing: this file is imported, and type-checked, without it as well.
torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None

NO_TORCH = 3
SECONDS = 10.0
"""How long all of it is repeated; the best time of each counts."""


class LayerShape(NamedTuple):
    width: int = 4096
    ffn_width: int = 12288
    n_heads: int = 32
    head_dim: int = 128
    cached: int = 256
    """Positions of the cache, which every row sees beside the other rows."""


LLADA_8B = LayerShape()


class TorchLayer(NamedTuple):
    matrices: Any
    """A `ModuleDict` of linear maps."""
    attention_norm: Any
    ffn_norm: Any


def time_layers(
    rows: Sequence[int], shape: LayerShape = LLADA_8B, seconds: float = SECONDS
) -> dict[str, float]:
    """Returns the seconds of a forward by `<dtype>/<rows>`."""
    torch.manual_seed(0)
    with torch.inference_mode():
        layers = {dtype: layer_of(shape, dtype) for dtype in ("bf16", "int8")}
        steps = {
            f"{dtype}/{n}": step_of(shape, layer, n)
            for dtype, layer in layers.items()
            for n in rows
        }
        return best_times(steps, seconds)


def best_times(candidates: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Times each: the best of many rounds in which all take turns, after two warm ones."""
    for call in [*candidates.values()] * 2:
        call()
    best = dict.fromkeys(candidates, float("inf"))
    deadline = time.perf_counter() + seconds
    while float("inf") in best.values() or time.perf_counter() < deadline:
        for name, call in candidates.items():
            began = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - began)
    return best


def layer_of(shape: LayerShape, dtype: str) -> TorchLayer:
    """Makes random weights; int8 multiplies them by activations that it rounds as they come."""
    heads = shape.n_heads * shape.head_dim
    shapes = {
        **dict.fromkeys(("query", "key", "value"), (shape.width, heads)),
        "output": (heads, shape.width),
        **dict.fromkeys(("gate", "up"), (shape.width, shape.ffn_width)),
        "down": (shape.ffn_width, shape.width),
    }
    matrices = torch.nn.ModuleDict(
        {name: torch.nn.Linear(*each, bias=False) for name, each in shapes.items()}
    )
    if dtype == "int8":  # which takes activations in float32, and gives them back
        with warnings.catch_warnings(action="ignore"):  # deprecated for torchao, which is a package
            quantize = torch.ao.quantization.quantize_dynamic
            matrices = quantize(matrices, {torch.nn.Linear}, torch.qint8)
        return TorchLayer(matrices, *torch.ones(2, shape.width))
    norms = torch.ones(2, shape.width, dtype=torch.bfloat16)
    return TorchLayer(matrices.to(torch.bfloat16), *norms)


def step_of(shape: LayerShape, layer: TorchLayer, rows: int) -> Callable[[], Any]:
    """Makes one call of the layer, on random rows behind random keys and values."""
    dtype = layer.attention_norm.dtype
    hidden = torch.randn(1, rows, shape.width, dtype=dtype)
    cached = torch.randn(2, 1, shape.n_heads, shape.cached, shape.head_dim, dtype=dtype)
    half = shape.head_dim // 2
    frequencies = 500_000.0 ** -(torch.arange(half) / half)
    angles = (shape.cached + torch.arange(rows))[:, None] * frequencies
    return partial(forward, layer, hidden, *cached, angles.cos(), angles.sin())


def forward(layer: TorchLayer, hidden: Any, keys: Any, values: Any, cos: Any, sin: Any) -> Any:
    """Returns hidden states [1, rows, width] after attention and SwiGLU; keys and values of the
    cache are [1, heads, positions, head_dim]."""
    matrices = layer.matrices
    x = rms_norm(hidden, layer.attention_norm)

    def heads(name: str) -> Any:
        return matrices[name](x).unflatten(-1, (keys.shape[1], -1)).transpose(1, 2)

    query, key = (rotate(heads(name), cos, sin) for name in ("query", "key"))
    keys, values = torch.cat([keys, key], dim=2), torch.cat([values, heads("value")], dim=2)
    mixed = torch.nn.functional.scaled_dot_product_attention(query, keys, values)
    hidden = hidden + matrices["output"](mixed.transpose(1, 2).flatten(-2))

    x = rms_norm(hidden, layer.ffn_norm)
    gated = torch.nn.functional.silu(matrices["gate"](x)) * matrices["up"](x)
    return hidden + matrices["down"](gated)


def rms_norm(x: Any, weight: Any) -> Any:
    """Normalises in float32, cast back before the weight multiplies."""
    wide = x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt()).to(x.dtype) * weight


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    """Turns by RoPE's half rotation, in float32."""
    left, right = x.float().chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1).to(x.dtype)


def main(rows: str) -> int:
    """Times the layers of so many rows each; commas separate the numbers."""
    if torch is None:
        print(f"no PyTorch in {sys.executable}: its layer is not timed", file=sys.stderr)
        return NO_TORCH
    print(json.dumps(time_layers([int(n) for n in rows.split(",")])))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
