"""The suite `gpu`: a model's shape with random bfloat16 weights on one GPU, beside PyTorch.

Forwards of a block against a cache take turns with PyTorch's SDPA in CUDA graphs. Complete decoding
runs in processes of its own, with and without XLA's command buffers, and takes turns with a
checkout of Fast-dLLM if there is one.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import llada_jax as lj
from experiments.bench.rivals.contender import (
    Contender,
    ContenderProcess,
    left_out,
    running_if_ready,
)
from experiments.harness.results import ResultRow
from experiments.harness.timers import in_new_process, spread, times_in_turns
from llada_jax.config import ModelConfig, ascending_counts, require, require_counts
from llada_jax.model.forward import cache_for, forward_rows
from llada_jax.model.head import ScoreRules, score_rows
from llada_jax.model.layers import (
    CachedLayer,
    all_at_once,
    attend_in_blocks,
    attend_in_cudnn,
    attend_in_kernel,
)
from llada_jax.model.params import init_params, param_count
from llada_jax.rows import make_rows, write_rows
from llada_jax.types import KVCache, Rows, Scores

BLOCK, GENERATED = 32, 64
CALLS = 10  # forwards that are queued before the host waits, as in a loop
COPIED = 1 << 31  # bytes
LAYERS = 4  # whose attention is timed together
WITHOUT_BUFFERS = "--xla_gpu_enable_command_buffer="


@dataclass(frozen=True, kw_only=True)
class GpuBenchConfig:
    """Settings of the verb; conf/bench.yaml explains each."""

    batches: tuple[int, ...] = (1, 8, 32)
    contexts: tuple[int, ...] = (256, 1024, 4096)
    decoded: tuple[tuple[int, int], ...] = ((1, 256), (8, 256), (1, 1024))
    prompts: int = 24
    torch: bool = True
    fast_dllm: str | None = None

    def __post_init__(self) -> None:
        ascending_counts("batches", self.batches)
        ascending_counts("contexts", self.contexts)
        require_counts(self, "prompts")
        for length in (*self.contexts, *(context for _, context in self.decoded)):
            require(
                length > GENERATED, f"a context is {length}; allowed: more than {GENERATED} tokens"
            )


def time_gpu(shape: ModelConfig, config: GpuBenchConfig, repeats: int) -> Iterator[ResultRow]:
    """Yields the rows of the suite. Raises ValueError if JAX has no GPU."""
    platform = jax.default_backend()
    require(
        platform == "gpu", f"JAX's platform is {platform}; allowed: gpu (pip install jax[cuda13])"
    )
    kind = jax.devices()[0].device_kind
    bandwidth = _bandwidth()
    yield ResultRow("bandwidth", bandwidth / 1e9, "GB/s, read and written", source=kind)
    yield from time_attention(shape, config, repeats)
    yield from time_forwards(shape, config, repeats, bandwidth)
    for name, flags in {"": "", "/no command buffers": WITHOUT_BUFFERS}.items():
        rows = in_new_process(
            time_decoding, shape, config, repeats, name, environment={"XLA_FLAGS": flags}
        )
        yield from rows


def time_attention(shape: ModelConfig, config: GpuBenchConfig, repeats: int) -> Iterator[ResultRow]:
    """Times ways of a layer's attention: of a block over the longest cache, for each batch, and of
    a first forward, whose cache is empty. Some layers with a cache each are in one program, which
    hides the time to start it; each one's output is the query of the next."""
    longest = config.contexts[-1]
    ways: dict[str, Callable[..., Any]] = {"at once": all_at_once, "blocks": attend_in_blocks}
    if jax.default_backend() == "gpu":
        ways |= {"cuDNN": attend_in_cudnn, "kernel": attend_in_kernel}
    for batch, rows, cached in [*((b, BLOCK, longest) for b in config.batches), (1, longest, 0)]:
        keys = jax.random.split(jax.random.key(0), 4)

        def drawn(key: Any, *sizes: int) -> jax.Array:
            return jax.random.normal(key, (*sizes, shape.head_dim), jnp.bfloat16)

        query = drawn(keys[0], batch, rows, shape.n_heads)
        fresh = (drawn(keys[1], batch, rows, shape.n_kv_heads),) * 2
        kept = (drawn(k, LAYERS, batch, shape.n_kv_heads, cached) for k in keys[2:])
        visible = tuple(jnp.ones((batch, rows, size), bool) for size in (cached, rows))

        def run(attend: Any, query: Any, *inputs: Any) -> Any:
            for keys, values in zip(*inputs[-1], strict=True):
                out = attend(query, *inputs[:-1], CachedLayer(keys, values, 0))
                query = query + out.reshape(query.shape)
            return query

        inputs = query, fresh, visible, [list(part) for part in kept]
        timed = {
            way: partial(jax.jit(partial(run, attend)), *inputs)
            for way, attend in ways.items()
            if cached or way != "kernel"  # which is for cached positions
        }
        for way, seconds in times_in_turns(timed, repeats).items():
            name = f"attention/{batch}x{rows} over {cached}/{way}"
            yield from spread(name, [1e6 * s / LAYERS for s in seconds], "us a layer")


def time_forwards(
    shape: ModelConfig, config: GpuBenchConfig, repeats: int, bandwidth: float
) -> Iterator[ResultRow]:
    """Times a forward of a block of each canvas, with its scores and its writes to the cache."""
    params = init_params(shape, jax.random.key(0), jnp.bfloat16)
    cases = [(batch, context) for context in config.contexts for batch in config.batches]
    platform = "cuda" if jax.default_backend() == "gpu" else "cpu"
    options = {"model": asdict(shape), "cases": cases, "calls": CALLS, "rows": BLOCK}
    read = 2 * (param_count(shape) - shape.vocab_size * shape.width)
    rival = Contender("torch", "torch_gpu", "bfloat16", {"device": platform})
    with running_if_ready(rival if config.torch else None, options) as torch:
        for number, (batch, context) in enumerate(cases):
            name, cache = f"forward/{batch}x{context}", _cache_bytes(shape, batch, context)
            if not _fits(cache * (2 if torch else 1)):
                left_out(name, f"two caches of {cache / 2**30:.0f} GiB do not fit")
                continue
            ours = _Forward(shape, params, batch, context)
            yield from _compared(name, ours, torch, number, repeats, (read + cache) / bandwidth)
            yield ResultRow(f"{name}/memory", ours.temporary / 2**20, "MiB, temporary")
            if kernels := ours.kernels():
                yield ResultRow(f"{name}/kernels", kernels, "a forward")


class _Forward:
    """A forward of the last block of each of `batch` canvases of `context` tokens."""

    def __init__(self, shape: ModelConfig, params: Any, batch: int, context: int):
        first = context - BLOCK
        at = jnp.broadcast_to(jnp.arange(first, context, dtype=jnp.int32), (batch, BLOCK))
        every = jnp.ones(at.shape, bool), jnp.ones((batch, context), bool)
        self._params, self._rows = params, make_rows(jnp.zeros_like(at), at, *every)
        self._cache = cache_for(params, shape, batch, context)

        def forward(params: Any, rows: Rows, cache: KVCache) -> tuple[Scores, KVCache]:
            out = forward_rows(params, shape, rows, cache)
            scores = score_rows(params, out.hidden, None, ScoreRules(spread=False))
            return scores, write_rows(cache, rows, out)

        jitted = jax.jit(forward, donate_argnums=2)
        self._forward = jitted.lower(params, self._rows, self._cache).compile()

    def __call__(self, calls: int = CALLS) -> Scores:
        for _ in range(calls):
            scores, self._cache = self._forward(self._params, self._rows, self._cache)
        return jax.block_until_ready(scores)

    @property
    def temporary(self) -> int:
        """Bytes of memory beside weights, cache and results."""
        memory: Any = self._forward.memory_analysis()
        return memory.temp_size_in_bytes

    def kernels(self) -> int:
        """Returns the number of kernels and copies of a forward, from a profile; 0 if it has
        none."""
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                self(1)
            (profile,) = Path(folder).rglob("*.xplane.pb")
            planes = jax.profiler.ProfileData.from_file(str(profile)).planes
            return sum(
                sum(1 for _ in line.events)
                for plane in planes
                if plane.name.startswith("/device:GPU")
                for line in plane.lines
                if line.name.startswith("Stream")
            )


def _compared(
    name: str,
    ours: _Forward,
    torch: ContenderProcess | None,
    case: int,
    repeats: int,
    shortest: float,
) -> Iterator[ResultRow]:
    ways: dict[str, Callable[[], Any]] = {"llada_jax": ours}
    if torch is not None:
        ways["torch"] = partial(_ask, torch, "forward", case)
    times = times_in_turns(ways, repeats)
    for way, seconds in times.items():
        yield from spread(f"{name}/{way}", [1e3 * s / CALLS for s in seconds], "ms")
        share = shortest / (statistics.median(seconds) / CALLS)
        yield ResultRow(f"{name}/{way}/bandwidth", share, "of the measured bandwidth")
    if torch is not None:
        pairs = zip(times["torch"], times["llada_jax"], strict=True)
        yield from spread(f"{name}/ratio", [a / b for a, b in pairs], "x as fast as torch")


def time_decoding(
    shape: ModelConfig, config: GpuBenchConfig, repeats: int, suffix: str
) -> list[ResultRow]:
    """Times both loops, a stream of prompts of mixed lengths, and Fast-dLLM's own files."""
    model = lj.Model(shape, init_params(shape, jax.random.key(0), jnp.bfloat16), None)
    sampler = lj.SamplerConfig.from_flat(
        gen_length=GENERATED, block_length=BLOCK, steps=GENERATED, cache="dual"
    )
    rows: list[ResultRow] = []
    for batch, context in config.decoded:
        prompts = _prompts([context - GENERATED] * batch)

        def decode(loop: Any, prompts: Sequence[Any] = prompts) -> Any:
            return lj.generate(model, prompts, sampler, loop=loop).tokens

        ways: dict[str, Callable[[], Any]] = {
            loop: partial(decode, loop) for loop in ("compiled", "host")
        }
        rival = None
        options = {"model": asdict(shape), "cached": context, "gen_length": GENERATED}
        options |= {"prompt_length": context - GENERATED, "block_length": BLOCK}
        if config.fast_dllm and batch == 1 and not suffix:
            theirs = {"checkout": str(Path(config.fast_dllm).resolve()), "device": "cuda"}
            rival = Contender("fast_dllm", "torch_forward", "bfloat16", theirs)
        with running_if_ready(rival, options) as process:
            if process is not None:
                ways["fast_dllm"] = partial(_ask, process, "decode", GENERATED)
            times = times_in_turns(ways, repeats)
        name = f"decode/{batch}x{context}"
        for way, seconds in times.items():
            tokens = [batch * GENERATED / s for s in seconds]
            rows += spread(f"{name}/{way}{suffix}", tokens, "tokens/s")
        if "fast_dllm" in times:
            pairs = zip(times["fast_dllm"], times["compiled"], strict=True)
            rows += spread(f"{name}/ratio", [a / b for a, b in pairs], "x as fast as Fast-dLLM")
    memory = jax.devices()[0].memory_stats() or {}
    rows.append(ResultRow(f"memory{suffix}", memory.get("peak_bytes_in_use", 0) / 2**30, "GiB"))
    rng = np.random.default_rng(0)
    prompts = _prompts(
        rng.integers(16, max(config.contexts[0] - GENERATED, 17), config.prompts).tolist()
    )

    def stream() -> float:
        began = time.perf_counter()
        answers = lj.generate_stream(model, prompts, sampler.replace(cache="blockwise"), places=8)
        n_answers = sum(1 for _ in answers)
        return n_answers * GENERATED / (time.perf_counter() - began)

    stream()  # compiles
    return [*rows, *spread(f"mixed lengths{suffix}", [stream() for _ in range(2)], "tokens/s")]


def _ask(process: ContenderProcess, work: str, number: int) -> None:
    process.ask(work, number)


def _prompts(lengths: Sequence[int]) -> list[list[int]]:
    rng = np.random.default_rng(1)
    return [rng.integers(16, 256, length).tolist() for length in lengths]


def _cache_bytes(shape: ModelConfig, batch: int, context: int) -> int:
    return 4 * batch * context * shape.n_layers * shape.n_kv_heads * shape.head_dim


def _fits(size: int) -> bool:
    """Whether so many bytes are free, with a tenth of the device's memory to spare."""
    stats = jax.devices()[0].memory_stats()
    if not stats:
        return True
    total = stats["bytes_limit"]
    return size < 0.9 * total - stats["bytes_in_use"]


def _bandwidth() -> float:
    """Returns the bytes per second that the device reads and writes when it copies."""
    numbers = jnp.zeros(COPIED // 4, jnp.float32)
    copy = jax.jit(lambda x: x + 1)
    (seconds,) = times_in_turns({"copy": lambda: copy(numbers)}, 5).values()
    return 2 * COPIED / min(seconds)
