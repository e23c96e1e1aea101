"""PyTorch as a contender, for an interpreter without this project.

    python -m experiments.bench.rivals.torch_forward SETTINGS

`kind` is a way to multiply (`_prepared`). Decoding is Fast-dLLM's algorithm as published: the dual
cache, confidences in float64 from the logits of every row, and the most confident tokens are
committed. With a checkout of Fast-dLLM, its model and its decoding are timed instead.
"""

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]

from experiments.bench.random_matrix import normal_matrix
from experiments.bench.rivals.answers import LayerClock, answer_lines
from experiments.bench.rivals.torch_model import TorchLLaDA, linear


class _ZenProduct(nn.Module):
    """AMD's product of int8 weights, with a scale for each output and for each row. It packs the
    weights at the first call; products with weights that version 2.13 packed before were wrong."""

    def __init__(self, weight: Any):
        super().__init__()
        self.register_buffer("scale", weight.abs().amax(1) / 127)
        numbers = (weight / self.scale[:, None]).round()
        self.register_buffer("numbers", numbers.to(torch.int8))

    def forward(self, x: Any) -> Any:
        return torch.ops.zentorch.zentorch_dynamic_qlinear(x, self.numbers, self.scale)


def _dynamic(weight: Any) -> Any:
    """Returns what `torch.ao.quantization.quantize_dynamic` makes of a linear module, with a scale
    for each output."""
    from torch.ao.nn.quantized import dynamic  # pyright: ignore[reportMissingImports]
    from torch.ao.quantization import per_channel_dynamic_qconfig  # pyright: ignore

    made = linear(weight)
    made.qconfig = per_channel_dynamic_qconfig
    return dynamic.Linear.from_float(made)


def _prepared(kind: str) -> tuple[Any, Callable[[Any], Any]]:
    """Returns the activations' dtype and the products of a kind."""
    if kind == "zentorch":
        importlib.import_module("zentorch")
    return {
        "bfloat16": (torch.bfloat16, linear),
        "compiled": (torch.bfloat16, linear),
        "quantize_dynamic": (torch.float32, _dynamic),
        "zentorch": (torch.float32, _ZenProduct),
    }[kind]


class _Forwards:
    """A model with a cache of one canvas."""

    def __init__(self, options: Any, shape: Any, clock: LayerClock):
        dtype, product = _prepared(options.kind)
        torch.set_default_dtype(dtype)

        def weight(names: Sequence[str], outputs: int, inputs: int) -> Any:
            parts = [
                torch.from_numpy(normal_matrix(name, *options.matrices[name])) for name in names
            ]
            return torch.cat(parts).to(dtype)

        self._model = TorchLLaDA(shape, options.cached, weight, product)
        self._hidden, self._clock, self._shape = self._model.hidden, clock, shape
        if options.kind == "compiled":
            torch._inductor.config.freezing = True
            self._hidden = torch.compile(self._model.hidden, dynamic=False)
        self._cache = self._model.empty_cache(1, options.cached)

    def forward(self, canvas: Any, first: int, stop: int) -> Any:
        """Returns logits [rows, V] of a canvas [L], all of which each row sees."""
        self._clock.start()
        cache = self._cache[..., : len(canvas), :]
        hidden = self._hidden(canvas[None, first:stop], torch.arange(first, stop), cache)
        self._clock.stop()
        return self._model.logits(hidden)[0]

    def hidden(self, rows: int) -> Any:
        """Returns the normed outputs of the layers [rows, D] for the tokens 0, 1, ... alone."""
        tokens = torch.arange(rows)
        return self._model.norm(self._hidden(tokens[None], tokens))[0]

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
        torch.set_default_dtype(torch.bfloat16)
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


def _save_hidden(model: _Forwards, path: str, rows: int) -> None:
    np.save(path, model.hidden(rows).float().numpy())


def main(settings: str) -> None:
    """Builds a model, and answers requests."""
    options, clock = SimpleNamespace(**json.loads(settings)), LayerClock()
    shape = SimpleNamespace(**options.model)
    torch.set_default_device(options.device)
    torch.manual_seed(0)
    with torch.inference_mode():
        model = (
            _Checkout(Path(options.checkout), shape, clock)
            if options.checkout
            else _Forwards(options, shape, clock)
        )
        canvas = torch.full((options.cached,), shape.mask_id)
        model.forward(canvas, 0, options.cached)  # fills the cache

        def forward(rows: int) -> None:
            logits = model.forward(canvas, options.cached - rows, options.cached)
            commit(canvas[-rows:].clone(), torch.ones(rows, dtype=torch.bool), logits, 1)

        def decode(steps: int) -> None:
            model.decode(options, steps)
            if options.device != "cpu":
                torch.cuda.synchronize()

        works = {"forward": forward, "decode": decode}
        if isinstance(model, _Forwards):
            works["hidden"] = partial(_save_hidden, model, options.hidden)
        source = "its own checkout" if options.checkout else options.kind
        about = f"PyTorch {torch.__version__}, {_units(options.device)}; {source}"
        answer_lines(about, clock, works)


if __name__ == "__main__":
    main(*sys.argv[1:])
