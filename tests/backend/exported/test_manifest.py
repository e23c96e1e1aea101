"""The manifest of an exported folder and the record of an unfinished one: round trips through
files, and errors that name the fault."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from llada_jax.backend.exported.contents import Export
from llada_jax.backend.exported.manifest import (
    BodyShard,
    File,
    Manifest,
    UnfinishedExport,
)
from llada_jax.config import ExportConfig, MoEConfig, PhoneConfig
from tests.backend.models import GQA

WEIGHTS = File("shard-00.tflite", 3, "ab" * 32)
MANIFEST = Manifest(
    model=GQA,
    settings=ExportConfig(quant="int4_block32", rows=(1, 8), caches=(0, 64)),
    source="somewhere",
    shards=(BodyShard(WEIGHTS, 0, 2), BodyShard(WEIGHTS, 2, 3)),
    head=File("head.tflite", 5, "cd" * 32),
    head_chunk=8192,
    embedding=File("embedding.bin", 7, "ef" * 32),
    embedding_dtype="bfloat16",
    others=(File("tokenizer.json", 9, "01" * 32),),
    checks=({"file": "head.tflite", "signature": "rows1", "error": 0.01},),
    versions={"jax": "1"},
)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": GQA.replace(moe=MoEConfig(n_experts=4, experts_per_token=2, expert_width=8))},
        {"settings": ExportConfig(phones=PhoneConfig(socs=("SM8750",), precision="a16w8"))},
        {"contexts": ({"file": "context.bin", "graphs": [{"name": "x", "inputs": []}]},)},
        {"contract": {"text": ["other words"]}},
    ],
    ids=lambda changes: "-".join(changes) or "plain",
)
def test_loading_inverts_saving(changes: dict, tmp_path: Path) -> None:
    manifest = dataclasses.replace(MANIFEST, **changes)
    manifest.save(tmp_path)
    assert Manifest.load(tmp_path) == manifest
    assert Manifest.load(str(tmp_path)) == manifest
    assert [file.name for file in tmp_path.iterdir()] == ["manifest.json"]


def test_every_file_but_the_manifest_is_listed() -> None:
    names = [file.name for file in MANIFEST.files]
    expected = ["shard-00.tflite"] * 2 + ["head.tflite", "embedding.bin", "tokenizer.json"]
    assert names == expected
    assert MANIFEST.contract == {}


def test_a_folder_without_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=rf"no manifest\.json in {tmp_path}"):
        Manifest.load(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "no JSON",
        "[]",
        "null",
        '{"format": ',
        '{"format": 2}',
    ],
)
def test_a_damaged_manifest_is_one_clear_error(content: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=r"manifest\.json is no manifest: "):
        Manifest.load(tmp_path)


def test_invalid_manifests_are_refused(tmp_path: Path) -> None:
    MANIFEST.save(tmp_path)
    record = json.loads((tmp_path / "manifest.json").read_text())
    for change, message in (
        ({"colour": 1}, "colour is no setting; allowed: model, settings"),
        ({"head_chunk": "8"}, "head_chunk is '8'; allowed: a whole number"),
        ({"settings": {**record["settings"], "quant": "int3"}}, "settings.quant is 'int3'; "),
    ):
        (tmp_path / "manifest.json").write_text(json.dumps({**record, **change}))
        with pytest.raises(ValueError, match=rf"manifest\.json is no manifest: {message}"):
            Manifest.load(tmp_path)


def test_a_manifest_that_is_cut_short(tmp_path: Path) -> None:
    MANIFEST.save(tmp_path)
    text = (tmp_path / "manifest.json").read_text()
    (tmp_path / "manifest.json").write_text(text[: len(text) // 2])
    with pytest.raises(ValueError, match=r"manifest\.json is no manifest: "):
        Manifest.load(tmp_path)


def test_another_format_is_named(tmp_path: Path) -> None:
    MANIFEST.save(tmp_path)
    record = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**record, "format": 7}))
    with pytest.raises(ValueError, match=r"manifest\.json has format 7; allowed: 2"):
        Manifest.load(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ValueError, match=r"manifest\.json has format None; allowed: 2"):
        Manifest.load(tmp_path)


def test_a_file_matches_the_stored_hash(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(range(256)) * 5000)
    file = File.of(path)
    assert (file.name, file.bytes) == ("weights.bin", 1_280_000)
    assert file.check(tmp_path) == path
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    shutil.copy(path, moved)
    assert file.check(moved) == moved / "weights.bin"


def test_a_file_that_is_missing_cut_short_or_changed(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(range(256)))
    file = File.of(path)
    path.write_bytes(bytes(range(255)))
    message = r"weights\.bin is cut short or changed: it has 255 bytes, manifest\.json says 256"
    with pytest.raises(ValueError, match=message):
        file.check(tmp_path)
    path.write_bytes(bytes([*range(255), 0]))
    with pytest.raises(ValueError, match=r"weights\.bin is not the file that .* its SHA-256 diff"):
        file.check(tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks weights\.bin, which its manifest\.json na"):
        file.check(tmp_path)


def test_a_compiled_context_is_kept_with_its_binary(tmp_path):
    export = Export(GQA, None, ExportConfig(), "a test")
    begun = UnfinishedExport(tmp_path / "model", export)
    begun.begin()
    for name in ("context.bin", "context.tflite", "rows1.onnx", "left.tmp"):
        (begun.folder / name).write_bytes(b"x")
    files = {"file": "context.bin", "compiled": "context.tflite"}
    begun.add_context("context.bin", files | {"graphs": [{"onnx": "rows1.onnx"}]})
    UnfinishedExport(tmp_path / "model", export).begin()
    kept = {path.name for path in begun.folder.iterdir()}
    assert kept == {"context.bin", "context.tflite", "rows1.onnx", "progress.json"}
