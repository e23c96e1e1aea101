"""Times one layer shaped like LLaDA-8B's in PyTorch, for an interpreter that has it.

    python -m experiments.bench.torch_layer rows=32,128 dtype=bf16,int8 seconds=5

Prints one line: a JSON list of rows as in `results.json`. It imports nothing of this repository, so
that PyTorch's environment needs only PyTorch. Without PyTorch it exits with `NO_TORCH`.
"""

import dataclasses
import importlib
import importlib.util
import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

# Any, and None where it is missing: this file is imported, and type-checked, without it as well.
torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None

BAD_ARGUMENTS, NO_TORCH = 2, 3
"""Exit codes."""

DTYPES = ("bf16", "int8")


@dataclass(frozen=True, kw_only=True)
class TorchLayerConfig:
    """What to time. Every field is a `key=value` of the command line."""

    rows: tuple[int, ...] = (32, 128)
    dtype: tuple[str, ...] = DTYPES
    seconds: float = 10.0
    """How long all of it is repeated; the best time of each counts."""
    threads: int = 0
    """0: as many as PyTorch chooses."""
    width: int = 4096
    ffn_width: int = 12288
    n_heads: int = 32
    head_dim: int = 128
    cached: int = 256
    """Positions of the cache, which every row sees beside the other rows."""

    def __post_init__(self) -> None:
        for dtype in self.dtype:
            _require(dtype in DTYPES, f"dtype is {dtype}; allowed: {', '.join(DTYPES)}")
        _require(min(self.rows) > 0, f"rows is {min(self.rows)}; allowed: 1 or more")
        _require(self.threads >= 0, f"threads is {self.threads}; allowed: 0 or more")


class TorchLayer(NamedTuple):
    matrices: Any
    """A `ModuleDict` of linear maps."""
    attention_norm: Any
    ffn_norm: Any


class Cache(NamedTuple):
    """Keys and values, [1, heads, positions, head_dim]."""

    keys: Any
    values: Any


def read(arguments: Sequence[str]) -> TorchLayerConfig:
    """Reads the configuration of `key=value` arguments; commas separate the parts of a tuple."""
    defaults = dataclasses.asdict(TorchLayerConfig())
    settings = {}
    for argument in arguments:
        key, _, text = argument.partition("=")
        _require(key in defaults, f"{key} is no setting; allowed: {', '.join(defaults)}")
        default = defaults[key]
        settings[key] = (
            tuple(type(default[0])(part) for part in text.split(","))
            if isinstance(default, tuple)
            else type(default)(text)
        )
    return TorchLayerConfig(**settings)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def time_layers(config: TorchLayerConfig) -> list[dict[str, Any]]:
    """Yields a row for each dtype and number of rows."""
    torch.manual_seed(0)
    if config.threads:
        torch.set_num_threads(config.threads)
    with torch.inference_mode():
        layers = {dtype: layer_of(config, dtype) for dtype in config.dtype}
        steps = {
            f"layer/torch/{dtype}/{rows}": step_of(config, layer, rows)
            for dtype, layer in layers.items()
            for rows in config.rows
        }
        times = best_times(steps, config.seconds)
    return [
        {"name": name, "value": seconds, "unit": "s", "kind": "measured"}
        for name, seconds in times.items()
    ]


def best_times(candidates: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
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


def layer_of(config: TorchLayerConfig, dtype: str) -> TorchLayer:
    """Makes random weights; int8 multiplies them by activations that it rounds as they come."""
    heads = config.n_heads * config.head_dim
    shapes = {
        **dict.fromkeys(("query", "key", "value"), (config.width, heads)),
        "output": (heads, config.width),
        **dict.fromkeys(("gate", "up"), (config.width, config.ffn_width)),
        "down": (config.ffn_width, config.width),
    }
    matrices = torch.nn.ModuleDict(
        {name: torch.nn.Linear(*shape, bias=False) for name, shape in shapes.items()}
    )
    if dtype == "int8":
        with warnings.catch_warnings(action="ignore"):  # deprecated for torchao, which is a package
            quantize = torch.ao.quantization.quantize_dynamic
            matrices = quantize(matrices, {torch.nn.Linear}, torch.qint8)
    else:
        matrices = matrices.to(torch.bfloat16)
    norms = torch.ones(2, config.width, dtype=_activations(dtype))
    return TorchLayer(matrices, *norms)


def _activations(dtype: str) -> Any:
    """Returns the dtype of activations: PyTorch's dynamic int8 takes float32, and gives it back."""
    return torch.float32 if dtype == "int8" else torch.bfloat16


def step_of(config: TorchLayerConfig, layer: TorchLayer, rows: int) -> Callable[[], Any]:
    """Makes one call of the layer, on random rows behind a random cache."""
    dtype = layer.attention_norm.dtype
    hidden = torch.randn(1, rows, config.width, dtype=dtype)
    cache = Cache(*torch.randn(2, 1, config.n_heads, config.cached, config.head_dim, dtype=dtype))
    half = config.head_dim // 2
    frequencies = 500_000.0 ** -(torch.arange(half) / half)
    angles = (config.cached + torch.arange(rows))[:, None] * frequencies
    return partial(forward, layer, hidden, cache, angles.cos(), angles.sin())


def forward(layer: TorchLayer, hidden: Any, cache: Cache, cos: Any, sin: Any) -> Any:
    """Returns hidden states [1, rows, width] after attention and SwiGLU."""
    matrices = layer.matrices
    x = rms_norm(hidden, layer.attention_norm)

    def heads(name: str) -> Any:
        return matrices[name](x).unflatten(-1, (cache.keys.shape[1], -1)).transpose(1, 2)

    query, key = (rotate(heads(name), cos, sin) for name in ("query", "key"))
    keys = torch.cat([cache.keys, key], dim=2)
    values = torch.cat([cache.values, heads("value")], dim=2)
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


def main(arguments: Sequence[str]) -> int:
    if torch is None:
        print(f"no PyTorch in {sys.executable}: its layer is not timed", file=sys.stderr)
        return NO_TORCH
    try:
        config = read(arguments)
    except ValueError as error:
        print(error, file=sys.stderr)
        return BAD_ARGUMENTS
    print(json.dumps(time_layers(config)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
