"""An emulated phone behind the sampler, calibration, and context binaries in an export."""

import csv
import importlib.util
import tarfile
from dataclasses import replace

import numpy as np
import pytest

import llada_jax as lj
from llada_jax.api.denoisers import score_rules
from llada_jax.backend.exported import phone_contexts, verify
from llada_jax.backend.exported.manifest import Manifest
from llada_jax.backend.exported.verify import example
from llada_jax.backend.program import Recorder
from llada_jax.backend.protocol import Bucket
from llada_jax.backend.qnn.context import read_context, require_qnn
from llada_jax.backend.qnn.emulated_npu import EmulatedNpu, Emulator
from llada_jax.backend.steps import body_step, resized
from llada_jax.backend.weights import InMemory
from llada_jax.config import PhoneConfig
from llada_jax.evaluation.tasks import word_problems
from llada_jax.model.layers import HIDDEN_SCORE
from llada_jax.phones.calibration.measurements import read_timing
from llada_jax.sampler.generate import decode
from llada_jax.sampler.prompts import with_ids

SAMPLER = lj.SamplerConfig.from_flat(
    gen_length=32, block_length=32, steps=32, cache="blockwise", threshold=0.9
)
PHONES = PhoneConfig(socs=("SM8750",), precision="int8")


def _why_not() -> str | None:
    try:
        require_qnn()
    except (ImportError, RuntimeError) as error:
        return str(error)
    return None if importlib.util.find_spec("litert_converter") else "no litert_converter"


needs_qnn = pytest.mark.skipif(_why_not() is not None, reason=str(_why_not()))


@pytest.fixture(scope="module")
def tiny():
    return lj.load("tiny")


def prompt(model, index=3):
    assert model.tokenizer is not None
    question = word_problems.TASK.item(0, index, "test", difficulty=0).question
    return model.tokenizer.encode_chat([{"role": "user", "content": question}])


def recorded(model, limit=6):
    """Inputs of float32 forwards of one word problem."""
    from llada_jax.backend.litert.runtime import LiteRT
    from llada_jax.backend.program import OnDemandProgram
    from llada_jax.backend.session import Session

    program = OnDemandProgram(model.config, model.params, LiteRT())
    recorder = Recorder(program, Bucket(128, 128), limit)
    sampler = with_ids(SAMPLER, model.config)
    denoiser = Session(recorder, score_rules(sampler)).denoiser()
    result = decode(denoiser, None, model.config, [prompt(model)], sampler, loop="host")
    return recorder.samples, result


def test_a_forward_in_a_larger_bucket_and_back_is_the_same():
    model = lj.load("tiny").config
    small, large = Bucket(4, 32), Bucket(8, 64)
    inputs = example(model, range(model.n_layers), small)
    grown = resized(inputs, large)
    assert (grown["bias"][4:] == HIDDEN_SCORE).all()
    assert (grown["bias"][:, 32:64] == HIDDEN_SCORE).all()
    back = resized(grown, small)
    assert set(back) == set(inputs)
    for name, array in inputs.items():
        np.testing.assert_array_equal(back[name], array, name)


def test_padding_does_not_change_what_a_step_computes(tiny):
    layers, small, large = range(2), Bucket(4, 32), Bucket(8, 64)
    weights = InMemory(tiny.params)

    def run(bucket, inputs):
        step = body_step(tiny.config, layers, bucket)
        arrays = {name: next(weights.rows(name)) for name in step.weights}
        return step.function(arrays, inputs)

    inputs = example(tiny.config, layers, small)
    wanted, found = run(small, inputs), run(large, resized(inputs, large))
    np.testing.assert_allclose(found["hidden"][:4], wanted["hidden"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        found["new_keys_1"][:, :4], wanted["new_keys_1"], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"soc": "SM1234"}, "soc is 'SM1234'; allowed: 'SM8550', 'SM8650', 'SM8750', 'SM8850'"),
        ({"precision": "fp8"}, "precision is 'fp8'; allowed: 'fp16', 'int8'"),
        ({"precision": "a16w8"}, "precision is 'a16w8' without samples"),
    ],
)
def test_bad_input_of_the_emulator(arguments, message):
    with pytest.raises(ValueError, match=message):
        EmulatedNpu(**arguments)


@pytest.mark.slow
def test_recording_changes_nothing_and_keeps_the_inputs(tiny):
    pytest.importorskip("ai_edge_litert")
    pytest.importorskip("litert_converter")
    samples, result = recorded(tiny)
    plain = lj.generate(tiny, [prompt(tiny)], SAMPLER, backend="litert")
    np.testing.assert_array_equal(result.tokens, plain.tokens)
    assert 0 < len(samples) <= 6
    assert all(sample["hidden"].shape == (128, tiny.config.width) for sample in samples)
    # The prompt is cached at the second forward of the block, and its keys are in the sample.
    assert np.abs(samples[-1]["keys_0"]).sum() > 0


@pytest.mark.slow
@needs_qnn
def test_float16_of_a_phone_decodes_the_same_tokens(tiny):
    wanted = lj.generate(tiny, [prompt(tiny)], SAMPLER)
    found = lj.generate(tiny, [prompt(tiny)], SAMPLER, backend="qnn")
    np.testing.assert_array_equal(found.tokens, wanted.tokens)
    assert found.nfe == wanted.nfe


@needs_qnn
def test_static_quantization_from_recorded_forwards_stays_close(tiny):
    samples, _ = recorded(tiny)
    npu = EmulatedNpu("SM8750", "a16w8", samples)
    bucket = Bucket(32, 64)
    step = body_step(tiny.config, range(tiny.config.n_layers), bucket)
    inputs = resized(samples[-1], bucket)
    found = npu.compile([step], InMemory(tiny.params))[step.name].run(inputs)
    weights = InMemory(tiny.params)
    arrays = {name: next(weights.rows(name)) for name in step.weights}
    wanted = step.function(arrays, inputs)["hidden"]
    assert verify.relative_error(found["hidden"], np.asarray(wanted)) < 0.05
    assert npu.compiled[step.name].traffic[step.name].read > 0


@needs_qnn
def test_calibration_samples_must_match_the_inputs(tiny):
    step = body_step(tiny.config, range(tiny.config.n_layers), Bucket(32, 64))
    sample = example(tiny.config, range(1), Bucket(32, 64))
    with pytest.raises(
        ValueError, match=r"a sample has \['bias', .*\]; needed: \['bias', .*keys_3"
    ):
        EmulatedNpu("SM8750", "a16w8", [sample]).compile([step], InMemory(tiny.params))


@needs_qnn
@pytest.mark.slow
def test_the_providers_profile_is_read(tiny, tmp_path, monkeypatch):
    import onnxruntime

    written = {"profiling_level": "basic", "profiling_file_path": str(tmp_path / "runs.csv")}
    usual = onnxruntime.SessionOptions.add_provider_for_devices

    def profiled(options, devices, settings):
        usual(options, devices, settings | written)

    monkeypatch.setattr(onnxruntime.SessionOptions, "add_provider_for_devices", profiled)
    layers, bucket = range(1), Bucket(8, 32)
    step = body_step(tiny.config, layers, bucket)
    graph = EmulatedNpu().compile([step], InMemory(tiny.params))[step.name]
    for _ in range(3):
        graph.run(example(tiny.config, layers, bucket))
    found = read_timing(tmp_path / "runs.csv")
    assert found.runs == 3 and 0 < found.p5_ms <= found.median_ms <= found.p95_ms


@needs_qnn
@pytest.mark.slow
def test_an_export_carries_context_binaries_that_were_emulated(tmp_path):
    settings = lj.ExportConfig(quant="int8", rows=(8, 32), caches=(64,), phones=PHONES)
    manifest = lj.export("tiny", tmp_path / "phone", settings)
    (context,) = Manifest.load(tmp_path / "phone").contexts
    assert manifest.contexts[0]["file"] == context["file"]
    assert (tmp_path / "phone" / context["file"]).stat().st_size > 1e6
    assert context["soc"] == "SM8750" and context["emulated_error"] < 0.15
    signatures = {graph["signature"] for graph in context["graphs"]}
    assert signatures == {"rows8_cache64", "rows32_cache64"}
    assert context["ddr_bytes"]["rows32_cache64"]["read"] > 1e5
    page = (tmp_path / "phone" / "PUSH.md").read_text()
    assert f"adb push {context['compiled']} " in page
    for needed in ("libQnnHtpV79Stub.so", "libLiteRtDispatch_Qualcomm.so", "ADSP_LIBRARY_PATH",
                   "LD_LIBRARY_PATH", "htp_performance_mode=burst"):  # fmt: skip
        assert needed in page
    for graph in context["graphs"]:
        wrapper = f"context-SM8750-00-{graph['signature']}.onnx"
        assert f"adb push {wrapper} " in page
        assert context["file"].encode() in (tmp_path / "phone" / wrapper).read_bytes()
    compiled = (tmp_path / "phone" / context["compiled"]).read_bytes()
    assert (tmp_path / "phone" / context["file"]).read_bytes() in compiled


@needs_qnn
@pytest.mark.slow
def test_a_calibration_export_runs_on_the_emulated_npu_and_lists_its_graphs(tmp_path, tiny):
    phones = replace(PHONES, calibration=True)
    settings = lj.ExportConfig(quant="float32", rows=(32, 96), caches=(128,), phones=phones)
    folder = tmp_path / "phone"
    manifest = lj.export("tiny", folder, settings)
    sampler = lj.SamplerConfig.preset("llada_cpp", gen_length=32)
    exported, ids = lj.load(folder), [prompt(tiny)]
    found = lj.generate(exported, ids, sampler, backend="qnn")
    wanted = lj.generate(tiny, ids, sampler, backend="qnn")
    np.testing.assert_array_equal(found.tokens, wanted.tokens)

    with (folder / "calibration-rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    products = {row["precision"] for row in rows if row["graph"] == "product"}
    assert products == {"fp16", "int8", "int4"}
    for row in rows:
        compiled = read_context(folder / f"calibration-SM8750-{row['file']}.tflite")
        assert row["signature"] in {graph.signature for graph in compiled.graphs}
        assert f"{row['signature']}/outputs" in members(folder / f"golden-{row['file']}.tar")
    names = {file.name for file in manifest.files}
    assert {"calibration.sh", "golden-shard-00.tar", "context-SM8750-00.tflite"} < names
    for signature in ("rows32_cache128", "rows96_cache128"):
        assert f"{signature}/outputs" in members(folder / "golden-shard-00.tar")
        npu = Emulator(read_context(folder / f"emulated-SM8750-00-{signature}.tflite"))
        assert 0 < golden_error(folder / "golden-context-00.tar", signature, npu) < 0.1


def members(path):
    with tarfile.open(path) as archive:
        return {*archive.getnames()}


def golden_error(path, signature, npu):
    """Returns a graph's distance from its golden outputs, computed as in the script."""
    with tarfile.open(path) as archive:
        content = {each.name: archive.extractfile(each).read() for each in archive}
    inputs = {
        tensor.argument: np.frombuffer(
            content[f"{signature}/{tensor.argument}.raw"], np.float32
        ).reshape(tensor.shape)
        for tensor in npu.graph.inputs
    }
    found, names = npu.run(inputs), [tensor.argument for tensor in npu.graph.outputs]
    wanted = np.loadtxt(content[f"{signature}/outputs"].decode().splitlines())
    values = [found[names[int(output)]].flat[int(place)] for output, place, _ in wanted]
    return verify.relative_error(np.array(values), wanted[:, 2])


@needs_qnn
@pytest.mark.slow
def test_an_interrupted_export_does_not_compile_again(tmp_path, monkeypatch):
    settings = lj.ExportConfig(rows=(8,), caches=(32,), phones=PHONES)
    with monkeypatch.context() as patch:
        patch.setattr(verify, "check_head", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            lj.export("tiny", tmp_path / "phone", settings)
    assert not (tmp_path / "phone").exists()
    monkeypatch.setattr(phone_contexts, "compile_context", lambda *_, **__: 1 / 0)
    manifest = lj.export("tiny", tmp_path / "phone", settings)
    assert len(manifest.contexts) == 1


@pytest.mark.parametrize(
    ("phones", "rows", "message"),
    [
        (PhoneConfig(socs=("SM8750",), precision="a16w8"), (32,), "is 'a16w8' without samples"),
        (PhoneConfig(socs=("SM8750",), precision="a16w8"), (16, 32), "without samples|rows has 16"),
    ],
)
@needs_qnn
def test_uncompilable_models_are_refused_before_writing(phones, rows, message, tmp_path):
    settings = lj.ExportConfig(rows=rows, caches=(32,), phones=phones)
    with pytest.raises(ValueError, match=message):
        lj.export("tiny", tmp_path / "phone", settings)
    assert not list(tmp_path.iterdir())


def test_the_layers_of_llada_8b_take_sixteen_contexts():
    config = lj.ModelConfig(
        family="llada", vocab_size=126464, width=4096, n_layers=32, n_heads=32, n_kv_heads=32,
        head_dim=128, ffn_width=12288, rope_theta=5e5, norm_eps=1e-5, max_length=4096,
    )  # fmt: skip
    shards = phone_contexts.float32_shards(config)
    assert [len(shard) for shard in shards] == [2] * 16
    assert [layer for shard in shards for layer in shard] == list(range(32))
