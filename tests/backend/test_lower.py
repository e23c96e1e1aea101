"""The content of lowered steps, and steps that a target refuses before its converter starts."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import llada_jax
from llada_jax.backend.lower import UNSUPPORTED, check, lower
from llada_jax.backend.protocol import Bucket, Step
from llada_jax.backend.steps import body_step, head_steps, logits_step
from llada_jax.config import ModelConfig, Quant
from llada_jax.lowered import Lowered, LoweredWeight
from llada_jax.model.forward import forward
from llada_jax.model.params import named_specs
from tests.backend.models import GQA, MOE, VARIANTS, random_params

BUCKETS = (Bucket(1, 0), Bucket(8, 0), Bucket(1, 32), Bucket(8, 32))
PLAIN = {
    *("add", "subtract", "multiply", "divide", "negate", "maximum", "exponential", "rsqrt"),
    *("broadcast_in_dim", "concatenate", "reshape", "slice", "transpose"),
    *("dot_general", "reduce"),
}
"""Matrix products, sums and elementwise operations: everything that the body of a model needs."""
OF_THE_HEAD = {"iota", "compare", "select"}


def lowered_body(config: ModelConfig, bucket: Bucket, quant: Quant = "float32") -> Lowered:
    return lower(body_step(config, range(config.n_layers), bucket), quant)


def step_of(function: Callable[[jax.Array], jax.Array], *shape: int) -> Step:
    """A step with one input and all operations in the scope `part`."""

    def scoped(weights, inputs):
        with jax.named_scope("part"):
            return {"out": function(inputs["x"])}

    return Step("tried", scoped, {}, {"x": shape})


@pytest.mark.parametrize("bucket", BUCKETS, ids=lambda bucket: bucket.name)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_body_is_products_and_elementwise_operations_in_float32(
    variant: str, bucket: Bucket
) -> None:
    lowered = lowered_body(VARIANTS[variant], bucket)
    assert {operation.name for operation in lowered.operations} <= PLAIN
    tensors = [t for op in lowered.operations for t in (*op.inputs, *op.outputs)]
    assert {tensor.dtype for tensor in tensors} == {"f32"}
    for target in UNSUPPORTED:
        check(lowered, target)


@pytest.mark.parametrize("tied", [False, True])
def test_a_head_adds_only_an_argmax(tied: bool) -> None:
    for step in head_steps(GQA.replace(tied_embeddings=tied), [1, 8]):
        lowered = lower(step)
        assert {operation.name for operation in lowered.operations} <= PLAIN | OF_THE_HEAD
        tensors = [t for op in lowered.operations for t in (*op.inputs, *op.outputs)]
        assert {tensor.dtype for tensor in tensors} <= {"f32", "i32", "i1"}
        for target in UNSUPPORTED:
            check(lowered, target)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (jnp.cos, "cosine"),
        (jnp.sin, "sine"),
        (jnp.sort, "sort"),
        (lambda x: x[x.astype(jnp.int32)], "gather"),
        (lambda x: jax.lax.while_loop(lambda c: (c < 3).all(), lambda c: c + 1, x), "while"),
    ],
)
def test_an_extra_operation_is_detected(function, name: str) -> None:
    operations = lower(step_of(function, 4)).operations
    assert name in {operation.name for operation in operations} - PLAIN - OF_THE_HEAD


@pytest.mark.parametrize("bucket", BUCKETS, ids=lambda bucket: bucket.name)
@pytest.mark.parametrize("variant", VARIANTS)
def test_each_matrix_is_in_one_product_and_each_vector_is_used(
    variant: str, bucket: Bucket
) -> None:
    config = VARIANTS[variant]
    lowered = lowered_body(config, bucket)
    body = {
        name: spec for name, spec in named_specs(config).items()
        if name not in ("embedding", "head")
    }  # fmt: skip
    matrices = {name for name, spec in body.items() if len(spec.shape) == 2}
    products = [op.weight for op in lowered.operations if op.name == "dot_general" and op.weight]
    assert Counter(products) == Counter(matrices)
    assert {op.weight for op in lowered.operations} - {None} == set(body)
    assert lowered.weights.keys() == body.keys()


@pytest.mark.parametrize("bucket", BUCKETS, ids=lambda bucket: bucket.name)
@pytest.mark.parametrize("variant", VARIANTS)
def test_multiply_adds_follow_the_formula(variant: str, bucket: Bucket) -> None:
    config = VARIANTS[variant]
    width, heads, kv_heads, size = config.width, config.n_heads, config.n_kv_heads, config.head_dim
    projections = width * size * (heads + 2 * kv_heads) + heads * size * width
    attention = 2 * heads * size * (bucket.cache + bucket.rows)
    per_row = projections + attention + 3 * width * config.ffn_width
    assert lowered_body(config, bucket).macs == bucket.rows * config.n_layers * per_row


def test_multiply_adds_of_the_head() -> None:
    steps = [lower(step) for step in head_steps(GQA, [8])]
    assert [step.macs for step in steps] == [8 * GQA.vocab_size * GQA.width] * 2


@pytest.mark.parametrize(
    ("quant", "expected"),
    [
        ("float32", LoweredWeight((96, 64), 32)),
        ("int8", LoweredWeight((96, 64), 8)),
        ("int4", LoweredWeight((96, 64), 4)),
        ("int4_block32", LoweredWeight((96, 64), 4, 32)),
    ],
)
def test_weights_have_the_requested_bits(quant: Quant, expected: LoweredWeight) -> None:
    lowered = lowered_body(GQA, Bucket(4, 0), quant)
    assert lowered.weights["layers.1.ffn.gate"] == expected
    assert lowered.weights["layers.1.ffn_norm"] == LoweredWeight((64,), 32)
    head = lower(logits_step(GQA, 4, 0), quant).weights
    assert head == {"head[0:96]": LoweredWeight((96, 64), 32 if quant == "float32" else 8)}
    matrices = [weight for weight in lowered.weights.values() if len(weight.shape) == 2]
    assert {(weight.bits, weight.group) for weight in matrices} == {(expected.bits, expected.group)}
    numbers = sum(int(np.prod(weight.shape)) for weight in matrices)
    vectors = sum(weight.shape[0] for weight in lowered.weights.values() if len(weight.shape) == 1)
    assert lowered.weight_bytes == numbers * expected.bits // 8 + 4 * vectors


def test_a_row_must_be_whole_groups() -> None:
    message = r"quant is 'int4_block128', but layers\.0\.attention\.query has 64 inputs; "
    with pytest.raises(ValueError, match=message + "allowed: a multiple of 128"):
        lowered_body(GQA, Bucket(4, 0), "int4_block128")


def test_arguments_and_results_have_names_and_types() -> None:
    step = body_step(GQA, range(1, 3), Bucket(8, 32))
    lowered = lower(step)
    assert lowered.name == "rows8_cache32"
    assert {name: tensor.shape for name, tensor in lowered.inputs.items()} == step.inputs
    assert {tensor.dtype for tensor in lowered.inputs.values()} == {"f32"}
    rows = (GQA.n_kv_heads, 8, GQA.head_dim)
    expected = {"hidden": (8, 64)}
    expected |= {f"new_{kind}_{layer}": rows for layer in (1, 2) for kind in ("keys", "values")}
    assert {name: tensor.shape for name, tensor in lowered.outputs.items()} == expected
    outputs = lower(head_steps(GQA, [8])[0]).outputs
    assert [(name, tensor.shape, tensor.dtype) for name, tensor in outputs.items()] == [
        ("token", (8,), "i32"),
        ("confidence", (8,), "f32"),
    ]


def test_the_module_contains_no_path_of_this_machine() -> None:
    config = VARIANTS["all"]
    # Inner functions that were traced before carry their source locations.
    tokens = np.arange(8, dtype=np.int32)[None]
    jax.jit(forward, static_argnums=1)(random_params(config), config, tokens)
    before = jax.config.values["jax_traceback_in_locations_limit"]
    for step in (body_step(config, range(3), Bucket(8, 32)), *head_steps(config, [8])):
        module = lower(step).module
        for path in (Path(llada_jax.__file__).parent, Path(jax.__file__).parent, Path.cwd()):
            assert str(path).encode() not in module
        assert b".py" not in module
    assert jax.config.values["jax_traceback_in_locations_limit"] == before


def test_lowering_is_repeatable() -> None:
    """Exports of the same model give the same files, so an interrupted export can go on."""
    step = body_step(VARIANTS["all"], range(3), Bucket(8, 32))
    assert lower(step, "int8") == lower(step, "int8")


def test_scopes_name_the_layer_of_an_operation() -> None:
    lowered = lowered_body(GQA, Bucket(4, 32))
    for operation in lowered.operations:
        if operation.weight and operation.weight.startswith("layers."):
            assert operation.scope.startswith(f"layer_{operation.weight.split('.')[1]}")


def test_scopes_of_a_later_shard_name_the_layer() -> None:
    operations = lower(body_step(GQA, range(1, 3), Bucket(4, 32))).operations
    assert {operation.scope for operation in operations if operation.scope} == {
        "layer_1",
        "layer_2",
    }


REFUSED = {
    "sort": jnp.sort,
    "while": lambda x: jax.lax.fori_loop(0, 3, lambda i, carry: carry * x, x),
    "scatter": lambda x: x.at[jnp.array([1, 0])].add(1.0),
    "bf16": lambda x: jnp.dot(x.astype(jnp.bfloat16), x.astype(jnp.bfloat16))[None].astype("f4"),
    "f16": lambda x: (x.astype(jnp.float16) + jnp.float16(1)).astype(jnp.float32),
}


@pytest.mark.parametrize("target", ["litert", "qnn"])
@pytest.mark.parametrize("word", REFUSED)
def test_unsupported_operations_are_reported_with_their_scope(word: str, target: str) -> None:
    lowered = lower(step_of(REFUSED[word], 4))
    with pytest.raises(
        ValueError, match=rf"^{target} cannot take .* at part of tried \(.*f32\[4\]"
    ) as raised:
        check(lowered, target)
    assert f": {word} {UNSUPPORTED[target][word]}" in str(raised.value)


@pytest.mark.parametrize("word", ["dynamic_update_slice", "dynamic_slice"])
def test_only_npu_graphs_must_not_index_as_they_run(word: str) -> None:
    def update(x):
        return jax.lax.dynamic_update_slice(x, x[:1], (x[0].astype(jnp.int32),))

    def read(x):
        return jax.lax.dynamic_slice(x, (x[0].astype(jnp.int32),), (2,))

    lowered = lower(step_of({"dynamic_update_slice": update, "dynamic_slice": read}[word], 4))
    check(lowered, "litert")
    with pytest.raises(ValueError, match=rf"qnn cannot take {word} at part of tried .*: {word} sp"):
        check(lowered, "qnn")


def test_steps_are_float32_even_if_jax_uses_float64() -> None:
    """As a sampler with `confidence_dtype="float64"` does, which compiles while it runs."""
    with jax.enable_x64(True):
        for step in (body_step(GQA, range(3), Bucket(8, 0)), *head_steps(GQA, [8])):
            lowered = lower(step)
            check(lowered, "litert")
            arrays = [a for each in lowered.operations for a in (*each.inputs, *each.outputs)]
            assert not any(array.dtype == "f64" for array in arrays)


def test_an_operation_inside_a_branch_is_refused() -> None:
    function = lambda x: jax.lax.cond(x[0] > 0, jnp.sort, lambda same: same, x)  # noqa: E731
    with pytest.raises(ValueError, match="litert cannot take"):
        check(lower(step_of(function, 4)), "litert")


def test_a_mixture_of_experts_is_refused_with_the_operation_and_its_layer() -> None:
    lowered = lowered_body(MOE, Bucket(4, 32))
    for target in UNSUPPORTED:
        with pytest.raises(
            ValueError, match=rf"{target} cannot take sort at layer_1 of rows4_cach"
        ):
            check(lowered, target)
