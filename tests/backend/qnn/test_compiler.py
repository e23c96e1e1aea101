"""From a step to a phone's NPU: small steps are converted, compiled and emulated here."""

import importlib
import importlib.util
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llada_jax.backend.qnn import compiler
from llada_jax.backend.qnn.compiler import Compilation, Traffic, compile_context
from llada_jax.backend.qnn.context import SOCS, NpuGraph, read_context, require_qnn
from llada_jax.backend.qnn.emulated_npu import Emulator
from llada_jax.backend.qnn.quantizer import quantize
from llada_jax.backend.silenced import silenced
from llada_jax.config import Precision
from llada_jax.phones.profile import load_profile

ROWS = (8, 24)
WIDTH = 128
KEYS = 32
SOC = "SM8750"

Arrays = dict[str, jax.Array]
Step = Callable[[Arrays], Arrays]
Shapes = dict[str, tuple[int, ...]]


def _why_not() -> str | None:
    try:
        require_qnn()
    except (ImportError, RuntimeError) as error:
        return str(error)
    return None if importlib.util.find_spec("litert_converter") else "no litert_converter"


needs_qnn = pytest.mark.skipif(_why_not() is not None, reason=str(_why_not()))


def _of_converter(module: str) -> Any:
    return importlib.import_module(f"litert_converter.{module}")


def to_tflite(steps: Mapping[str, tuple[Step, Shapes]]) -> bytes:
    """A .tflite file with a signature for each step; values that a step closes over are constants.

    JAX sorts the names of a dictionary, so these name arguments and results in order.
    """
    converter, ir = _of_converter("converter_api_ext"), _of_converter("mlir.ir")
    passes, stablehlo = _of_converter("mlir.passmanager"), _of_converter("mlir.dialects.stablehlo")
    context = ir.Context()
    converter.prepare_mlir_context(context)
    with context, ir.Location.unknown():
        modules = []
        for name, (step, shapes) in steps.items():
            inputs = {key: jax.ShapeDtypeStruct(shape, "float32") for key, shape in shapes.items()}
            exported = jax.export.export(jax.jit(step, keep_unused=True), platforms=["cpu"])(inputs)
            module = stablehlo.deserialize_portable_artifact(
                context, exported.mlir_module_serialized
            )
            (main,) = [
                function
                for function in module.body.operations
                if ir.StringAttr(function.attributes["sym_name"]).value == "main"
            ]
            outputs = sorted(jax.eval_shape(step, inputs))
            converter.set_signature(module.operation, name, sorted(inputs), outputs)
            main.attributes["sym_name"] = ir.StringAttr.get(f"{name}_main")
            modules.append(module)
        merged = converter.merge_modules(modules) if len(modules) > 1 else modules[0]
        settings = converter.ConvertToTFLConfig()
        settings.model_origin_framework = "JAX"
        converter.run_convert_to_tfl_passes(merged, passes.PassManager(), settings)
        return bytes(converter.export_flatbuffer_to_bytes(merged.operation))


def random(seed: int, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {
        name: generator.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()
    }


def attend(weights: Mapping[str, np.ndarray], inputs: Arrays) -> Arrays:
    """A step in small: a norm, a softmax over products of activations, and a head."""
    x, keys = inputs["x"], inputs["keys"]
    normed = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * weights["norm"]
    query = jnp.einsum("ri,oi->ro", normed, weights["query"]) / np.float32(WIDTH)
    share = jax.nn.softmax(jnp.einsum("rd,td->rt", query, keys), axis=-1)
    mixed = jnp.einsum("ri,oi->ro", share @ keys, weights["out"])
    y = x + mixed / np.float32(np.sqrt(WIDTH))
    logits = jnp.einsum("ri,vi->rv", y, weights["head"]) / np.float32(np.sqrt(WIDTH))
    return {"y": y, "logits": logits, "confidence": jax.nn.softmax(logits).max(axis=-1)}


def update(inputs: Arrays) -> Arrays:
    """Writes rows into a cache, which the NPU cannot do, between operations that it can do."""
    rows = jnp.tanh(inputs["rows"])
    return {"cache": 2 * jax.lax.dynamic_update_slice(inputs["cache"], rows, (0, 0))}


def shapes_of(rows: int) -> Shapes:
    return {"x": (rows, WIDTH), "keys": (KEYS, WIDTH)}


def inputs_of(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    return random(seed, **shapes_of(rows))


def relative_error(got: np.ndarray, want: jax.Array) -> float:
    """Root mean square of the difference, relative to the root mean square of `want`."""
    return float(np.sqrt(np.mean((got - want) ** 2) / np.mean(np.asarray(want) ** 2)))


WEIGHTS = random(7, query=(WIDTH, WIDTH), out=(WIDTH, WIDTH), head=(WIDTH, WIDTH), norm=(WIDTH,))
SAMPLES = {"rows_8": [inputs_of(8, seed) for seed in (1, 2, 3)]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Holds steps.tflite, with a signature for each number of rows, and update.tflite."""
    folder = tmp_path_factory.mktemp("qnn")
    step = partial(attend, WEIGHTS)
    steps = to_tflite({f"rows_{rows}": (step, shapes_of(rows)) for rows in ROWS})
    (folder / "steps.tflite").write_bytes(steps)
    (folder / "one.tflite").write_bytes(to_tflite({"rows_8": (step, shapes_of(8))}))
    shapes = {"rows": (8, WIDTH), "cache": (KEYS, WIDTH)}
    (folder / "update.tflite").write_bytes(to_tflite({"step": (update, shapes)}))
    return folder


@pytest.fixture(scope="module")
def compiled(folder) -> Compilation:
    return compile_context(folder / "steps.tflite", SOC)


@pytest.fixture(scope="module")
def one_compiled(folder) -> Compilation:
    return compile_context(folder / "one.tflite", SOC)


@pytest.fixture(autouse=True)
def nothing_is_printed(capfd):
    yield
    assert capfd.readouterr() == ("", "")


def size(made: Compilation) -> int:
    return len(made.context.binary)


def worst_error(emulator: Emulator) -> float:
    """The worst error of the emulated outputs against JAX."""
    inputs = inputs_of(int(emulator.graph.signature.removeprefix("rows_")))
    got, want = emulator.run(inputs), attend(WEIGHTS, inputs)
    assert got.keys() == want.keys()
    assert all(output.dtype == np.float32 for output in got.values())
    return max(relative_error(got[name], want[name]) for name in want)


@needs_qnn
@pytest.mark.parametrize("soc", SOCS)
def test_every_soc_matches_jax(soc, folder):
    context = compile_context(folder / "one.tflite", soc).context
    assert context.soc == soc
    emulator = Emulator(context)
    assert 1e-6 < worst_error(emulator) < 1e-2  # not exact: the NPU has float16
    assert emulator.allocate("keys").shape == (KEYS, WIDTH)


@needs_qnn
def test_the_compilers_report_is_kept(compiled):
    weights = 2 * sum(weight.size for weight in WEIGHTS.values())  # bytes, in float16
    assert size(compiled) > 2 * weights  # a copy for each signature
    assert compiled.seconds > 0
    assert compiled.qnn_version.startswith("2.")
    assert set(compiled.traffic) == {"rows_8", "rows_24"}
    for rows in ROWS:
        traffic = compiled.traffic[f"rows_{rows}"]
        assert traffic.read > weights
        assert traffic.write > 2 * rows * 2 * WIDTH  # y and logits
        assert traffic.spill == traffic.fill == 0  # the NPU's memory has room for all of it


@needs_qnn
@pytest.mark.slow
def test_activations_that_exceed_vtcm_are_moved_as_the_device_model_prices(folder, tmp_path):
    rows, width = 512, 4096
    weights = random(1, w=(width, width))["w"]
    step = lambda inputs: {"y": jnp.einsum("ri,oi->ro", inputs["x"], weights)}  # noqa: E731
    shapes = {"x": (rows, width)}
    (tmp_path / "float.tflite").write_bytes(to_tflite({"step": (step, shapes)}))
    quantize(tmp_path / "float.tflite", tmp_path / "a16w4.tflite", "a16w4",
             {"step": [random(2, **shapes)]})  # fmt: skip
    traffic = compile_context(tmp_path / "a16w4.tflite", SOC).traffic["step"]
    passes = (traffic.spill + traffic.fill) / (2 * rows * 2 * width)
    assert passes == pytest.approx(load_profile(SOC).npu["vendor"].spill_passes, rel=0.2)


def test_traffic_is_read_by_graph():
    log = """
     0.0ms [  INFO ]   <I> QnnGraph_create started for graph qnn_partition_0
     ====== DDR bandwidth summary ======
     0.0ms [  INFO ]  spill_bytes=1
     0.0ms [  INFO ]  fill_bytes=2
     0.0ms [  INFO ]  write_total_bytes=3
     0.0ms [  INFO ]  read_total_bytes=4
     0.0ms [  INFO ]   <I> QnnGraph_create started for graph qnn_partition_1
     0.0ms [  INFO ]  spill_bytes=5
    """
    graphs = [NpuGraph(f"rows_{rows}", f"qnn_partition_{i}", (), ()) for i, rows in enumerate(ROWS)]
    assert compiler._traffic(log, graphs[:1]) == {"rows_8": Traffic(1, 2, 3, 4)}
    with pytest.raises(RuntimeError, match="no DDR summary of qnn_partition_1"):
        compiler._traffic(log, graphs)


@needs_qnn
def test_contexts_name_their_graphs_and_tensors(compiled):
    context = compiled.context
    assert len({graph.name for graph in context.graphs}) == len(ROWS)
    for graph in context.graphs:
        rows = int(graph.signature.removeprefix("rows_"))
        assert {tensor.argument: tensor.shape for tensor in graph.inputs} == shapes_of(rows)
        assert all(tensor.dtype == np.float32 for tensor in graph.inputs + graph.outputs)


@needs_qnn
def test_shared_weights_are_stored_once_and_not_emulated(folder, compiled):
    shared = compile_context(folder / "steps.tflite", SOC, weight_sharing=True)
    copy = 2 * sum(weight.size for weight in WEIGHTS.values())
    assert size(shared) < size(compiled) - 0.9 * copy
    assert shared.traffic == compiled.traffic
    with pytest.raises(ValueError, match="the context has 2 graphs; allowed: one"):
        Emulator(shared.context)


@needs_qnn
@pytest.mark.parametrize(
    ("precision", "bound"),
    [("int8", 2e-2), ("a16w8", 2e-2), ("a8w8", 5e-2), ("a16w4", 0.2)],
)
def test_low_precisions_stay_close(precision, bound, folder, one_compiled, tmp_path):
    quantized = tmp_path / "quantized.tflite"
    quantize(folder / "one.tflite", quantized, precision, SAMPLES)
    assert quantized.stat().st_size < (folder / "one.tflite").stat().st_size / 2
    made = compile_context(quantized, SOC)
    assert size(made) < size(one_compiled)
    assert worst_error(Emulator(made.context)) < bound


@needs_qnn
def test_fp16_needs_no_quantization(folder, tmp_path):
    quantize(folder / "one.tflite", tmp_path / "out.tflite", "fp16")
    assert (tmp_path / "out.tflite").read_bytes() == (folder / "one.tflite").read_bytes()


def move_constants_out(tflite: bytes) -> bytes:
    """The same file with its constants after the flatbuffer, each at a multiple of 64."""
    import flatbuffers
    from ai_edge_litert.schema_py_generated import ModelT

    model: Any = ModelT.InitFromPackedBuf(tflite, 0)
    large = [
        buffer for buffer in model.buffers if buffer.data is not None and len(buffer.data) >= WIDTH
    ]
    constants = [bytes(buffer.data) for buffer in large]
    for buffer, constant in zip(large, constants, strict=True):
        # The offset is not yet known, but fields of value 0 would be left out of the flatbuffer.
        buffer.data, buffer.offset, buffer.size = None, 1, len(constant)

    def packed() -> bytes:
        builder = flatbuffers.Builder()
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    start, tail = len(packed()), b""
    for buffer, constant in zip(large, constants, strict=True):
        tail += b"\0" * (-(start + len(tail)) % 64)
        buffer.offset = start + len(tail)
        tail += constant
    return packed() + tail


@needs_qnn
@pytest.mark.parametrize("precision", get_args(Precision))
def test_constants_may_follow_the_flatbuffer(precision, folder, tmp_path):
    inside = (folder / "one.tflite").read_bytes()
    inputs, results = inputs_of(8), []
    for name, tflite in (("inside", inside), ("outside", move_constants_out(inside))):
        source, quantized = (tmp_path / f"{name}.{kind}.tflite" for kind in "sq")
        source.write_bytes(tflite)
        quantize(source, quantized, precision, SAMPLES)
        results.append(Emulator(compile_context(quantized, SOC).context).run(inputs))
    assert all(np.array_equal(results[0][name], results[1][name]) for name in results[0])


@needs_qnn
def test_integers_of_a_graph_are_converted(folder, tmp_path):
    from ai_edge_quantizer.qtyping import TFLOperationName
    from ai_edge_quantizer.quantizer import Quantizer

    quantized = tmp_path / "quantized.tflite"
    with silenced("quantizing"):
        quantizer = Quantizer(str(folder / "one.tflite"))
        quantizer.add_static_config(".*", TFLOperationName.ALL_SUPPORTED, 8, 8)
        ranges = quantizer.calibrate(SAMPLES)
        quantized.write_bytes(quantizer.quantize(ranges).quantized_model)
    emulator = Emulator(compile_context(quantized, SOC).context)
    graph = emulator.graph
    assert {tensor.dtype for tensor in graph.inputs + graph.outputs} == {np.dtype(np.int8)}
    assert worst_error(emulator) < 0.2


@needs_qnn
def test_ops_unsupported_by_the_npu_are_named(folder):
    with pytest.raises(ValueError, match=r"'step': 2 partitions, outside: 1 DYNAMIC_UPDATE_SLICE"):
        compile_context(folder / "update.tflite", SOC)


@needs_qnn
def test_a_failure_of_the_compiler_has_its_log(tmp_path):
    broken = tmp_path / "broken.tflite"
    broken.write_bytes(b"this is no flatbuffer")
    with pytest.raises(RuntimeError, match=r"(?s)broken.tflite for SM8750 failed .*Failed to load"):
        compile_context(broken, SOC)
    assert list(tmp_path.iterdir()) == [broken]


@needs_qnn
def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.tflite"):
        compile_context(tmp_path / "absent.tflite", SOC)


@needs_qnn
def test_an_unknown_soc_is_refused(folder):
    with pytest.raises(ValueError, match="soc is 'SM8250'; allowed: 'SM8550', 'SM8650'"):
        compile_context(folder / "one.tflite", "SM8250")


@needs_qnn
def test_only_compiled_files_have_contexts(folder):
    with pytest.raises(ValueError, match="ops that are not compiled"):
        read_context(folder / "one.tflite")
    (folder / "text.tflite").write_text("neither")
    with pytest.raises(ValueError, match=r"is no \.tflite file"):
        read_context(folder / "text.tflite")


@needs_qnn
@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": inputs_of(8)["x"]}, "'rows_8' lacks inputs: keys"),
        (inputs_of(24), r"input 'x' has shape \(24, 128\); needed: \(8, 128\)"),
    ],
)
def test_inputs_must_match_the_graph(inputs, message, one_compiled):
    with pytest.raises(ValueError, match=message):
        Emulator(one_compiled.context).run(inputs)


ENTRIES = {
    "quantize": lambda: quantize(Path("a.tflite"), Path("b.tflite"), "int8"),
    "compile_context": lambda: compile_context(Path("a.tflite"), SOC),
    "read_context": lambda: read_context(Path("a.tflite")),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_error_without_the_extra_names_it(entry, monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"no ai_edge_litert,.*pip install 'llada_jax\[qnn\]'"):
        ENTRIES[entry]()


@pytest.mark.parametrize(
    ("system", "machine", "libc"),
    [
        ("Linux", "x86_64", ("glibc", "2.31")),
        ("Linux", "x86_64", ("", "")),
        ("Linux", "aarch64", ("glibc", "2.36")),
        ("Darwin", "x86_64", ("", "")),
    ],
)
def test_the_error_on_other_systems_names_the_supported_one(system, machine, libc, monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)
    with pytest.raises(RuntimeError, match=rf"glibc 2.35 or newer; this is {system} on {machine}"):
        require_qnn()


def test_import_loads_no_tool():
    tools = ("ai_edge_litert", "ai_edge_quantizer", "onnx", "onnxruntime", "onnxruntime_qnn")
    ours = "llada_jax.backend.qnn.emulated_npu, llada_jax.backend.qnn.quantizer"
    code = f"import sys, {ours}; print(sys.modules.keys() & set({tools}))"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert finished.stdout == "set()\n", finished.stderr
