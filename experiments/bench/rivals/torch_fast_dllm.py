"""Fast-dLLM in PyTorch in bfloat16 as a contender, for an interpreter without this project.

    python -m experiments.bench.rivals.torch_fast_dllm SETTINGS

With a checkout of Fast-dLLM, its model and its decoding are timed. Without one, this module
implements the published algorithm: the dual cache, confidences in float64 from the logits of every
row, and the most confident tokens are committed.
"""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

from experiments.bench.rivals.answers import LayerClock, answer_lines

WIDE = torch.bfloat16


class TorchLLaDA:
    """LLaDA with random weights on PyTorch's default device, and a KV cache of whole canvases."""

    def __init__(self, shape: Any, length: int, clock: LayerClock):
        heads = shape.n_heads * shape.head_dim
        shapes = {
            **dict.fromkeys(("query", "key", "value"), (heads, shape.width)),
            "output": (shape.width, heads),
            **dict.fromkeys(("gate", "up"), (shape.ffn_width, shape.width)),
            "down": (shape.width, shape.ffn_width),
        }
        self._layers = [
            {name: _random(*size) for name, size in shapes.items()} for _ in range(shape.n_layers)
        ]
        self._embedding = _random(shape.vocab_size, shape.width)
        self._head = _random(shape.vocab_size, shape.width)
        self._norm = torch.ones(shape.width, dtype=WIDE)
        self._shape, self._clock = shape, clock
        self.make_cache(1, length)

    def make_cache(self, batch: int, length: int) -> None:
        """Makes an empty cache, and angles for its positions."""
        shape = self._shape
        size = (shape.n_layers, 2, batch, shape.n_heads, length, shape.head_dim)
        self._caches = torch.zeros(size, dtype=WIDE)
        frequencies = shape.rope_theta ** -(torch.arange(shape.head_dim // 2) * 2 / shape.head_dim)
        angles = torch.arange(length)[:, None] * frequencies
        self._angles = angles.cos(), angles.sin()

    def forward(self, canvas: Any, first: int, stop: int) -> Any:
        """Returns logits [rows, V] of a canvas [L], or [B, rows, V] of several [B, L]; each row
        sees its whole canvas."""
        self._clock.start()
        hidden = self._embedding[torch.atleast_2d(canvas)[:, first:stop]]
        caches = self._caches[..., : canvas.shape[-1], :]
        for layer, cache in zip(self._layers, caches, strict=True):
            hidden = self._layer(layer, cache, hidden, first, stop)
        self._clock.stop()
        logits = functional.linear(_normed(hidden, self._norm), self._head)
        return logits if canvas.ndim > 1 else logits[0]

    def _layer(self, layer: Any, cache: Any, hidden: Any, first: int, stop: int) -> Any:
        x = _normed(hidden, self._norm)
        cos, sin = (table[first:stop] for table in self._angles)

        def heads(name: str) -> Any:
            split = (self._shape.n_heads, self._shape.head_dim)
            return functional.linear(x, layer[name]).unflatten(-1, split).transpose(1, 2)

        keys, values = cache
        keys[:, :, first:stop] = _rotated(heads("key"), cos, sin)
        values[:, :, first:stop] = heads("value")
        query = _rotated(heads("query"), cos, sin)
        mixed = functional.scaled_dot_product_attention(query, keys, values)
        hidden = hidden + functional.linear(mixed.transpose(1, 2).flatten(-2), layer["output"])
        x = _normed(hidden, self._norm)
        gate, up = (functional.linear(x, layer[name]) for name in ("gate", "up"))
        return hidden + functional.linear(functional.silu(gate) * up, layer["down"])

    def decode(self, options: Any, steps: int) -> None:
        """Decodes block by block: a forward of the whole canvas, then forwards of the block."""
        length = options.prompt_length + options.gen_length
        canvas = torch.full((length,), self._shape.mask_id)
        canvas[: options.prompt_length] = torch.arange(options.prompt_length)
        steps = steps * options.block_length // options.gen_length
        for first in range(options.prompt_length, length, options.block_length):
            masked = torch.zeros(length, dtype=torch.bool)
            masked[first : first + options.block_length] = True
            for step in range(steps):
                start, stop = (first, first + options.block_length) if step else (0, length)
                logits = self.forward(canvas, start, stop)
                rows = slice(start, stop)
                commit(canvas[rows], masked[rows], logits, options.block_length // steps)


def _random(*shape: int) -> Any:
    return torch.empty(shape, dtype=WIDE).normal_(std=0.02)


def _normed(x: Any, weight: Any) -> Any:
    """RMS norm in float32, cast back before the product with the weight."""
    wide = x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt()).to(x.dtype) * weight


def _rotated(x: Any, cos: Any, sin: Any) -> Any:
    """Applies RoPE by half rotation, in float32."""
    left, right = x.float().chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1).to(x.dtype)


def commit(canvas: Any, masked: Any, logits: Any, count: int) -> None:
    """Commits the `count` most confident masked rows, in place."""
    token = logits.argmax(-1)
    confidence = logits.to(torch.float64).softmax(-1).gather(-1, token[:, None])[:, 0]
    chosen = torch.where(masked, confidence, -torch.inf).topk(count).indices
    canvas[chosen], masked[chosen] = token[chosen], False


class _Checkout:
    """The model and the decoding of a Fast-dLLM checkout."""

    def __init__(self, folder: Path, shape: Any, clock: LayerClock):
        sys.path.insert(0, str(folder / "llada"))
        settings = importlib.import_module("model.configuration_llada")
        modeling = importlib.import_module("model.modeling_llada")
        self._generate = importlib.import_module("generate").generate_with_dual_cache
        config = settings.LLaDAConfig(
            d_model=shape.width, n_layers=shape.n_layers, n_heads=shape.n_heads,
            n_kv_heads=shape.n_heads, mlp_hidden_size=shape.ffn_width, vocab_size=shape.vocab_size,
            embedding_size=shape.vocab_size, rope=True, rope_theta=shape.rope_theta,
            rope_full_precision=True, alibi=False, activation_type="silu", block_type="llama",
            layer_norm_type="rms", rms_norm_eps=1e-5, include_bias=False, weight_tying=False,
            include_qkv_bias=False, bias_for_layer_norm=False, max_sequence_length=4096,
            flash_attention=False, attention_dropout=0.0, residual_dropout=0.0,
            embedding_dropout=0.0, init_device=str(torch.get_default_device()),
            mask_token_id=shape.mask_id,
        )  # fmt: skip
        torch.set_default_dtype(WIDE)
        self._model = modeling.LLaDAModelLM(config, init_params=True).eval()
        parts = self._model.model.transformer
        parts.wte.register_forward_pre_hook(clock.start)
        parts.ln_f.register_forward_pre_hook(clock.stop)
        self._mask_id, self._cache = shape.mask_id, None

    def forward(self, canvas: Any, first: int, stop: int) -> Any:
        """Returns logits [rows, V], called as in its loop."""
        if first == 0:
            out = self._model(canvas[None], use_cache=True)
            self._cache = out.past_key_values
            return out.logits[0]
        replaced = torch.zeros((1, len(canvas)), dtype=torch.bool)
        replaced[:, first:stop] = True
        cached = {"past_key_values": self._cache, "use_cache": True}
        return self._model(canvas[None, first:stop], replace_position=replaced, **cached).logits[0]

    def decode(self, options: Any, steps: int) -> None:
        """Decodes with its function."""
        prompt = torch.arange(options.prompt_length)[None]
        self._generate(
            self._model, prompt, steps=steps, gen_length=options.gen_length,
            block_length=options.block_length, mask_id=self._mask_id,
        )  # fmt: skip


def _units(device: str) -> str:
    if device != "cpu":
        return torch.cuda.get_device_name()
    amx = getattr(torch.cpu, "_is_amx_tile_supported", bool)()
    return torch.backends.cpu.get_cpu_capability() + (", AMX" if amx else "")


def main(settings: str) -> None:
    """Builds a model, and answers requests."""
    options, clock = SimpleNamespace(**json.loads(settings)), LayerClock()
    shape = SimpleNamespace(**options.model)
    torch.set_default_device(options.device)
    torch.manual_seed(0)
    with torch.inference_mode():
        if options.checkout:
            model = _Checkout(Path(options.checkout), shape, clock)
        else:
            model = TorchLLaDA(shape, options.cached, clock)
        canvas = torch.full((options.cached,), shape.mask_id)
        model.forward(canvas, 0, options.cached)  # fills the cache

        def forward(rows: int) -> None:
            logits = model.forward(canvas, options.cached - rows, options.cached)
            commit(canvas[-rows:].clone(), torch.ones(rows, dtype=torch.bool), logits, 1)

        source = (
            "its own checkout" if options.checkout else "the published algorithm, implemented here"
        )
        about = f"PyTorch {torch.__version__}, {_units(options.device)}; {source}"

        def decode(steps: int) -> None:
            model.decode(options, steps)
            if options.device != "cpu":
                torch.cuda.synchronize()

        answer_lines(about, clock, {"forward": forward, "decode": decode})


if __name__ == "__main__":
    main(*sys.argv[1:])
