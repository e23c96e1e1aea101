"""Stored weights: existing integers are kept, other weights are rounded like `quantize`."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from llada_jax.backend import weights
from llada_jax.backend.weights import (
    InMemory,
    StoredPiece,
    pack_int4,
    pieces_of,
    quant_of,
    storage_spec,
    store,
)
from llada_jax.config import Quant
from llada_jax.lowered import LoweredWeight
from llada_jax.model.quantize import QuantArray, dequantize, quantize
from tests.backend.models import GQA, quantized, random_params

GATE = "layers.0.ffn.gate"


def unpack_int4(packed: np.ndarray) -> np.ndarray:
    """int4 by the definition of two's complement, low bits first."""
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1).astype(np.int8)
    signed = np.where(nibbles > 7, nibbles - 16, nibbles)
    return signed.reshape(*packed.shape[:-1], -1)


def whole(pieces) -> StoredPiece:
    parts = list(pieces)
    scales = [part.scale for part in parts]
    return StoredPiece(
        np.concatenate([part.numbers for part in parts]),
        None if scales[0] is None else np.concatenate(scales),
    )


@given(
    arrays(
        np.int8,
        array_shapes(max_dims=3, max_side=6).map(lambda shape: (*shape[:-1], 2 * shape[-1])),
        elements=st.integers(-8, 7),
    )
)
def test_unpacking_inverts_packing(integers: np.ndarray) -> None:
    packed = pack_int4(integers.astype(ml_dtypes.int4))
    assert packed.dtype == np.uint8
    assert packed.shape == (*integers.shape[:-1], integers.shape[-1] // 2)
    np.testing.assert_array_equal(unpack_int4(packed), integers)


def test_the_first_number_is_in_the_low_bits() -> None:
    assert pack_int4(np.array([1, -2, 7, -8], ml_dtypes.int4)).tolist() == [0xE1, 0x87]


@pytest.mark.parametrize(
    ("quant", "name", "shape", "expected"),
    [
        ("float32", GATE, (6, 128), (32, None)),
        ("int8", GATE, (6, 100), (8, None)),
        ("int4", GATE, (6, 100), (4, None)),
        ("int4_block32", GATE, (6, 96), (4, 32)),
        ("int4_block128", GATE, (6, 256), (4, 128)),
        ("float32", "head[0:6]", (6, 128), (32, None)),
        *[(quant, "head[0:6]", (6, 96), (8, None)) for quant in ("int8", "int4", "int4_block32")],
        ("int4_block128", "embedding[0:6]", (6, 96), (8, None)),
        ("int4", "layers.0.ffn_norm", (96,), (32, None)),
    ],
)
def test_storage_specs_of_weights(quant: Quant, name: str, shape, expected) -> None:
    assert storage_spec(name, shape, quant) == LoweredWeight(shape, *expected)


def test_a_row_must_be_whole_groups() -> None:
    message = r"quant is 'int4_block32', but .*\.gate has 100 inputs; allowed: a multiple of 32"
    with pytest.raises(ValueError, match=message):
        storage_spec(GATE, (6, 100), "int4_block32")


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_floats_become_float32(dtype) -> None:
    weight = np.random.default_rng(0).standard_normal((6, 128)).astype(dtype)
    stored = whole(store(iter([weight]), LoweredWeight((6, 128), 32)))
    assert stored.numbers.dtype == np.float32 and stored.scale is None
    np.testing.assert_array_equal(stored.numbers, weight.astype(np.float32))


@pytest.mark.parametrize(
    ("bits", "group"), [(8, None), (4, None), (4, 32), (4, 128)], ids=lambda value: str(value)
)
def test_floats_are_rounded_like_quantize(bits, group: int | None) -> None:
    weight = np.random.default_rng(0).standard_normal((6, 128)).astype(np.float32)
    stored = whole(store(iter([weight]), LoweredWeight((6, 128), bits, group)))
    expected = quantize(weight, bits, group or 128)
    numbers = stored.numbers if bits == 8 else unpack_int4(stored.numbers)
    np.testing.assert_array_equal(numbers, np.asarray(expected.values, np.int8))
    np.testing.assert_array_equal(stored.scale, expected.scale)
    assert stored.scale is not None and stored.scale.dtype == np.float32


@pytest.mark.parametrize(
    ("made", "spec"),
    [
        ((8, 128), LoweredWeight((6, 128), 8)),
        ((4, 32), LoweredWeight((6, 128), 4, 32)),
        ((4, 128), LoweredWeight((6, 128), 4, 128)),
        ((4, 128), LoweredWeight((6, 128), 4)),
    ],
)
def test_integers_of_the_right_format_are_kept(made, spec: LoweredWeight) -> None:
    """Values that `quantize` would not reproduce: no row reaches its limit."""
    rng = np.random.default_rng(0)
    bits, group = made
    values = rng.integers(-5, 6, (6, 128)).astype(np.int8 if bits == 8 else ml_dtypes.int4)
    scale = rng.random((6, 128 // group)).astype(np.float32)
    piece = QuantArray(jnp.asarray(values), jnp.asarray(scale))
    stored = whole(store(iter([piece]), spec))
    numbers = stored.numbers if bits == 8 else unpack_int4(stored.numbers)
    np.testing.assert_array_equal(numbers, values.astype(np.int8))
    np.testing.assert_array_equal(stored.scale, scale)


@pytest.mark.parametrize(
    ("made", "spec"),
    [
        ((4, 32), LoweredWeight((6, 128), 8)),
        ((4, 32), LoweredWeight((6, 128), 4)),
        ((4, 32), LoweredWeight((6, 128), 4, 128)),
        ((8, 128), LoweredWeight((6, 128), 4, 32)),
        ((8, 128), LoweredWeight((6, 128), 32)),
    ],
)
def test_integers_of_another_format_are_rounded_again(made, spec: LoweredWeight) -> None:
    bits, group = made
    weight = np.random.default_rng(0).standard_normal((6, 128)).astype(np.float32)
    piece = quantize(weight, bits, group)
    wide = np.asarray(dequantize(piece, np.float32))
    found, expected = (whole(store(iter([source]), spec)) for source in (piece, wide))
    np.testing.assert_array_equal(found.numbers, expected.numbers)
    if spec.bits < 32:
        np.testing.assert_array_equal(found.scale, expected.scale)


@settings(max_examples=30)
@given(
    cuts=st.lists(st.integers(0, 23), max_size=4).map(sorted),
    elements=st.integers(1, 3000),
    bits=st.sampled_from([4, 8, 32]),
)
def test_pieces_of_any_size_make_the_whole(cuts: list[int], elements: int, bits: int) -> None:
    weight = np.random.default_rng(0).standard_normal((23, 64)).astype(np.float32)
    spec = LoweredWeight((23, 64), bits, 32 if bits == 4 else None)
    expected = whole(store(iter([weight]), spec))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "_PIECE_ELEMENTS", elements)
        parts = [part for part in np.split(weight, cuts) if len(part)]
        stored = list(store(iter(parts), spec))
        assert max(len(part.numbers) for part in stored) <= max(1, elements // 64)
    found = whole(iter(stored))
    np.testing.assert_array_equal(found.numbers, expected.numbers)
    if bits < 32:
        np.testing.assert_array_equal(found.scale, expected.scale)


def test_storage_follows_the_models_dtype() -> None:
    params = random_params(GQA)
    assert quant_of(params) == "float32"
    assert quant_of(quantized(params, 8)) == "int8"
    assert quant_of(quantized(params, 4)) == "int4_block32"


def test_a_weight_name_is_a_parameter_or_a_range_of_its_rows() -> None:
    params = random_params(GQA)
    in_memory = InMemory(params)
    (everything,) = pieces_of(in_memory, "head")
    np.testing.assert_array_equal(everything, params.head)
    (some,) = pieces_of(in_memory, "head[32:64]")
    np.testing.assert_array_equal(some, np.asarray(params.head)[32:64])
    (query,) = pieces_of(in_memory, "layers.2.attention.query")
    np.testing.assert_array_equal(query, params.layers[2].attention.query)
    whole_head = quantized(params, 8).head
    (integers,) = pieces_of(InMemory(quantized(params, 8)), "head[32:64]")
    assert isinstance(integers, QuantArray) and isinstance(whole_head, QuantArray)
    np.testing.assert_array_equal(integers.values, whole_head.values[32:64])
    np.testing.assert_array_equal(integers.scale, whole_head.scale[32:64])
