"""The counts in the record of a lowered step."""

from llada_jax.lowered import Lowered, LoweredWeight, Operation, TensorType

PRODUCT = Operation(
    name="dot_general",
    scope="layer_0",
    inputs=(TensorType((8, 64), "f32"), TensorType((96, 64), "f32")),
    outputs=(TensorType((8, 96), "f32"),),
    contraction=64,
    weight="layers.0.ffn.gate",
)
SUM = Operation("add", "", PRODUCT.outputs * 2, PRODUCT.outputs)
STEP = Lowered(
    name="rows8_cache32",
    module=b"\x00module\xff",
    weights={
        "layers.0.ffn.gate": LoweredWeight((96, 64), 4, 32),
        "layers.0.ffn_norm": LoweredWeight((64,), 32),
        "head[0:16]": LoweredWeight((16, 64), 8),
    },
    inputs={"hidden": TensorType((8, 64), "f32")},
    outputs={"hidden": TensorType((8, 96), "f32")},
    operations=(PRODUCT, SUM, PRODUCT),
)


def test_only_products_have_multiply_adds() -> None:
    assert PRODUCT.macs == 8 * 96 * 64
    assert SUM.macs == 0
    assert STEP.macs == 2 * PRODUCT.macs


def test_weights_count_the_bytes_that_the_file_stores() -> None:
    assert STEP.weight_bytes == 96 * 64 // 2 + 64 * 4 + 16 * 64
    assert TensorType((3, 5, 7), "f32").size == 105
    assert TensorType((), "f32").size == 1
