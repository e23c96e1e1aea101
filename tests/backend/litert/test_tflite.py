"""The content of a `.tflite` file: the exact weights, stored once, and graphs that use them."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import llada_jax
from llada_jax.backend.litert import tflite
from llada_jax.backend.litert.install import litert_schema
from llada_jax.backend.lower import check, lower
from llada_jax.backend.protocol import Bucket, Step
from llada_jax.backend.qnn.context import op_name
from llada_jax.backend.steps import body_step, head_steps
from llada_jax.backend.weights import InMemory
from llada_jax.config import ModelConfig, Quant
from llada_jax.lowered import Lowered
from llada_jax.model.params import ModelParams
from llada_jax.model.quantize import QuantArray, quantize
from tests.backend.models import GQA, VARIANTS, quantized, random_params
from tests.backend.test_weights import unpack_int4

pytest.importorskip("ai_edge_litert", reason="needs the extra npu")
pytest.importorskip("litert_converter", reason="needs the extra npu")

WIDE = GQA.replace(width=128, ffn_width=256, n_layers=2, head_dim=32)
BUCKETS = (Bucket(1, 32), Bucket(8, 64))
KERNELS = {
    *("ADD", "SUB", "MUL", "DIV", "EXP", "RSQRT", "MEAN", "SUM", "MAXIMUM", "REDUCE_MAX"),
    *("LOGISTIC", "SOFTMAX", "NEG"),
    *("RESHAPE", "TRANSPOSE", "SLICE", "CONCATENATION"),
    *("FULLY_CONNECTED", "BATCH_MATMUL"),
    *("ARG_MAX", "GREATER", "SELECT", "CAST", "SELECT_V2"),
}
"""Operations that NPU compilers and LiteRT's fast CPU kernels support."""


class Constant(NamedTuple):
    """A weight as a file stores it."""

    place: tuple[int, int]
    """First byte and length."""
    shape: tuple[int, ...]
    type: str
    numbers: np.ndarray
    scale: np.ndarray | None
    block: int | None


def parse(path: Path) -> Any:
    return litert_schema().ModelT.InitFromPackedBuf(path.read_bytes(), 0)


def constants(path: Path) -> dict[str, dict[str, Constant]]:
    """Stored weights by signature and name, read with the schema's classes only."""
    data, model = path.read_bytes(), parse(path)
    return {
        signature.signatureKey.decode(): dict(
            _constants(data, model, model.subgraphs[signature.subgraphIndex], signature)
        )
        for signature in model.signatureDefs
    }


def _constants(
    data: bytes, model: Any, graph: Any, signature: Any
) -> Iterator[tuple[str, Constant]]:
    types = {v: k for k, v in vars(litert_schema().TensorType).items() if isinstance(v, int)}
    prefix = f"{signature.signatureKey.decode()}_"
    for tensor in graph.tensors:
        buffer = model.buffers[tensor.buffer]
        if not buffer.offset:
            continue
        kind = types[tensor.type]
        raw = np.frombuffer(data, np.uint8, buffer.size, buffer.offset)
        numbers = {
            "FLOAT32": lambda raw: raw.view(np.float32),
            "INT8": lambda raw: raw.view(np.int8),
            "INT4": unpack_int4,
        }[kind](raw).reshape(tensor.shape)
        scale, block = None, None
        details = tensor.quantization and tensor.quantization.details
        if details:
            scales = graph.tensors[details.scales]
            block = details.blockSize
            raw_scale = np.asarray(model.buffers[scales.buffer].data, np.uint8)
            scale = raw_scale.view(np.float16).reshape(scales.shape).astype(np.float32)
        elif kind != "FLOAT32":
            assert tensor.quantization.quantizedDimension == 0
            assert not np.asarray(tensor.quantization.zeroPoint).any()
            scale = np.asarray(tensor.quantization.scale, np.float32)[:, None]
        name = tensor.name.decode().removeprefix(prefix)
        place = (buffer.offset, buffer.size)
        yield name, Constant(place, tuple(tensor.shape), kind, numbers, scale, block)


def body_steps(
    config: ModelConfig, quant: Quant, buckets: Sequence[Bucket] = BUCKETS
) -> list[Lowered]:
    layers = range(config.n_layers)
    return [lower(body_step(config, layers, bucket), quant) for bucket in buckets]


def write(path: Path, steps: Sequence[Lowered], params: ModelParams) -> Path:
    tflite.write(path, steps, InMemory(params))
    return path


def leaves(params: ModelParams) -> Mapping[str, Any]:
    return InMemory(params)._leaves


def lowered_function(function: Callable[[jax.Array], jax.Array], name: str = "tried") -> Lowered:
    return lower(
        Step(name, lambda weights, inputs: {"out": function(inputs["x"])}, {}, {"x": (4,)})
    )


@pytest.mark.parametrize("bits", [8, 4])
def test_integers_of_a_quantized_model_arrive_unchanged(bits: int, tmp_path: Path) -> None:
    params = quantized(random_params(WIDE), bits)
    quant: Quant = "int8" if bits == 8 else "int4_block32"
    found = constants(write(tmp_path / "x.tflite", body_steps(WIDE, quant), params))
    assert found.keys() == {bucket.name for bucket in BUCKETS}
    matrices = {
        name: leaf
        for name, leaf in leaves(params).items()
        if name.startswith("layers") and isinstance(leaf, QuantArray)
    }
    assert len(matrices) == 7 * WIDE.n_layers
    for by_name in found.values():
        for name, leaf in matrices.items():
            stored = by_name[name]
            assert stored.type == f"INT{bits}"
            np.testing.assert_array_equal(stored.numbers, np.asarray(leaf.values, np.int8))
            scale = np.asarray(leaf.scale)
            # The format has float16 scales for blocks, and so does GGUF's Q4_0.
            expected = scale if bits == 8 else scale.astype(np.float16).astype(np.float32)
            np.testing.assert_array_equal(stored.scale, expected)
            assert stored.block == (None if bits == 8 else 32)


def test_block_scales_of_float16_arrive_unchanged(tmp_path: Path) -> None:
    """As in a Q4_0 checkpoint, and with integers that rounding would not reproduce."""
    rng = np.random.default_rng(0)

    def q4_0(leaf: Any) -> Any:
        if leaf.ndim == 1:
            return leaf
        values = rng.integers(-8, 8, leaf.shape).astype(ml_dtypes.int4)
        scale = rng.random((len(leaf), leaf.shape[1] // 32)).astype(np.float16)
        return QuantArray(jnp.asarray(values), jnp.asarray(scale, jnp.float32))

    params = random_params(WIDE)
    params = params._replace(layers=jax.tree.map(q4_0, params.layers))
    steps = body_steps(WIDE, "int4_block32", BUCKETS[:1])
    (by_name,) = constants(write(tmp_path / "x.tflite", steps, params)).values()
    for name, leaf in leaves(params).items():
        if isinstance(leaf, QuantArray):
            values = np.asarray(leaf.values, np.int8)
            np.testing.assert_array_equal(by_name[name].numbers, values)
            np.testing.assert_array_equal(by_name[name].scale, leaf.scale)


@pytest.mark.parametrize(
    ("quant", "bits", "group"),
    [("int8", 8, 128), ("int4", 4, 128), ("int4_block32", 4, 32), ("int4_block128", 4, 128)],
)
def test_floats_are_stored_like_quantize(quant: Quant, bits, group: int, tmp_path: Path) -> None:
    params = random_params(WIDE)
    steps = [lower(body_step(WIDE, range(2), BUCKETS[0]), quant)]
    (by_name,) = constants(write(tmp_path / "x.tflite", steps, params)).values()
    weight = np.asarray(params.layers[1].attention.query)
    expected = quantize(weight, bits, group)
    stored = by_name["layers.1.attention.query"]
    np.testing.assert_array_equal(stored.numbers, np.asarray(expected.values, np.int8))
    scale = np.asarray(expected.scale)
    if "block" in quant:
        scale = scale.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(stored.scale, scale)


def test_float32_weights_and_all_vectors_are_stored_bit_for_bit(tmp_path: Path) -> None:
    config = VARIANTS["all"]
    params = random_params(config)
    for quant in ("float32", "int8"):
        path = write(tmp_path / "x.tflite", body_steps(config, quant), params)
        for by_name in constants(path).values():
            for name, leaf in leaves(params).items():
                if name != "embedding" and (quant == "float32" or leaf.ndim == 1):
                    assert by_name[name].type == "FLOAT32"
                    np.testing.assert_array_equal(by_name[name].numbers, leaf)


@pytest.mark.parametrize("tied", [False, True])
def test_the_head_is_stored_in_chunks_with_eight_bits(
    tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llada_jax.backend.steps.HEAD_CHUNK", 40)
    config = GQA.replace(tied_embeddings=tied)
    params = random_params(config)
    steps = [lower(step, "int4") for step in head_steps(config, [1, 4])]
    found = constants(write(tmp_path / "x.tflite", steps, params))
    source, matrix = ("embedding", params.embedding) if tied else ("head", params.head)
    expected = quantize(np.asarray(matrix), 8)
    for step in steps:
        for name in step.weights:
            start, stop = map(int, name.removeprefix(source).strip("[]").split(":"))
            stored = found[step.name][name]
            np.testing.assert_array_equal(stored.numbers, expected.values[start:stop])
            np.testing.assert_array_equal(stored.scale, expected.scale[start:stop])


@pytest.mark.parametrize("quant", ["float32", "int8", "int4_block32"])
def test_buckets_of_one_file_share_their_weights(quant: Quant, tmp_path: Path) -> None:
    config = WIDE.replace(width=256, ffn_width=1024)
    params = random_params(config)
    one = write(tmp_path / "one.tflite", body_steps(config, quant, BUCKETS[:1]), params)
    all_of_them = write(
        tmp_path / "all.tflite", body_steps(config, quant, (*BUCKETS, Bucket(4, 32))), params
    )
    assert all_of_them.stat().st_size < 1.2 * one.stat().st_size
    places = [
        {name: constant.place for name, constant in by_name.items()}
        for by_name in constants(all_of_them).values()
    ]
    assert len(places) == 3 and places[0] == places[1] == places[2]
    spans = sorted(places[0].values())
    assert all(start % 64 == 0 for start, _ in spans)
    for (start, length), (following, _) in itertools.pairwise(spans):
        assert start + length <= following
    assert sum(spans[-1]) == all_of_them.stat().st_size


@pytest.mark.parametrize("quant", ["float32", "int8", "int4_block32"])
@pytest.mark.parametrize("variant", ["all"])
def test_each_matrix_feeds_a_fully_connected_kernel_as_it_is(
    variant: str, quant: Quant, tmp_path: Path
) -> None:
    """A transposed or dequantized weight would cost memory and time on every phone."""
    config = VARIANTS[variant]
    steps = [*body_steps(config, quant), *(lower(step, quant) for step in head_steps(config, [4]))]
    path = write(tmp_path / "x.tflite", steps, random_params(config))
    model = parse(path)
    fully_connected = litert_schema().BuiltinOperator.FULLY_CONNECTED
    for graph in model.subgraphs:
        users: Counter[int] = Counter()
        for operator in graph.operators:
            code = model.operatorCodes[operator.opcodeIndex].builtinCode
            for place, index in enumerate(operator.inputs):
                tensor = graph.tensors[index]
                if model.buffers[tensor.buffer].offset and len(tensor.shape) > 1:
                    assert (code, place) == (fully_connected, 1)
                    users[index] += 1
        assert users and set(users.values()) == {1}
        assert {op_name(model, operator) for operator in graph.operators} <= KERNELS


def test_attention_reads_the_cache_as_it_is(tmp_path: Path) -> None:
    """LiteRT would copy a reshaped cache in every step. A layer transposes queries, keys, values
    and outputs once each."""
    steps = body_steps(GQA, "int8", BUCKETS[1:])
    model = parse(write(tmp_path / "x.tflite", steps, random_params(GQA)))
    (signature,), (graph,) = model.signatureDefs, model.subgraphs
    inputs = {tensor.tensorIndex: tensor.name.decode() for tensor in signature.inputs}
    readers = Counter(
        (inputs[index].partition("_")[0], op_name(model, operator))
        for operator in graph.operators
        for index in operator.inputs
        if index in inputs
    )
    assert [name for kind, name in readers if kind in ("keys", "values")] == 2 * ["BATCH_MATMUL"]
    names = Counter(op_name(model, operator) for operator in graph.operators)
    assert names["TRANSPOSE"] == 4 * GQA.n_layers


def test_the_file_contains_no_path_of_this_machine(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tflite", body_steps(GQA, "int8"), random_params(GQA))
    content = path.read_bytes()
    for folder in (Path(llada_jax.__file__).parent, Path(jax.__file__).parent, tmp_path):
        assert str(folder).encode() not in content
    assert b".py" not in content


def test_equal_steps_and_weights_give_equal_files(tmp_path: Path) -> None:
    first, second = (
        write(tmp_path / name, body_steps(GQA, "int8"), random_params(GQA)).read_bytes()
        for name in ("first.tflite", "second.tflite")
    )
    assert first == second


def test_signatures_keep_the_names_of_the_step(tmp_path: Path) -> None:
    steps = body_steps(VARIANTS["all"], "int8")
    model = parse(write(tmp_path / "x.tflite", steps, random_params(VARIANTS["all"])))
    for step, signature in zip(steps, model.signatureDefs, strict=True):
        graph = model.subgraphs[signature.subgraphIndex]
        assert signature.signatureKey.decode() == step.name
        for ours, theirs, order in (
            (step.inputs, signature.inputs, graph.inputs),
            (step.outputs, signature.outputs, graph.outputs),
        ):
            assert {t.name.decode() for t in theirs} == ours.keys()
            assert {t.tensorIndex for t in theirs} == set(order)
            for tensor in theirs:
                shape = tuple(graph.tensors[tensor.tensorIndex].shape)
                assert shape == ours[tensor.name.decode()].shape


class Broken:
    """Weights that raise an error for one name."""

    def __init__(self, params: ModelParams, name: str, instead: Callable[[Any], Iterator[Any]]):
        self._weights, self._name, self._instead = InMemory(params), name, instead

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        pieces = self._weights.rows(name, start, stop)
        return self._instead(pieces) if name == self._name else pieces


def one_row_less(pieces: Iterator[Any]) -> Iterator[Any]:
    for piece in pieces:
        yield piece[:-1]


def interrupted(pieces: Iterator[Any]) -> Iterator[Any]:
    yield from pieces
    raise KeyboardInterrupt


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize(
    ("instead", "error", "message"),
    [
        (one_row_less, ValueError, r"layers\.1\.ffn\.up gave 6080 bytes; expected: 6144 for \[96"),
        (interrupted, KeyboardInterrupt, None),
    ],
)
def test_an_unfinished_file_does_not_exist(
    instead, error, message: str | None, existing: bool, tmp_path: Path
) -> None:
    path = tmp_path / "x.tflite"
    if existing:
        path.write_bytes(b"old")
    steps = body_steps(GQA, "int8")
    weights = Broken(random_params(GQA), "layers.1.ffn.up", instead)
    with pytest.raises(error, match=message):
        tflite.write(path, steps, weights)
    assert [file.name for file in tmp_path.iterdir()] == (["x.tflite"] if existing else [])
    assert not existing or path.read_bytes() == b"old"


def test_a_file_beyond_the_formats_limit_is_refused_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tflite, "MAX_FILE_BYTES", 100_000)
    steps = body_steps(GQA, "int8")
    message = r"x\.tflite would be \d{6} bytes; allowed: up to 100000 \(use smaller shards\)"
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "x.tflite", steps, random_params(GQA))
    assert not any(tmp_path.iterdir())


def test_the_length_that_is_checked_is_the_length_of_the_file(tmp_path: Path) -> None:
    steps = body_steps(WIDE, "int8", [Bucket(rows, 0) for rows in range(1, 5)])
    write(tmp_path / "x.tflite", steps, random_params(WIDE))
    counted = tflite.file_bytes(steps[0].weights, signatures=len(steps)) + len(
        tflite.convert(steps)
    )
    assert (tmp_path / "x.tflite").stat().st_size <= 1.01 * counted


def test_the_error_contains_the_converters_message() -> None:
    def odd(x):
        return jax.lax.population_count(x.astype(jnp.int32)).astype(jnp.float32)

    with pytest.raises(RuntimeError, match=r"(?s)^litert-converter failed: .*PopulationCount"):
        tflite.convert([lowered_function(odd)])
    garbage = dataclasses.replace(lowered_function(jnp.negative), module=b"no module")
    with pytest.raises(RuntimeError, match=r"^litert-converter failed: failed to deserialize"):
        tflite.convert([garbage])


def in_a_branch(x):
    double = jax.jit(lambda x: x + x)  # a separate function in the module
    return jax.lax.cond(x[0] > 0, double, lambda same: same, x)


@pytest.mark.parametrize(
    "function",
    [jax.scipy.special.erf, lambda x: jax.lax.top_k(x, 2)[0], in_a_branch],
    ids=["erf", "top_k", "branch"],
)
def test_operations_that_carry_their_decomposition_convert(function) -> None:
    """Exact GELU is `erf`; steps of other families would contain it."""
    steps = [lowered_function(function, name) for name in ("one", "two")]
    for step in steps:
        check(step, "litert")
    assert tflite.convert(steps)
