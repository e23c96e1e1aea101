"""Opening an exported folder: its errors, and the executables that it gives to a forward."""

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import llada_jax as lj
from llada_jax.backend import resources
from llada_jax.backend.exported.manifest import File, Manifest
from llada_jax.backend.exported.opened import ExportedProgram
from llada_jax.backend.litert.first_opening import pack_in_child
from llada_jax.backend.litert.install import litert_runtime
from llada_jax.backend.protocol import Bucket
from llada_jax.checkpoint import save_huggingface
from llada_jax.config import ExportConfig
from tests.backend.example_backend import ExampleBackend
from tests.backend.models import GQA, random_params

pytest.importorskip("ai_edge_litert", reason="needs the extra npu")
pytest.importorskip("litert_converter", reason="needs the extra npu")

PROMPT = [5, 20, 31, 7, 9]
SHORT = lj.SamplerConfig.from_flat(gen_length=8, block_length=4, steps=4)
IN_CHUNKS = SHORT.replace(remasking="margin")
"""Needs the logits of a head, which arrive in chunks."""
MODEL = GQA.replace(n_layers=1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(tmp_path_factory.mktemp("whole"), 0, (4, 16), (16, 32))


def exported(
    parent: Path,
    seed: int,
    rows: tuple[int, ...] = (16,),
    caches: tuple[int, ...] = (32,),
    canvases: tuple[int, ...] = (1,),
) -> Path:
    """A folder with buckets of these rows, cached positions and canvases."""
    save_huggingface(parent / "source", MODEL, random_params(MODEL, seed), "bfloat16")
    settings = ExportConfig(quant="float32", rows=rows, caches=caches, canvases=canvases)
    lj.export(parent / "source", parent / "model", settings, verify=False)
    return parent / "model"


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(whole, tmp_path / "model", ignore=shutil.ignore_patterns("packed"))
    return tmp_path / "model"


def new_folder(path: Path) -> Path:
    path.mkdir()
    return path


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("rows", "cache", "expected"),
    [
        (1, 0, Bucket(4, 16)),
        (4, 16, Bucket(4, 16)),
        (4, 17, Bucket(4, 32)),
        (5, 1, Bucket(16, 16)),
        (16, 32, Bucket(16, 32)),
    ],
)
def test_the_smallest_bucket_that_holds_a_forward(
    rows: int, cache: int, expected: Bucket, whole: Path
) -> None:
    bucket, shards = ExportedProgram(whole).body(rows, cache)
    assert bucket == expected
    assert [shard.layers for shard in shards] == [range(MODEL.n_layers)]


@pytest.mark.parametrize(("rows", "cache"), [(17, 0), (4, 33), (17, 33)])
def test_forwards_beyond_the_buckets(rows: int, cache: int, whole: Path) -> None:
    message = (
        rf"a forward of {rows} rows against {cache} cached positions is beyond the buckets of "
        r".*model; allowed: up to 16 rows \(of \[4, 16\]\) and 32 positions \(of \[16, 32\]\)"
    )
    with pytest.raises(ValueError, match=message):
        ExportedProgram(whole).body(rows, cache)


def test_canvases_beyond_the_buckets(whole: Path) -> None:
    for prompt, cache in ((PROMPT * 2, "none"), (PROMPT * 5, "blockwise")):
        with pytest.raises(ValueError, match=r"is beyond the buckets of .*model; allowed: up"):
            config = SHORT.replace(cache=cache)
            lj.generate(lj.load(whole), [prompt], config, backend="litert")


@pytest.mark.slow
def test_more_rows_than_the_head_takes_at_a_time(whole: Path) -> None:
    """Three canvases with 8 open rows each, which are all scored."""
    model = lj.load(whole)
    config = SHORT.replace(block_length=8)
    together = lj.generate(model, [PROMPT, PROMPT[:2], PROMPT[1:]], config, backend="litert")
    alone = lj.generate(model, [PROMPT[:2]], config, backend="litert")
    np.testing.assert_array_equal(together.generated[1], alone.generated[0])


@pytest.mark.slow
def test_a_folder_for_two_canvases_decodes_pairs_and_single_canvases(
    whole: Path, tmp_path: Path
) -> None:
    folder = exported(tmp_path, 0, (4, 16), (32,), canvases=(1, 2))
    program = ExportedProgram(folder)
    assert program.sizes_for(3) == (4, [1, 2])
    assert program.sizes_for(5) == (16, [1]), "two of them have more rows than any bucket"
    bucket, (shard,) = program.body(4, 20, 2)
    assert bucket == Bucket(4, 32, 2)
    ran, run = [], shard.executable.run
    shard.executable.run = lambda arrays: ran.append(bucket) or run(arrays)  # pyright: ignore
    prompts = [PROMPT, PROMPT[:2], PROMPT[1:]]
    config = SHORT.replace(cache="blockwise")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llada_jax.api.backends.ExportedProgram", lambda folder: program)
        packed = lj.generate(lj.load(folder), prompts, config, backend="litert")
    assert ran, "two canvases share a forward"
    for row, prompt in enumerate(prompts):
        alone = lj.generate(lj.load(whole), [prompt], config, backend="litert")
        np.testing.assert_array_equal(packed.generated[row], alone.generated[0])


def test_a_folder_without_canvases_runs_them_one_by_one(folder: Path) -> None:
    change_manifest(folder, lambda record: record["settings"].pop("canvases"))
    assert ExportedProgram(folder).sizes_for(1) == (4, [1])


def test_caches_beyond_the_memory(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, config = lj.load(whole), SHORT.replace(cache="blockwise")
    lj.generate(model, [PROMPT], config, backend="litert")
    monkeypatch.setattr(resources, "available_memory", lambda: 10_000)
    message = (
        r"the cache of 3 canvases of 32 positions takes 24\.6kB of memory, but 10\.0kB are left"
    )
    with pytest.raises(ValueError, match=message):
        lj.generate(model, [PROMPT] * 3, config, backend="litert")


@pytest.mark.slow
def test_canvases_of_a_batch_that_end_at_different_steps(tmp_path: Path) -> None:
    """Without a cache, since the bucket's cache may be shorter than the canvas."""
    model = lj.load(exported(tmp_path, 0, rows=(64,)))
    plain = lj.load(tmp_path / "source", "float32")
    few, many = [*PROMPT * 4, 95, 95], [*PROMPT, *[95] * 17]
    expected = lj.infill(plain, [few, many], SHORT, loop="host")
    assert expected.nfe[0] < expected.nfe[1]
    found = lj.infill(model, [few, many], SHORT, backend="litert")
    np.testing.assert_array_equal(found.tokens, expected.tokens)


@pytest.mark.parametrize("name", ["shard-00.tflite", "head.tflite", "embedding.bin", "PUSH.md"])
def test_a_changed_byte_is_found(name: str, folder: Path) -> None:
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    before = files(folder)
    message = rf"{name} is not the file that manifest\.json describes: its SHA-256 differs"
    with pytest.raises(ValueError, match=message):
        ExportedProgram(folder)
    assert files(folder) == before


@pytest.mark.parametrize("name", ["shard-00.tflite", "head.tflite", "embedding.bin"])
def test_a_file_that_is_cut_short_or_missing(name: str, folder: Path) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-7])
    sizes = rf"it has {len(content) - 7} bytes, manifest\.json says {len(content)}"
    with pytest.raises(ValueError, match=rf"{name} is cut short or changed: {sizes}"):
        ExportedProgram(folder)
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=rf"model lacks {name}, which its manifest"):
        ExportedProgram(folder)


def test_decoding_raises_the_same_error(folder: Path) -> None:
    (folder / "head.tflite").write_bytes(b"")
    with pytest.raises(ValueError, match=r"head\.tflite is cut short or changed: it has 0 byt"):
        lj.generate(lj.load(folder), [PROMPT], SHORT, backend="litert")


def test_a_damaged_manifest(folder: Path) -> None:
    record = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**record, "format": 1}))
    with pytest.raises(ValueError, match=r"manifest\.json has format 1; allowed: 2"):
        lj.load(folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match=r"manifest\.json is no manifest: "):
        lj.load(folder)


def test_too_little_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "available_memory", lambda: 100_000)
    before = files(folder)
    message = r"running .*model takes [\d.]+[kM]B of memory, but 100kB are left"
    with pytest.raises(ValueError, match=message):
        ExportedProgram(folder)
    assert files(folder) == before


def test_too_small_a_disk_for_packed_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100_000))
    with pytest.raises(
        ValueError, match=r"packing the weights for this CPU takes [\d.]+[kM]B, but"
    ):
        ExportedProgram(folder)
    assert not (folder / "packed").exists()


def test_packed_weights_are_made_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ExportedProgram(folder)
    packed = files(folder / "packed")
    assert [name.split(".")[0] for name in packed] == ["head", "shard-00"]
    assert all(name.endswith(".xnnpack") for name in packed)
    assert first.embedding[np.array([3])].shape == (1, MODEL.width)
    full = SimpleNamespace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    ExportedProgram(folder)


def test_packed_weights_of_another_cpu_or_version_are_ignored(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ExportedProgram(folder)
    monkeypatch.setattr("llada_jax.backend.exported.opened.this_cpu", lambda: "another")
    ExportedProgram(folder)
    assert len(files(folder / "packed")) == 4
    monkeypatch.setattr(litert_runtime(), "__version__", "0.0.0")
    ExportedProgram(folder)
    assert len(files(folder / "packed")) == 6


def test_packed_weights_of_another_export_are_ignored(folder: Path, tmp_path: Path) -> None:
    inputs = {"hidden": np.ones((16, MODEL.width), np.float32),
              "penalty": np.zeros(MODEL.vocab_size, np.float32)}  # fmt: skip

    def confidence(model: Path) -> np.ndarray:
        return ExportedProgram(model).head(16)[1]["rows16"].run(inputs)["confidence"].copy()

    second = exported(new_folder(tmp_path / "other"), 1, (4, 16), (16, 32))
    mine, theirs = confidence(folder), confidence(second)
    shutil.copytree(folder / "packed", second / "packed", dirs_exist_ok=True)
    np.testing.assert_array_equal(confidence(second), theirs)
    assert not np.array_equal(mine, theirs)


def test_a_folder_can_be_exported_again_and_with_other_chunks_of_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later version may cut the vocabulary otherwise."""
    for seed in (0, 1):
        with monkeypatch.context() as patch:
            if seed:
                patch.setattr("llada_jax.backend.steps.HEAD_CHUNK", 40)
            model = lj.load(exported(tmp_path, seed))
        found = lj.generate(model, [PROMPT], IN_CHUNKS, backend="litert")
        plain = lj.load(tmp_path / "source", "float32")
        expected = lj.generate(plain, [PROMPT], IN_CHUNKS, loop="host")
        np.testing.assert_array_equal(found.tokens, expected.tokens)
        shutil.rmtree(tmp_path / "model")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda folder: lj.load(folder, "int8"),
         r"dtype is 'int8', but .*model is exported as 'float32'; allowed: None"),
        (lambda folder: lj.forward(lj.load(folder), [[1]]),
         r"model is an export: it has no parameters for JAX"),
        (lambda folder: lj.generate(lj.load(folder), [[1]], SHORT),
         r"backend is 'xla'; allowed: 'litert', 'qnn'"),
        (lambda folder: lj.generate(lj.load(folder), [[1]], SHORT, backend=ExampleBackend()),
         r"backend is .*ExampleBackend.*; allowed: 'litert', 'qnn'"),
    ],
)  # fmt: skip
def test_unsupported_uses_of_an_export_are_refused(call: Any, message: str, whole: Path) -> None:
    with pytest.raises(ValueError, match=message):
        call(whole)
    assert lj.load(whole, "float32").config == Manifest.load(whole).model


def change_manifest(folder: Path, change: Any) -> None:
    record = json.loads((folder / "manifest.json").read_text())
    change(record)
    (folder / "manifest.json").write_text(json.dumps(record))


@pytest.mark.parametrize("name", ["../head.tflite", "/etc/passwd", "packed/../../head.tflite"])
def test_a_manifest_that_names_files_elsewhere(name: str, folder: Path) -> None:
    (folder.parent / "head.tflite").write_bytes((folder / "head.tflite").read_bytes())
    change_manifest(folder, lambda record: record["head"].update(name=name))
    with pytest.raises(ValueError, match=rf"'{name}' is named by a file of .*model"):
        ExportedProgram(folder)
    assert not (folder / "packed").exists()


def test_packed_weights_stay_inside_the_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (folder / "packed").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"'packed/shard-00\.tflite\.\w+\.xnnpack' is named by"):
        ExportedProgram(folder)
    assert not any((tmp_path / "elsewhere").iterdir())


def test_a_damaged_file_of_the_right_hash_does_not_end_the_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llada_jax.backend.exported.opened.pack_in_child", pack_in_child)
    path = folder / "head.tflite"
    path.write_bytes(path.read_bytes()[:8] + b"\xff" * 300 + path.read_bytes()[308:])
    change_manifest(folder, lambda record: record.update(head=dataclasses.asdict(File.of(path))))
    with pytest.raises(ValueError, match=r"^LiteRT cannot run .*head\.tflite.*; allowed"):
        ExportedProgram(folder)
    assert not list((folder / "packed").glob("head*"))


def test_an_embedding_of_objects_is_refused(folder: Path) -> None:
    change_manifest(folder, lambda record: record.update(embedding_dtype="object"))
    with pytest.raises(ValueError, match=r"embedding_dtype is 'object'; allowed: 'float32', "):
        ExportedProgram(folder)


@pytest.mark.parametrize("size", [0, 100, -1])
def test_an_embedding_of_another_size_with_its_hash(size: int, folder: Path) -> None:
    path = folder / "embedding.bin"
    content = path.read_bytes()
    path.write_bytes(content[:size] if size >= 0 else content + b"x")
    entry = dataclasses.asdict(File.of(path))
    change_manifest(folder, lambda record: record.update(embedding=entry))
    message = rf"embedding\.bin has {entry['bytes']} bytes; allowed: {len(content)}, for 96 by 64 "
    with pytest.raises(ValueError, match=message):
        ExportedProgram(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record["model"].update(n_heads=2**40),
         r"manifest\.json is no manifest: model: n_heads is 1099511627776; allowed: 1 to 16777216"),
        (lambda record: record["model"].update(vocab_size=2**24), "for 16777216 by 64 numbers"),
        (lambda record: record["shards"][0].update(stop=2),
         r"layers from \[0\] to \[2\]; allowed: each of the 1 layers once"),
        (lambda record: record["shards"][0].update(start=1, stop=1), "each of the 1 layers once"),
        (lambda record: record.update(shards=[]), "each of the 1 layers once"),
        (lambda record: record.update(head_chunk=-1), "head_chunk is -1; allowed: 1 or more"),
    ],
)  # fmt: skip
def test_a_manifest_that_contradicts_itself(change: Any, message: str, folder: Path) -> None:
    change_manifest(folder, change)
    with pytest.raises(ValueError, match=message):
        ExportedProgram(folder)
    assert not (folder / "packed").exists()
