"""Products with tiles equal products with the dequantized weight, without storing that weight."""

import builtins
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llada_jax.model.quantize import QuantArray, dequantize
from llada_jax.revision.tile_multiplier import TileMultiplier
from llada_jax.revision.tiles import Tiles, pack_q4_0
from tests.revision.unpacked import unpack_q4_0

pytest.importorskip("llvmlite")


@pytest.fixture(scope="module")
def multiply():
    with TileMultiplier(threads=2) as multiplier:
        yield multiplier


def random_tiles(rng, out, inputs):
    values = rng.integers(-8, 8, (out, inputs)).astype(ml_dtypes.int4)
    scale = rng.uniform(0.001, 1, (out, inputs // 32)).astype(np.float16).astype(np.float32)
    return pack_q4_0(QuantArray(values, scale))


def weight_of(tiles):
    return np.asarray(dequantize(QuantArray(*map(np.asarray, unpack_q4_0(tiles))), np.float32))


def assert_product(found, x, tiles):
    """Asserts equality within 1e-5 of the largest result."""
    expected = x.astype(np.float64) @ weight_of(tiles).astype(np.float64).T
    assert found.dtype == np.float32 and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("n_rows", [*range(1, 9), 19])
def test_products_match_dequantized_weights(multiply, n_rows):
    rng = np.random.default_rng(n_rows)
    tiles = random_tiles(rng, 160, 384)
    x = rng.standard_normal((n_rows, 384)).astype(np.float32)
    assert_product(multiply(x, tiles), x, tiles)


@settings(max_examples=30)
@given(
    st.integers(0, 2**32),
    st.integers(1, 9),
    st.integers(1, 5),
    st.lists(st.integers(0, 3), max_size=2),
    st.integers(1, 4),
)
def test_products_of_any_shape(seed, out, inputs, leading, threads):
    rng = np.random.default_rng(seed)
    tiles = random_tiles(rng, 32 * out, 32 * inputs)
    x = rng.standard_normal((*leading, 32 * inputs)).astype(np.float32)
    with TileMultiplier(threads) as multiply:
        found = multiply(x, tiles)
    assert found.shape == (*leading, 32 * out)
    if x.size:
        assert_product(found, x, tiles)


def test_each_weight_is_multiplied_by_its_input(multiply):
    """Products with unit vectors give exactly the weight."""
    tiles = random_tiles(np.random.default_rng(0), 64, 64)
    np.testing.assert_array_equal(multiply(np.eye(64, dtype=np.float32), tiles).T, weight_of(tiles))


def test_a_strided_x_and_a_view_of_tiles(multiply):
    rng = np.random.default_rng(0)
    tiles = random_tiles(rng, 96, 64)
    x = rng.standard_normal((128, 3)).astype(np.float32).T[:, ::2]
    some = tiles.columns(32, 96)
    assert_product(multiply(x, some), x, some)


def test_callers_share_a_multiplier(multiply):
    rng = np.random.default_rng(0)
    tiles = random_tiles(rng, 256, 256)
    inputs = [rng.standard_normal((1 + i % 8, 256)).astype(np.float32) for i in range(32)]
    with ThreadPoolExecutor(8) as pool:
        for x, found in zip(inputs, pool.map(lambda x: multiply(x, tiles), inputs), strict=True):
            assert_product(found, x, tiles)


def test_decoded_weights_are_not_stored(multiply):
    """Only the copy of x, the sums and the result are allocated: numpy reports its allocations to
    tracemalloc, and the kernel calls no function that could allocate."""
    tiles = Tiles(np.full((64, 64, 576), 0x11, np.uint8))
    x = np.ones((4, tiles.shape[1]), np.float32)
    multiply(x, tiles)
    tracemalloc.start()
    found = multiply(x, tiles)
    allocated = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert allocated < x.nbytes + 2 * found.nbytes + 32 * 1024 < tiles.blocks.nbytes / 10


def test_the_context_manager_ends_the_threads():
    before = set(threading.enumerate())
    tiles = random_tiles(np.random.default_rng(0), 64, 64)
    with TileMultiplier(threads=3) as multiplier:
        multiplier(np.ones((1, 64), np.float32), tiles)
        assert set(threading.enumerate()) > before, "the case must start a thread"
    assert set(threading.enumerate()) == before


FORKED = []


def call_forked():
    FORKED[0]()


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_forked_process_is_refused(multiply):
    tiles = random_tiles(np.random.default_rng(0), 64, 64)
    product = partial(multiply, np.ones((1, 64), np.float32), tiles)
    product()
    with get_context("fork").Pool(1, FORKED.append, [product]) as pool:
        with pytest.raises(ValueError, match=r"threads of process \d+, and this is a fork of it"):
            pool.apply_async(call_forked).get(60)


@pytest.mark.parametrize("n_rows", [1, 8])
def test_the_kernel_has_no_calls(n_rows):
    from llada_jax.revision.kernel import Emitter

    module = Emitter(n_rows).module
    assert [function.name for function in module.functions] == ["multiply", "llvm.fmuladd.v32f32"]
    assert "alloca" not in str(module)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((1, 32), np.float32), r"x has shape \(1, 32\); allowed: \[..., 64\]"),
        (np.float32(0), r"x has shape \(\); allowed"),
        (np.zeros((1, 64)), "x has dtype float64; allowed: float32"),
        (np.zeros((1, 64), np.float16), "x has dtype float16; allowed: float32"),
    ],
)
def test_bad_input_of_a_product_is_refused(multiply, x, message):
    with pytest.raises(ValueError, match=message):
        multiply(np.asarray(x), random_tiles(np.random.default_rng(0), 32, 64))


def test_invalid_thread_counts_are_refused():
    with pytest.raises(ValueError, match="threads is 0; allowed: 1 or more"):
        TileMultiplier(0)


def test_without_llvmlite(monkeypatch):
    monkeypatch.delitem(sys.modules, "llada_jax.revision.kernel", raising=False)
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("llvmlite"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="the extra 'revision'"):
        TileMultiplier(1)
