"""The record of a lowered step: what it counts, and that it survives the disk."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llada_jax.lowered import Lowered, LoweredWeight, Operation, TensorType

WORDS = st.text(min_size=1, max_size=12)
SHAPES = st.lists(st.integers(0, 1 << 40), max_size=4).map(tuple)
TENSORS = st.builds(TensorType, SHAPES, st.sampled_from(["f32", "i32", "i1"]))
TENSOR_LISTS = st.lists(TENSORS, max_size=3).map(tuple)
OPERATIONS = st.builds(
    Operation,
    name=WORDS,
    scope=st.text(max_size=12),
    inputs=TENSOR_LISTS,
    outputs=TENSOR_LISTS,
    contraction=st.integers(0, 1 << 20),
    weight=st.none() | WORDS,
)
WEIGHTS = st.builds(
    LoweredWeight,
    SHAPES,
    st.sampled_from([4, 8, 32]),
    st.none() | st.sampled_from([32, 128]),
)
RECORDS = st.builds(
    Lowered,
    name=WORDS,
    module=st.binary(max_size=64),
    weights=st.dictionaries(WORDS, WEIGHTS, max_size=3),
    inputs=st.dictionaries(WORDS, TENSORS, max_size=3),
    outputs=st.dictionaries(WORDS, TENSORS, max_size=3),
    operations=st.lists(OPERATIONS, max_size=3).map(tuple),
)

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


@settings(max_examples=60)
@given(record=RECORDS)
def test_loading_inverts_saving(record: Lowered, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("lowered") / "step.json"
    record.save(path)
    again = Lowered.load(path)
    assert again == record
    for part in ("weights", "inputs", "outputs"):
        assert list(getattr(again, part)) == list(getattr(record, part)), (
            "the order is the module's"
        )


def test_products_count_their_multiply_adds_and_nothing_else_does() -> None:
    assert PRODUCT.macs == 8 * 96 * 64
    assert SUM.macs == 0
    assert STEP.macs == 2 * PRODUCT.macs


def test_weights_count_the_bytes_that_the_file_stores() -> None:
    assert STEP.weight_bytes == 96 * 64 // 2 + 64 * 4 + 16 * 64
    assert TensorType((3, 5, 7), "f32").size == 105
    assert TensorType((), "f32").size == 1


def test_saving_replaces_the_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    STEP.save(path)
    other = dataclasses.replace(STEP, name="rows4_cache32")
    other.save(str(path))
    assert Lowered.load(str(path)) == other
    assert [file.name for file in tmp_path.iterdir()] == ["step.json"]


def test_an_interrupted_save_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "step.json"
    STEP.save(path)

    def interrupted(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dataclasses.replace(STEP, name="other").save(path)
    assert Lowered.load(path) == STEP


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no JSON",
        b"\xff\xfe\x00",
        b"[]",
        b"7",
        b"{}",
        b'{"name": "step"}',
        b'{"format": 1}',
    ],
)
def test_a_file_that_is_something_else_is_one_clear_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "step.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"step\.json is no saved Lowered: "):
        Lowered.load(tmp_path / "step.json")


def test_a_file_that_is_cut_short(tmp_path: Path) -> None:
    STEP.save(tmp_path / "step.json")
    whole = (tmp_path / "step.json").read_bytes()
    (tmp_path / "step.json").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"step\.json is no saved Lowered: "):
        Lowered.load(tmp_path / "step.json")


def test_another_format_is_named(tmp_path: Path) -> None:
    STEP.save(tmp_path / "step.json")
    record = json.loads((tmp_path / "step.json").read_text())
    (tmp_path / "step.json").write_text(json.dumps({**record, "format": 2}))
    with pytest.raises(ValueError, match=r"step\.json has format 2; allowed: 1"):
        Lowered.load(tmp_path / "step.json")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"step\.json"):
        Lowered.load(tmp_path / "step.json")


def test_the_record_can_be_read_without_jax(tmp_path: Path) -> None:
    """As a device model does: the module on its own, on an interpreter that has no JAX."""
    STEP.save(tmp_path / "step.json")
    package = tmp_path / "llada_jax"
    package.mkdir()
    (package / "__init__.py").touch()
    source = Path(__file__).parents[1] / "llada_jax"
    for name in ("lowered.py", "atomic.py"):
        shutil.copy(source / name, package)
    shutil.copytree(source / "config", package / "config")
    code = (
        "import sys; sys.modules['jax'] = sys.modules['numpy'] = None\n"
        "from llada_jax.lowered import Lowered; print(Lowered.load('step.json').macs)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == str(STEP.macs), done.stderr
