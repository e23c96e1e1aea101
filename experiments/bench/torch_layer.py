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
from typing import Any

# Any, and None where it is missing: this file is imported, and type-checked, without it as well.
torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None

NO_TORCH = 3
SECONDS = 10.0
"""How long all of it is repeated; the best time of each counts."""


WIDTH, FFN_WIDTH, N_HEADS, HEAD_DIM = 4096, 12288, 32, 128
CACHED = 256
"""Positions of the cache, which every row sees beside the other rows."""


def time_layers(rows: Sequence[int], seconds: float = SECONDS) -> dict[str, float]:
    """Returns the seconds of a forward by `<dtype>/<rows>`."""
    torch.manual_seed(0)
    with torch.inference_mode():
        layers = {"bf16": layer_of(torch.bfloat16), "int8": layer_of(torch.qint8)}
        steps = {f"{dtype}/{n}": step_of(layer, n) for dtype, layer in layers.items() for n in rows}
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


def layer_of(dtype: Any) -> dict[str, Any]:
    """Makes random weights; int8 rounds activations as they come, in float32."""
    heads = N_HEADS * HEAD_DIM
    shapes = {
        **dict.fromkeys(("query", "key", "value"), (WIDTH, heads)),
        "output": (heads, WIDTH),
        **dict.fromkeys(("gate", "up"), (WIDTH, FFN_WIDTH)),
        "down": (FFN_WIDTH, WIDTH),
    }
    matrices = torch.nn.ModuleDict(
        {name: torch.nn.Linear(*shape, bias=False) for name, shape in shapes.items()}
    )
    norm = torch.ones(WIDTH)
    if dtype == torch.qint8:
        with warnings.catch_warnings(action="ignore"):  # deprecated for torchao, which is a package
            matrices = torch.ao.quantization.quantize_dynamic(matrices, {torch.nn.Linear}, dtype)
    else:
        matrices, norm = matrices.to(dtype), norm.to(dtype)
    return {**matrices, "attention_norm": norm, "ffn_norm": norm}


def step_of(layer: Mapping[str, Any], rows: int) -> Callable[[], Any]:
    """Makes one call of the layer, on random rows behind random keys and values."""
    dtype = layer["ffn_norm"].dtype
    hidden = torch.randn(1, rows, WIDTH, dtype=dtype)
    cached = torch.randn(2, 1, N_HEADS, CACHED, HEAD_DIM, dtype=dtype)
    half = HEAD_DIM // 2
    frequencies = 500_000.0 ** -(torch.arange(half) / half)
    angles = (CACHED + torch.arange(rows))[:, None] * frequencies
    return partial(forward, layer, hidden, *cached, angles.cos(), angles.sin())


def forward(
    layer: Mapping[str, Any], hidden: Any, keys: Any, values: Any, cos: Any, sin: Any
) -> Any:
    """Returns hidden states [1, rows, width]; the cache is [1, heads, positions, head_dim]."""
    x = rms_norm(hidden, layer["attention_norm"])

    def heads(name: str) -> Any:
        return layer[name](x).unflatten(-1, (N_HEADS, HEAD_DIM)).transpose(1, 2)

    query, key = (rotate(heads(name), cos, sin) for name in ("query", "key"))
    keys, values = torch.cat([keys, key], dim=2), torch.cat([values, heads("value")], dim=2)
    mixed = torch.nn.functional.scaled_dot_product_attention(query, keys, values)
    hidden = hidden + layer["output"](mixed.transpose(1, 2).flatten(-2))
    x = rms_norm(hidden, layer["ffn_norm"])
    return hidden + layer["down"](torch.nn.functional.silu(layer["gate"](x)) * layer["up"](x))


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
