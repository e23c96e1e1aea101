"""Exported folders: their content, decoding from them, and failures during an export."""

import dataclasses
import functools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import llada_jax as lj
from llada_jax.backend.exported import writer
from llada_jax.backend.exported.contents import buckets, layer_bytes, outer_bytes, shard_layers
from llada_jax.backend.exported.manifest import Manifest
from llada_jax.backend.exported.writer import HOST
from llada_jax.backend.litert.runtime import LiteRT, tflite
from llada_jax.backend.session import FORBIDDEN_LOGIT
from llada_jax.checkpoint import fingerprint, model_path, save_huggingface
from llada_jax.config import ExportConfig, Quant
from llada_jax.io.locked import locked
from llada_jax.model.head import score_rows
from tests.backend.litert.test_tflite import constants
from tests.backend.models import GQA, random_params
from tests.checkpoint.folders import GOLDENS, write_shards
from tests.checkpoint.test_gguf import write_gguf

pytest.importorskip("ai_edge_litert", reason="needs the extra npu")
pytest.importorskip("litert_converter", reason="needs the extra npu")

MODEL = GQA.replace(n_layers=2)
SMALL = ExportConfig(quant="int8", rows=(4, 16), caches=(32,))
SHORT = lj.SamplerConfig.from_flat(gen_length=8, block_length=4, steps=4)
PROMPT = [5, 20, 31, 7, 9]

export = functools.partial(lj.export, verify=False)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of two layers in three files."""
    folder = tmp_path_factory.mktemp("source")
    save_huggingface(folder / "whole", MODEL, random_params(MODEL), "float32")
    tensors = load_file(folder / "whole" / "model.safetensors")
    write_shards(folder / "shards", {}, tensors, 3)
    shutil.copy(folder / "whole" / "config.json", folder / "shards" / "config.json")
    return folder / "shards"


@pytest.fixture(scope="module")
def xla(source: Path) -> lj.Model:
    return lj.load(source)


def two_shards(quant: Quant = "int8", rows: tuple[int, ...] = (4,)) -> ExportConfig:
    """Room for one layer in a file."""
    settings = ExportConfig(quant=quant, rows=rows, caches=(32,))
    one_layer = layer_bytes(MODEL, settings)[0]
    return dataclasses.replace(settings, shard_bytes=one_layer + 100)


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


@pytest.fixture(scope="module")
def exported(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In float32, two shards."""
    folder = tmp_path_factory.mktemp("exported") / "model"
    lj.export(source, folder, two_shards("float32", (4, 16)))
    return folder


def test_a_folder_decodes_as_the_checkpoint_does(exported: Path, xla: lj.Model) -> None:
    model = lj.load(exported)
    assert model.artifact == exported and model.params is None
    assert model.config == xla.config
    config = SHORT.replace(cache="dual")
    expected = lj.generate(xla, [PROMPT], config, trace=True, loop="host")
    found = lj.generate(model, [PROMPT], config, backend="litert", trace=True)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    confidences = [run.trace.event_confidence for run in (found, expected)]
    np.testing.assert_allclose(*confidences, rtol=1e-4)


@pytest.mark.slow
def test_a_folder_runs_other_rules_and_batches(exported: Path, xla: lj.Model) -> None:
    """The head's logits in chunks, and two canvases on the same executables."""
    prompts, config = [PROMPT, PROMPT[:2]], SHORT.replace(temperature=0.8, cache="dual")
    expected = lj.generate(xla, prompts, config, seed=[3, 4], loop="host")
    found = lj.generate(lj.load(exported), prompts, config, seed=[3, 4], backend="litert")
    np.testing.assert_array_equal(found.tokens, expected.tokens)


@pytest.fixture(scope="module")
def exported_tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    export("tiny", folder, ExportConfig(quant="int8", rows=(8, 64), caches=(64,)))
    return folder


@pytest.mark.slow
def test_the_bundled_model_in_int8(exported_tiny: Path) -> None:
    """The file contains the same integers as a model that is loaded as int8."""
    expected, found = lj.load("tiny", "int8"), lj.load(exported_tiny)
    assert found.tokenizer is not None and expected.tokenizer is not None
    question = "Anna had 4 apples. She bought 5 more apples. How many apples does Anna have?"
    prompt = found.tokenizer.encode_chat([{"role": "user", "content": question}])
    assert prompt == expected.tokenizer.encode_chat([{"role": "user", "content": question}])
    config = lj.SamplerConfig.from_flat(gen_length=16, block_length=8, steps=8, cache="dual")
    ours, theirs = (
        lj.generate(model, [prompt], config, backend="litert", trace=True)
        for model in (found, expected)
    )
    assert len(np.unique(theirs.generated[0])) > 5, "the model should say something"
    np.testing.assert_array_equal(ours.tokens, theirs.tokens)
    confidences = [run.trace.event_confidence for run in (ours, theirs)]
    np.testing.assert_allclose(*confidences, rtol=1e-3)


def test_stored_weights_have_the_expected_size(exported_tiny: Path) -> None:
    layers = sum(leaf.size for leaf in jax.tree.leaves(lj.load("tiny").params.layers))
    written = sum(shard.file.bytes for shard in Manifest.load(exported_tiny).shards)
    assert layers < written < 1.4 * layers, "beside the numbers there are scales and two graphs"


def test_files_of_an_export(exported: Path, source: Path) -> None:
    manifest = Manifest.load(exported)
    listed = {file.name for file in manifest.files} | {"manifest.json", "host"}
    assert {name for name in names(exported) if name != "packed"} == listed
    assert contents(exported / "host") == contents(HOST)
    schema = json.loads((HOST / "manifest.schema.json").read_text())
    jsonschema.validate(json.loads((exported / "manifest.json").read_text()), schema)
    for file in manifest.files:
        assert file.check(exported) == exported / file.name
    assert manifest.source == str(source)
    assert manifest.settings == two_shards("float32", (4, 16))
    assert [(shard.start, shard.stop) for shard in manifest.shards] == [(0, 1), (1, 2)]
    assert manifest.embedding_dtype == "float32"
    assert {"jax", "litert-converter", "ai-edge-litert", "llada_jax"} == manifest.versions.keys()
    names_of_signatures = {bucket.name for bucket in buckets(manifest.settings)}
    assert names_of_signatures == {"rows4_cache32", "rows16_cache32"}
    for shard in manifest.shards:
        assert LiteRT().open(exported / shard.file.name).keys() == names_of_signatures


def test_every_signature_was_run_against_jax(exported: Path) -> None:
    checks = Manifest.load(exported).checks
    bodies = {(f"shard-{i:02}.tflite", f"rows{r}_cache32") for i in range(2) for r in (4, 16)}
    heads = {("head.tflite", name) for r in (4, 16) for name in (f"rows{r}", f"rows{r}_chunk0")}
    assert {(check["file"], check["signature"]) for check in checks} == bodies | heads
    assert all(0 <= check["error"] < 1e-5 for check in checks)


def test_the_contract_is_all_that_a_host_needs(exported: Path, xla: lj.Model) -> None:
    """Runs a forward, and a second one of fewer rows, from the manifest with NumPy only."""
    manifest = Manifest.load(exported)
    model, (n_rows, n_cached) = manifest.model, (16, 32)
    embedding = np.fromfile(exported / "embedding.bin", manifest.embedding_dtype)
    embedding = embedding.reshape(model.vocab_size, model.width)
    runtime = LiteRT()
    shards = [runtime.open(exported / shard.file.name) for shard in manifest.shards]
    head = runtime.open(exported / "head.tflite")
    table = np.fromfile(exported / manifest.contract["rotation"], np.float32)
    table = table.reshape(2, manifest.contract["positions"], model.rotary_dims // 2)
    shape = (model.n_kv_heads, n_cached, model.head_dim)
    cache = {f"{kind}_{i}": np.zeros(shape, np.float32) for kind in ("keys", "values")
             for i in range(model.n_layers)}  # fmt: skip

    def forward(rows: int, canvas: list[int], positions: list[int], cached: list[int]):
        """Returns the outputs of the rows, including keys and values."""
        count = len(positions)
        bias = np.full((rows, n_cached + rows), -30000, np.float32)
        bias[:count, cached] = 0
        bias[:count, n_cached : n_cached + count] = 0
        inputs = {"hidden": embedding[[canvas[p] for p in positions]], "bias": bias,
                  "cos": table[0, positions], "sin": table[1, positions]}  # fmt: skip
        for name in ("hidden", "cos", "sin"):
            values = inputs[name].astype(np.float32)
            inputs[name] = np.pad(values, ((0, rows - count), (0, 0)))
        fresh = {}
        for shard in shards:
            out = shard[f"rows{rows}_cache{n_cached}"].run(inputs | cache)
            fresh |= {name.removeprefix("new_"): a.copy() for name, a in out.items()}
            inputs["hidden"] = out["hidden"].copy()
        penalty = np.zeros(model.vocab_size, np.float32)
        penalty[model.mask_id] = FORBIDDEN_LOGIT
        out = head[f"rows{rows}"].run({"hidden": inputs["hidden"], "penalty": penalty})
        return fresh, out["token"][:count].copy(), out["confidence"][:count].copy()

    def expected(canvas: list[int], positions: list[int]) -> tuple[np.ndarray, np.ndarray]:
        logits = np.array(lj.forward(xla, [canvas]))[0, positions]
        logits[:, model.mask_id] = -np.inf
        shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return logits.argmax(axis=-1), shares.max(axis=-1) / shares.sum(axis=-1)

    mask = model.mask_id
    assert mask is not None
    canvas = [*PROMPT, mask, mask, mask]
    everything = list(range(8))
    fresh, token, confidence = forward(n_rows, canvas, everything, [])
    for found, wanted in zip((token, confidence), expected(canvas, everything), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4)
    for name, array in cache.items():
        array[:, :5] = fresh[name][:, :5]
    again = forward(4, canvas, [5, 6, 7], list(range(5)))
    np.testing.assert_array_equal(again[1], token[5:])
    np.testing.assert_allclose(again[2], confidence[5:], rtol=1e-4)
    for name, array in again[0].items():
        if name in cache:
            np.testing.assert_allclose(array[:, :3], fresh[name][:, 5:8], rtol=0, atol=1e-5)


@given(
    n_layers=st.integers(1, 40),
    room=st.floats(1, 45),
    quant=st.sampled_from(["float32", "int8", "int4_block32"]),
)
def test_layers_are_cut_evenly_into_the_fewest_files(
    n_layers: int, room: float, quant: Quant
) -> None:
    model = MODEL.replace(n_layers=n_layers)
    size = layer_bytes(MODEL, ExportConfig(quant=quant))[0]
    settings = ExportConfig(quant=quant, shard_bytes=int(room * size))
    shards = shard_layers(model, settings)
    assert [layer for layers in shards for layer in layers] == list(range(n_layers))
    lengths = [len(layers) for layers in shards]
    assert max(lengths) - min(lengths) <= 1
    assert max(lengths) * size <= settings.shard_bytes
    assert len(shards) == -(-n_layers // min(n_layers, int(room * size) // size))


def test_the_division_into_shards_changes_nothing(
    exported: Path, source: Path, tmp_path: Path
) -> None:
    export(source, tmp_path / "one", ExportConfig(quant="float32", rows=(4, 16), caches=(32,)))
    assert len(Manifest.load(tmp_path / "one").shards) == 1
    runs = [
        lj.generate(lj.load(folder), [PROMPT], SHORT, backend="litert", trace=True)
        for folder in (exported, tmp_path / "one")
    ]
    assert runs[0].trace.same_decoding(runs[1].trace)


@pytest.mark.parametrize(
    "kind",
    [
        "Q4_0",
        pytest.param("F16", marks=pytest.mark.slow),
        pytest.param("Q8_0", marks=pytest.mark.slow),
    ],
)
def test_a_gguf_file(kind: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", "llada-gqa", kind)
    export(path, tmp_path / "model", ExportConfig(quant="float32", rows=(16,), caches=(32,)))
    config = SHORT.replace(mask_id=319)
    expected = lj.generate(lj.load(path, "float32"), [PROMPT], config, backend="litert")
    found = lj.generate(lj.load(tmp_path / "model"), [PROMPT], config, backend="litert")
    np.testing.assert_array_equal(found.tokens, expected.tokens)


def test_tied_embeddings(tmp_path: Path) -> None:
    config = MODEL.replace(tied_embeddings=True)
    save_huggingface(tmp_path / "source", config, random_params(config), "bfloat16")
    export(tmp_path / "source", tmp_path / "model", SMALL)
    assert Manifest.load(tmp_path / "model").embedding_dtype == "bfloat16"
    result = lj.generate(lj.load(tmp_path / "model"), [PROMPT], SHORT, backend="litert")
    plain = lj.load(tmp_path / "source", "int8")
    expected = lj.generate(plain, [PROMPT], SHORT, backend="litert")
    np.testing.assert_array_equal(result.tokens, expected.tokens)


INTERRUPTIONS: dict[str, Callable[[], tuple[Any, str]]] = {
    "second_shard": lambda: (tflite, "write"),
    "head": lambda: (tflite, "write"),
    "embedding": lambda: (writer, "_write_embedding"),
    "check": lambda: (writer, "_check_files"),
    "manifest": lambda: (Manifest, "save"),
    "rename": lambda: (Path, "rename"),
}


def interrupted_from_call(number: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which an interruption ends at a call."""
    calls = iter(range(1, 100))

    def interrupted(*arguments: Any) -> Any:
        if next(calls) == number:
            raise KeyboardInterrupt
        return real(*arguments)

    return interrupted


CALLS = {"second_shard": 2, "head": 3}
"""Which call of the function is interrupted; by default the first."""


@pytest.fixture(scope="module")
def uninterrupted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted") / "model"
    export(source, folder, two_shards())
    return folder


@pytest.mark.parametrize("place", INTERRUPTIONS)
def test_an_interrupted_export_goes_on_where_it_stopped(
    place: str, source: Path, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "model"
    owner, name = INTERRUPTIONS[place]()
    with monkeypatch.context() as patch:
        real = getattr(owner, name)
        patch.setattr(owner, name, interrupted_from_call(CALLS.get(place, 1), real))
        with pytest.raises(KeyboardInterrupt):
            lj.export(source, target, two_shards(), verify=place == "check")
    assert names(tmp_path) == [".model.partial"]
    partial = tmp_path / ".model.partial"
    order = ["shard-00.tflite", "shard-01.tflite", "head.tflite"]
    done = {"second_shard": 1, "head": 2}.get(place, 3)
    assert [name for name in order if (partial / name).exists()] == order[:done]
    before = {name: (partial / name).stat() for name in order[:done]}

    export(source, target, two_shards())
    assert names(tmp_path) == ["model"]
    for name, old in before.items():
        if place == "rename":
            break  # all files are finished, and their record is already deleted
        new = (target / name).stat()
        assert (new.st_ino, new.st_mtime_ns) == (old.st_ino, old.st_mtime_ns)
    assert Manifest.load(target).files == Manifest.load(uninterrupted).files
    assert contents(target) == contents(uninterrupted)


@pytest.fixture(scope="module")
def stopped_at_its_head(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that an export left behind."""
    folder = tmp_path_factory.mktemp("interrupted")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(writer, "head_steps", interrupted_from_call(2, writer.head_steps))
        export(source, folder / "model", SMALL)
    return folder / ".model.partial"


@pytest.fixture
def interrupted_export(stopped_at_its_head: Path, tmp_path: Path) -> Path:
    """The target path of an export that was interrupted at its head."""
    shutil.copytree(stopped_at_its_head, tmp_path / ".model.partial")
    return tmp_path / "model"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (ExportConfig(quant="float32", rows=(4, 16), caches=(32,)),
         "other settings: quant was 'int8', is 'float32'; go on with the same, or remove the fold"),
        (ExportConfig(quant="int8", rows=(4, 8, 16), caches=(32,)),
         r"other settings: rows was \[4, 16\], is \[4, 8, 16\]; "),
        (ExportConfig(quant="int4", rows=(4, 16), caches=(64,)),
         r"quant was 'int8', is 'int4', caches was \[32\], is \[64\]; "),
    ],
)  # fmt: skip
def test_an_export_goes_on_with_the_same_settings_only(
    settings: ExportConfig, message: str, source: Path, interrupted_export: Path
) -> None:
    partial = interrupted_export.with_name(".model.partial")
    before = contents(partial)
    with pytest.raises(
        ValueError, match=r"\.model\.partial is an interrupted export with.*" + message
    ):
        export(source, interrupted_export, settings)
    assert contents(partial) == before
    assert not interrupted_export.exists()


def test_an_export_goes_on_with_the_same_source_only(interrupted_export: Path) -> None:
    message = r"interrupted export with other source: was '.*shards', is 'tiny'; "
    with pytest.raises(ValueError, match=message):
        export("tiny", interrupted_export, SMALL)


def replaced(source: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint `source`, to overwrite."""
    return shutil.copytree(source, tmp_path / "weights")


def other_weights(folder: Path) -> None:
    """Other numbers in a matrix, in files of the same names and sizes."""
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        save_file({name: tensor[::-1].copy() for name, tensor in tensors.items()}, path)


def test_an_export_goes_on_with_the_same_weights_only(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, target = replaced(source, tmp_path), tmp_path / "model"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(writer, "head_steps", interrupted_from_call(2, writer.head_steps))
        export(weights, target, SMALL)
    other_weights(weights)
    message = r"interrupted export with other fingerprint: was '\w{32}', is '\w{32}'; go on"
    with pytest.raises(ValueError, match=message):
        export(weights, target, SMALL)
    assert not target.exists()


def test_weights_replaced_during_an_export_are_detected(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, target = replaced(source, tmp_path), tmp_path / "model"
    real = writer.head_steps
    monkeypatch.setattr(writer, "head_steps", lambda *a: (other_weights(weights), real(*a))[1])
    with pytest.raises(ValueError, match="other fingerprint"):
        export(weights, target, SMALL)
    assert not target.exists()


def test_a_manifest_names_the_weights_by_content(exported: Path, source: Path) -> None:
    assert Manifest.load(exported).fingerprint == fingerprint(source) == lj.load(source).fingerprint
    assert lj.load(exported).fingerprint != fingerprint(source)


def test_nan_in_a_checkpoint_is_not_exported(source: Path, tmp_path: Path) -> None:
    weights = replaced(source, tmp_path)
    for path in weights.glob("*.safetensors"):
        tensors = load_file(path)
        save_file({name: tensor * np.float32(np.nan) for name, tensor in tensors.items()}, path)
    with pytest.raises(ValueError, match=r"numbers that are NaN or infinite, the first at \[0, 0"):
        export(weights, tmp_path / "model", SMALL)
    assert not (tmp_path / "model").exists()


def test_an_export_goes_on_with_the_same_packages_only(
    source: Path, interrupted_export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another converter may make other graphs."""
    monkeypatch.setattr(f"{Manifest.__module__}.version", lambda package: f"9 of {package}")
    message = r"interrupted export with other versions: jax was '.*', is '9 of jax', litert-conv"
    with pytest.raises(ValueError, match=message):
        export(source, interrupted_export, SMALL)


def test_a_finished_file_that_was_cut_short_is_written_again(
    source: Path, interrupted_export: Path
) -> None:
    shard = interrupted_export.with_name(".model.partial") / "shard-00.tflite"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    export(source, interrupted_export, SMALL)
    assert (interrupted_export / "shard-00.tflite").read_bytes() == whole


def test_an_existing_folder_is_never_touched(source: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "precious").write_text("words")
    with pytest.raises(ValueError, match=r"model exists already; allowed: a new folder"):
        export(source, tmp_path / "model", SMALL)
    assert names(tmp_path) == ["model"] and names(tmp_path / "model") == ["precious"]


def test_a_folder_locked_by_another_process_is_left_alone(
    source: Path, tmp_path: Path, interrupted_export: Path
) -> None:
    before = contents(interrupted_export.with_name(".model.partial"))
    with locked(interrupted_export, tmp_path / ".model.lock"):
        message = rf"model is in use by process {os.getpid()} on .*; allowed: another folder, or"
        with pytest.raises(ValueError, match=message):
            export(source, interrupted_export, SMALL)
    assert contents(interrupted_export.with_name(".model.partial")) == before
    assert names(tmp_path) == [".model.partial"]


def test_files_finished_by_another_process_are_kept(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(*_: Any) -> None:
        monkeypatch.undo()
        export(source, tmp_path / "model", SMALL)

    monkeypatch.setattr(writer, "require_disk", meanwhile)
    with pytest.raises(ValueError, match="model exists already"):
        export(source, tmp_path / "model", SMALL)
    assert names(tmp_path) == ["model"]
    Manifest.load(tmp_path / "model")


def test_files_without_a_record_are_written_again(
    source: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    """As after a kill between the last file and the record, or after copying a folder."""
    partial = shutil.copytree(uninterrupted, tmp_path / ".model.partial")
    (partial / "shard-00.tflite").write_bytes(b"")
    (partial / "shard-09.tflite").write_bytes(b"of another export")
    (partial / "scratch").mkdir()
    export(source, tmp_path / "model", two_shards())
    assert names(tmp_path) == ["model"]
    assert contents(tmp_path / "model") == contents(uninterrupted)


def assert_refused(
    tmp_path: Path, what: Any, settings: ExportConfig, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        export(what, tmp_path / "deep" / "model", settings)
    assert not (tmp_path / "deep").exists(), "nothing is written"


def test_a_disk_that_is_too_small(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100_000))
    message = r"the export of .*shards takes [\d.]+[kM]B, but the disk of .*deep has 100kB left"
    assert_refused(tmp_path, source, SMALL, ValueError, message)


def test_a_disk_with_room_for_the_missing_files(
    source: Path, interrupted_export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that an interrupted export has written need no space a second time."""
    done = (interrupted_export.with_name(".model.partial") / "shard-00.tflite").stat().st_size
    everything = sum(layer_bytes(MODEL, SMALL))
    everything += outer_bytes(MODEL, SMALL)
    free = SimpleNamespace(free=everything - done)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    export(source, interrupted_export, SMALL)
    assert interrupted_export.is_dir()


def test_bad_settings_are_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"quant is 'int3'; allowed: 'float32', 'int8', 'int4', "):
        ExportConfig(quant="int3")  # pyright: ignore
    with pytest.raises(ValueError, match=r"rows is \[8, 4\]; allowed: ascending, from 1 on"):
        ExportConfig(rows=(8, 4))
    with pytest.raises(
        ValueError, match=r"caches is \[\]; allowed: ascending, from 0 on, at least"
    ):
        ExportConfig(caches=())
    for wrong, words in (((2, 4), r"canvases is \(2, 4\); allowed: 1, and larger ones"),
                         ((1, 1), r"canvases is \[1, 1\]; allowed: ascending")):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            ExportConfig(canvases=wrong)
    message = r"shard_bytes is 1000; allowed: at least one layer \(\d+\)"
    small = ExportConfig(quant="int8", rows=(4,), caches=(32,), shard_bytes=1000)
    assert_refused(tmp_path, source, small, ValueError, message)
    message = r"quant is 'int4_block128', but layers\.0\.attention\.query has 64 inputs; allowed: a"
    assert_refused(tmp_path, source, ExportConfig(quant="int4_block128"), ValueError, message)


def test_unsupported_models_are_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tflite, "convert", lambda steps: pytest.fail("the converter was started"))
    message = r"litert cannot take sort at layer_0 of rows4_cache32 "
    assert_refused(tmp_path, GOLDENS / "llada-moe", SMALL, ValueError, message)
    assert_refused(
        tmp_path, tmp_path / "absent", SMALL, FileNotFoundError, r"no model at '.*absent'; "
    )


def test_a_checkpoint_that_is_cut_short(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "source")
    shard = sorted((tmp_path / "source").glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-10])
    message = rf"{shard.name} is no safetensors file, or is cut short: "
    assert_refused(tmp_path, tmp_path / "source", SMALL, ValueError, message)
    shard.unlink()
    message = rf"lacks {shard.name}, named by model\.safetensors\.index\.json"
    assert_refused(tmp_path, tmp_path / "source", SMALL, FileNotFoundError, message)


def test_a_file_with_wrong_results_is_not_exported(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tflite.store

    def scaled(pieces: Any, spec: Any) -> Any:
        for piece in real(pieces, spec):
            yield piece._replace(scale=None if piece.scale is None else 2 * piece.scale)

    monkeypatch.setattr(tflite, "store", scaled)
    message = r"shard-00\.tflite, signature rows4_cache32, differs from JAX by .*; allowed: 0\.15"
    with pytest.raises(RuntimeError, match=message):
        lj.export(source, tmp_path / "model", SMALL)
    assert not (tmp_path / "model").exists()


def test_the_tokenizer_comes_along(exported_tiny: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        expected = (model_path("tiny") / name).read_bytes()
        assert (exported_tiny / name).read_bytes() == expected


def test_the_page_for_phones_names_every_file(exported_tiny: Path) -> None:
    page = (exported_tiny / "PUSH.md").read_text()
    pushed = {line.split()[2] for line in page.splitlines() if line.startswith("adb push")}
    assert pushed == set(names(exported_tiny)) - {
        *("packed", "PUSH.md", "host", "on_phone.sh", "signatures.csv"),
    } | {"host-android/llada_host"}


def test_the_head_of_an_export_matches_the_model(exported: Path, xla: lj.Model) -> None:
    hidden = 3 * np.random.default_rng(0).standard_normal((1, 16, 64)).astype(np.float32)
    scores = score_rows(xla.params, jnp.asarray(hidden), None)
    out = (
        LiteRT()
        .open(exported / "head.tflite")["rows16"]
        .run({"hidden": hidden[0], "penalty": np.zeros(MODEL.vocab_size, np.float32)})
    )
    np.testing.assert_array_equal(out["token"], scores.token[0])
    np.testing.assert_allclose(out["confidence"], scores.confidence[0], rtol=1e-5)


def test_integers_of_a_block_checkpoint_are_kept(tmp_path: Path) -> None:
    """GGUF's Q4_0 is `int4_block32` already."""
    path = write_gguf(tmp_path / "model.gguf", "llada-gqa", "Q4_0")
    settings = ExportConfig(quant="int4_block32", rows=(4,), caches=(32,))
    export(path, tmp_path / "model", settings)
    (by_name,) = constants(tmp_path / "model" / "shard-00.tflite").values()
    attention = lj.load(path, "int4").params.layers[1].attention
    for name in ("query", "key", "value", "output"):
        leaf, stored = getattr(attention, name), by_name[f"layers.1.attention.{name}"]
        np.testing.assert_array_equal(stored.numbers, np.asarray(leaf.values, np.int8))
        np.testing.assert_array_equal(stored.scale, leaf.scale)
