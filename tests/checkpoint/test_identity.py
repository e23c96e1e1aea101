"""A model is identified by the content of its files."""

import shutil
from pathlib import Path

import pytest

import llada_jax as lj
from llada_jax import checkpoint
from llada_jax.checkpoint import file_states, fingerprint
from tests.checkpoint.folders import GOLDENS, golden_config, golden_tensors, write_shards
from tests.checkpoint.test_gguf import write_gguf

MODEL = "llada-gqa"


def with_a_bit_changed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def test_a_copy_elsewhere_is_the_same_model_and_a_bit_makes_another(tmp_path):
    folder = shutil.copytree(GOLDENS / MODEL, tmp_path / "copy")
    assert fingerprint(folder) == fingerprint(GOLDENS / MODEL)
    (folder / "README.md").write_text("mine")
    assert fingerprint(folder) == fingerprint(GOLDENS / MODEL)
    tokenizer = ("tokenizer.json", "chat_template.jinja")
    for name in tokenizer:
        (folder / name).write_text("{...}")
    for name in ("model.safetensors", "config.json", *tokenizer):
        before = fingerprint(folder)
        with_a_bit_changed(folder / name)
        assert fingerprint(folder) != before


def test_shards_and_gguf(tmp_path):
    shards = write_shards(tmp_path / "shards", golden_config(MODEL), golden_tensors(MODEL), 2)
    path = write_gguf(tmp_path / "model.gguf", MODEL, "F32")
    found = {fingerprint(each) for each in (shards, path, GOLDENS / MODEL)}
    assert len(found) == 3
    before = fingerprint(path), fingerprint(shards)
    (tmp_path / "tokenizer.json").write_text("{...}")
    assert fingerprint(path) != before[0]
    (tmp_path / "tokenizer.json").unlink()
    moved = path.rename(tmp_path / "renamed.gguf")
    assert fingerprint(moved) == before[0]
    with_a_bit_changed(moved)
    with_a_bit_changed(shards / "model-00002-of-00002.safetensors")
    assert fingerprint(moved) != before[0] and fingerprint(shards) != before[1]
    assert len(file_states(shards)) == 4


def test_a_model_that_is_written_while_it_loads_is_refused(tmp_path, monkeypatch):
    folder = shutil.copytree(GOLDENS / MODEL, tmp_path / "model")

    real = checkpoint.load_params

    def meanwhile(*arguments):
        found = real(*arguments)
        with_a_bit_changed(folder / "model.safetensors")
        return found

    assert lj.load(folder).fingerprint == fingerprint(folder)
    monkeypatch.setattr(checkpoint, "load_params", meanwhile)
    with pytest.raises(ValueError, match=r"model was changed while it was loaded; allowed: files"):
        lj.load(folder)


def test_changed_models_have_no_fingerprint():
    model = lj.load("tiny")
    for own in ({"params": None}, {"tokenizer": None}, {"config": model.config}):
        assert model.replace(**own).fingerprint is None
        assert model.replace(**own, fingerprint="mine").fingerprint == "mine"
    assert model.replace(source="mine").fingerprint == model.fingerprint
    assert type(model.replace(source="mine")) is lj.Model


def test_a_trace_names_its_model():
    model = lj.load(GOLDENS / MODEL)
    config = lj.SamplerConfig(gen_length=4, block_length=4, steps=1)
    for each, name in ((model, model.fingerprint), (model.replace(fingerprint=None), None)):
        trace = lj.generate(each, [[5, 6]], config, trace=True).trace
        assert trace is not None and trace.settings["fingerprint"] == name
