"""Tiles: their bytes follow the documented layout, and packing is lossless."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llada_jax.model.quantize import QuantArray, dequantize
from llada_jax.revision.tiles import NIBBLE_BYTES, pack_q4_0, quantize_q4_0
from tests.revision.unpacked import unpack_q4_0

SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 3)).map(lambda s: (32 * s[0], 32 * s[1]))


def q4_0(seed, out, inputs):
    """Any integers and any positive float16 scales, not only values that a quantizer gives."""
    rng = np.random.default_rng(seed)
    values = rng.integers(-8, 8, (out, inputs)).astype(ml_dtypes.int4)
    bits = rng.integers(1, 0x7C00, (out, inputs // 32)).astype(np.uint16)
    return QuantArray(values, bits.view(np.float16).astype(np.float32))


@given(st.integers(0, 2**32), SHAPES)
def test_unpacked_tiles_equal_the_weight(seed, shape):
    weight = q4_0(seed, *shape)
    tiles = pack_q4_0(weight)
    values, scale = unpack_q4_0(tiles)
    assert tiles.shape == shape
    assert values.dtype == ml_dtypes.int4 and scale.dtype == np.float32
    np.testing.assert_array_equal(values, weight.values)
    np.testing.assert_array_equal(scale, weight.scale)


def test_two_inputs_are_interleaved_and_tiles_follow_the_inner_product():
    weight = q4_0(3, 64, 96)
    integers = weight.values.astype(np.int8) + 8
    blocks = pack_q4_0(weight).blocks
    assert blocks.shape == (2, 3, 576)
    # The published order inside a tile: (r0, c0), (r1, c0), (r0, c1), ...; rows are inputs.
    low, high = blocks[1, 2, :2] & 15, blocks[1, 2, :2] >> 4
    np.testing.assert_array_equal(low, [integers[32, 64], integers[33, 64]])
    np.testing.assert_array_equal(high, [integers[32, 65], integers[33, 65]])
    assert blocks[1, 2, 32] == integers[32, 66] + 16 * integers[32, 67]
    assert blocks.reshape(-1)[576] & 15 == integers[0, 32]  # the next inputs, not outputs


def test_a_byte_of_q4_0_has_two_inputs_of_one_output():
    values = np.zeros((32, 64), ml_dtypes.int4)
    values[5, 32 + 6], values[5, 32 + 7] = -8, 7
    scale = np.ones((32, 2), np.float32)
    scale[5, 1] = 0.25
    tile = pack_q4_0(QuantArray(values, scale)).blocks[0, 1]
    assert tile[3 * 32 + 5] == 0xF0  # integers are biased by 8
    assert (np.delete(tile[:NIBBLE_BYTES], 3 * 32 + 5) == 0x88).all()
    assert tile[NIBBLE_BYTES:].view(np.float16)[5] == 0.25


def test_gguf_blocks_keep_their_integers():
    gguf = pytest.importorskip("gguf")
    from llada_jax.checkpoint.gguf import _q4_0

    weight = np.random.default_rng(0).standard_normal((32, 96)).astype(np.float32)
    raw = gguf.quantize(weight, gguf.GGMLQuantizationType.Q4_0)
    blocks = QuantArray(*_q4_0(raw))
    tiles = pack_q4_0(blocks)
    assert tiles.blocks.nbytes == raw.nbytes
    np.testing.assert_array_equal(
        np.asarray(dequantize(QuantArray(*map(np.asarray, unpack_q4_0(tiles))), np.float32)),
        gguf.dequantize(raw, gguf.GGMLQuantizationType.Q4_0),
    )


@pytest.mark.parametrize("shape", [(32, 32), (96, 64)])
def test_q4_0_is_a_seventh_of_float32(shape):
    tiles = pack_q4_0(q4_0(0, *shape))
    assert 7 * tiles.blocks.nbytes <= 4 * np.prod(shape)
    assert tiles.blocks.nbytes * 32 == 18 * np.prod(shape)


def test_quantized_weights_are_close():
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    near = np.asarray(dequantize(quantize_q4_0(weight), np.float32))
    group_max = np.abs(weight.reshape(64, 2, 32)).max(-1, keepdims=True)
    error = np.abs(near - weight).reshape(64, 2, 32)
    assert (error <= group_max * (1 / 14 + 1e-3)).all()


def test_a_view_of_some_outputs():
    weight = q4_0(1, 96, 64)
    some = pack_q4_0(weight).columns(32, 96)
    np.testing.assert_array_equal(unpack_q4_0(some).values, weight.values[32:])
    assert some.blocks.base is not None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pack_q4_0(q4_0(0, 32, 32)._replace(values=np.zeros((32, 48), ml_dtypes.int4))),
         r"shape \(32, 48\) in tiles; allowed: \[Out, In\], multiples of 32"),
        (lambda: pack_q4_0(q4_0(0, 32, 32)._replace(values=np.zeros((32, 32), np.int8))),
         "int8 in Q4_0 tiles; allowed: int4"),
        (lambda: pack_q4_0(q4_0(0, 32, 64)._replace(scale=np.ones((32, 1), np.float32))),
         r"shape \(32, 1\); allowed: one for 32 inputs, \(32, 2\)"),
        (lambda: pack_q4_0(q4_0(0, 32, 32)._replace(scale=np.full((32, 1), 0.1, np.float32))),
         r"scale \[0.1\] is no float16 number; allowed: float16 numbers"),
        (lambda: quantize_q4_0(np.full((32, 32), 7e5, np.float32)),
         "scale 100000.0 is too large for Q4_0; allowed: up to 6550"),
        (lambda: pack_q4_0(q4_0(0, 64, 32)).columns(16, 64),
         "outputs 16 to 64 of 64; allowed: multiples of 32"),
    ],
)  # fmt: skip
def test_bad_input_of_a_product_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
