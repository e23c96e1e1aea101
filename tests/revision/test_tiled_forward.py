"""The forward over tiles is `forward_rows` over the dequantized weights; so is a whole decoding."""

import functools
import threading
import tracemalloc
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import llada_jax as lj
from llada_jax.api import decoding, denoisers
from llada_jax.config import ModelConfig, MoEConfig
from llada_jax.model.forward import forward_rows
from llada_jax.model.head import ScoreRules, score_rows
from llada_jax.model.quantize import QuantArray, dequantize
from llada_jax.revision.tile_multiplier import TileMultiplier
from llada_jax.revision.tiled_forward import pack_params, tiled_denoiser
from llada_jax.revision.tiles import Tiles
from llada_jax.rows import make_rows
from llada_jax.types import KVCache
from tests.drawn_params import drawn_params
from tests.revision.unpacked import unpack_q4_0
from tests.sampler.test_worker import Held

pytest.importorskip("llvmlite")
revision_kernel = pytest.importorskip("llada_jax.revision.kernel")

CONFIG = ModelConfig(
    family="llada", vocab_size=160, width=64, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=16,
    ffn_width=96, rope_theta=1e4, norm_eps=1e-5, max_length=64, mask_id=150, eos_id=151,
)  # fmt: skip
CACHED = 40
forward = jax.jit(forward_rows, static_argnums=1)
score = jax.jit(score_rows, static_argnums=3)
rows_of = jax.jit(make_rows)


@pytest.fixture(scope="module")
def multiply():
    with TileMultiplier(threads=2) as multiplier:
        yield multiplier


def plain(packed):
    """Returns whole parameters with all tiles dequantized to float32."""

    def unpacked(leaf):
        return QuantArray(*unpack_q4_0(leaf)) if isinstance(leaf, Tiles) else leaf

    return decoded(jax.tree.map(unpacked, packed))


@jax.jit
def decoded(params):
    def floats(leaf):
        return dequantize(leaf, jnp.float32) if isinstance(leaf, QuantArray) else leaf

    return jax.tree.map(floats, params, is_leaf=lambda leaf: isinstance(leaf, QuantArray))


@functools.cache
def model_of(config):
    """Packed parameters, and the same parameters dequantized to float32."""
    packed = pack_params(drawn_params(config), config)
    return packed, plain(packed)


def cache_of(config, batch, length=CACHED, dtype=jnp.float32):
    shape = (2, config.n_layers, batch, config.n_kv_heads, length, config.head_dim)
    drawn = jnp.asarray(np.random.default_rng(1).standard_normal(shape), dtype)
    return KVCache(*map(tuple, drawn))


def some_rows(batch=2, length=CACHED):
    """Scattered positions; the last row of each canvas is dead."""
    positions = np.int32([[3, 17, 20, 0], [30, 5, 6, 0]][:batch])
    live = np.array([[True, True, True, False], [True, True, False, False]][:batch])
    cached = np.arange(length) < 33
    return rows_of(positions + 7, positions, live, np.broadcast_to(cached, (batch, length)))


def assert_near(found, expected, at):
    found, expected = np.asarray(found)[..., at, :], np.asarray(expected)[..., at, :]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def assert_same_rows(found, expected, live):
    at = np.asarray(live)
    assert_near(found.hidden, expected.hidden, at)
    pairs = zip(found.keys + found.values, expected.keys + expected.values, strict=True)
    for part in pairs:
        assert_near(*(np.asarray(heads).reshape(*heads.shape[:2], -1) for heads in part), at)


def test_the_tiled_forward_matches_forward_rows(multiply):
    packed, params = model_of(CONFIG)
    denoiser = tiled_denoiser(CONFIG, ScoreRules(), multiply)
    rows, cache = some_rows(), cache_of(CONFIG, 2)
    found = denoiser.forward_rows(packed, rows, cache)
    assert_same_rows(found, forward(params, CONFIG, rows, cache), rows.live)


def test_norms_biases_and_a_tied_head(multiply):
    config = CONFIG.replace(qk_norm=True, qkv_bias=True, tied_embeddings=True)
    packed, params = model_of(config)
    denoiser = tiled_denoiser(config, ScoreRules(), multiply)
    rows, cache = some_rows(), cache_of(config, 2)
    found, expected = (
        denoiser.forward_rows(packed, rows, cache),
        forward(params, config, rows, cache),
    )
    assert_same_rows(found, expected, rows.live)
    found = denoiser.score_rows(packed, expected.hidden, None)
    wanted = score(params, expected.hidden, None, ScoreRules())
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)


def test_without_a_cache(multiply):
    packed, params = model_of(CONFIG)
    denoiser = tiled_denoiser(CONFIG, ScoreRules(), multiply)
    rows, cache = some_rows(length=0), denoiser.empty_cache(packed, 2, 0)
    found = denoiser.forward_rows(packed, rows, cache)
    assert_same_rows(found, forward(params, CONFIG, rows, cache), rows.live)


def test_keys_have_the_dtype_of_the_cache(multiply):
    packed, _ = model_of(CONFIG)
    denoiser = tiled_denoiser(CONFIG, ScoreRules(), multiply)
    rows = some_rows()
    wide = denoiser.forward_rows(packed, rows, cache_of(CONFIG, 2))
    narrow = denoiser.forward_rows(packed, rows, cache_of(CONFIG, 2, dtype=jnp.bfloat16))
    assert {part.dtype for part in narrow.keys + narrow.values} == {jnp.dtype("bfloat16")}
    np.testing.assert_allclose(
        narrow.hidden[0, :3], wide.hidden[0, :3], atol=0.05 * float(jnp.abs(wide.hidden).max())
    )


@pytest.mark.parametrize(
    "rules",
    [ScoreRules(chunk=32), ScoreRules(chunk=96, forbidden=(150,), discounted=(3,)),
     ScoreRules(temperature=0.7, chunk=64)],
    ids=["streamed", "rules", "noise"],
)  # fmt: skip
def test_scores(multiply, rules):
    packed, params = model_of(CONFIG)
    rng = np.random.default_rng(2)
    hidden = jnp.asarray(rng.standard_normal((2, 3, CONFIG.width)), jnp.float32)
    keys = jax.random.split(jax.random.key(3), (2, 3)) if rules.temperature else None
    found = tiled_denoiser(CONFIG, rules, multiply).score_rows(packed, hidden, keys)
    expected = score(params, hidden, keys, rules)
    np.testing.assert_array_equal(found.token, expected.token)
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)


@functools.cache
def tiled_and_plain():
    """A model in tiles, and the same weights dequantized to float32."""
    tiles = lj.tiled(lj.Model(CONFIG, drawn_params(CONFIG), None))
    return tiles, tiles.replace(params=plain(tiles.params))


PROMPT = [[10, 20, 30, 40]]

REFRESHED = lj.SamplerConfig.preset(
    "staged", gen_length=32, block_length=8, steps=32, theta_visible=0.2, theta_stable=0.9,
    refresh="worker",
)  # fmt: skip


@pytest.mark.slow
def test_a_worker_refreshes_from_tiles():
    """Tiles of the run's weights give the same refresh; tiles of other weights give another."""
    tiles, model = tiled_and_plain()
    expected = lj.generate(model, PROMPT, REFRESHED, trace=True)
    found = lj.generate(model, PROMPT, REFRESHED, trace=True, refresh_on=tiles)
    assert expected.trace.refreshed.sum() > 0
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_array_equal(found.trace.refreshed, expected.trace.refreshed)
    other = model.replace(params=drawn_params(model.config, 3))
    changed = lj.generate(model, PROMPT, REFRESHED, refresh_on=other)
    assert (changed.tokens != expected.tokens).any()


def fails_beside_a_job(monkeypatch):
    """The run's forward fails while the worker still has its first job to do."""
    worker, denoiser_for = Held(), denoisers.denoiser_for

    def failing_denoiser(config, rules):
        denoiser = denoiser_for(config, rules)
        compiled = jax.jit(denoiser.forward_rows)

        def forward_rows(*args):
            if worker.submitted.is_set():
                worker.failed.set()
                raise RuntimeError("the NPU went away")
            return compiled(*args)

        return replace(denoiser, forward_rows=forward_rows, traceable=False)

    monkeypatch.setattr(decoding, "ThreadPoolExecutor", lambda **options: worker)
    monkeypatch.setattr(denoisers, "denoiser_for", failing_denoiser)
    return worker.finished


def fails_in_a_job(monkeypatch):
    """The kernel fails in the first job, in a thread of the pool or in the worker's thread."""
    failed = threading.Event()

    def kernel(*args):
        failed.set()
        raise RuntimeError("the kernel met a bad tile")

    monkeypatch.setattr(revision_kernel, "kernel_for", lambda n_rows: kernel)
    return failed


@pytest.mark.slow
def test_a_run_leaves_no_thread():
    tiles, model = tiled_and_plain()
    before = set(threading.enumerate())
    run = lj.generate(model, PROMPT, REFRESHED, trace=True, refresh_on=tiles)
    assert run.trace.refreshed.sum() > 0
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize(
    ("failure", "message"),
    [(fails_beside_a_job, "the NPU went away"), (fails_in_a_job, "the kernel met a bad tile")],
)
def test_a_run_that_fails_leaves_no_thread(failure, message, monkeypatch):
    tiles, model = tiled_and_plain()
    happened = failure(monkeypatch)
    before = set(threading.enumerate())
    with pytest.raises(RuntimeError, match=message):
        lj.generate(model, PROMPT, REFRESHED, refresh_on=tiles)
    assert set(threading.enumerate()) == before
    assert happened.is_set()


def test_unsupported_uses_of_tiles_are_refused():
    tiles, model = tiled_and_plain()
    config = REFRESHED.replace(refresh="rows")
    with pytest.raises(ValueError, match="the model has tiles; allowed: as refresh_on"):
        lj.generate(tiles, PROMPT, config)
    with pytest.raises(ValueError, match="refresh_on is a model without a worker"):
        lj.generate(model, PROMPT, config, refresh_on=tiles)
    small = tiles.replace(config=tiles.config.replace(max_length=128))
    with pytest.raises(ValueError, match="refresh_on is a model of another configuration"):
        lj.generate(model, PROMPT, REFRESHED, refresh_on=small)


def test_a_worker_runs_next_to_another_forward(multiply):
    """From a separate thread, as in a worker, while XLA runs the other rows."""
    packed, params = model_of(CONFIG)
    denoiser = tiled_denoiser(CONFIG, ScoreRules(), multiply)
    rows, cache = some_rows(), cache_of(CONFIG, 2)
    expected = forward(params, CONFIG, rows, cache)
    found = []

    def refresh():
        found.extend(denoiser.forward_rows(packed, rows, cache) for _ in range(5))

    worker = threading.Thread(target=refresh)
    worker.start()
    for _ in range(20):
        np.testing.assert_array_equal(forward(params, CONFIG, rows, cache).hidden, expected.hidden)
    worker.join()
    assert len(found) == 5
    for out in found:
        assert_same_rows(out, expected, rows.live)


@pytest.mark.slow
def test_weights_in_memory_have_the_expected_size(multiply):
    """Packed matrices are at most 1/7 of float32, and a forward stores none of them decoded."""
    config = CONFIG.replace(width=512, n_heads=8, n_kv_heads=8, head_dim=64, ffn_width=1536)
    packed, params = model_of(config)
    pairs = [
        (tiles.blocks.nbytes, weight.nbytes)
        for tiles, weight in zip(jax.tree.leaves(packed), jax.tree.leaves(params), strict=True)
        if isinstance(tiles, Tiles)
    ]
    assert len(pairs) == 7 * config.n_layers + 1
    assert all(7 * small <= large for small, large in pairs)
    del params
    denoiser = tiled_denoiser(config, ScoreRules(), multiply)
    rows, cache = some_rows(), cache_of(config, 2)

    def run():
        return jax.block_until_ready(denoiser.forward_rows(packed, rows, cache))

    run()
    ours = {id(array) for array in jax.live_arrays()}
    tracemalloc.start()
    out = run()
    allocated = tracemalloc.get_traced_memory()[1]  # numpy
    tracemalloc.stop()
    new = sum(array.nbytes for array in jax.live_arrays() if id(array) not in ours)
    assert new <= sum(array.nbytes for array in out)
    assert allocated < max(large for _, large in pairs) / 8


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pack_params(drawn_params(CONFIG.replace(ffn_width=80)),
                             CONFIG.replace(ffn_width=80)),
         r"layers.0.ffn.gate: a weight of shape \(80, 64\) in tiles; allowed: \[Out, In\], mult"),
        (lambda: pack_params(
            jax.tree.map(lambda leaf: leaf * 1e9, model_of(CONFIG)[1]), CONFIG),
         "layers.0.attention.query: scale .* is too large for Q4_0; allowed: up to 65504"),
    ],
)  # fmt: skip
def test_bad_input_of_a_product_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_experts_are_refused():
    moe = MoEConfig(n_experts=4, experts_per_token=2, expert_width=32)
    config = CONFIG.replace(moe=moe)
    with pytest.raises(ValueError, match="the model has experts; allowed: dense models"):
        pack_params(drawn_params(config), config)
