"""`python -m experiments.export`: configuration, folder, results."""

import json

import pytest
from hydra import compose, initialize_config_dir

import llada_jax as lj
from experiments.export import ExportRunConfig, export
from experiments.harness.run import REPOSITORY, Run, read_config


def composed(*overrides: str):
    with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
        return compose("export", [*overrides])


def exported(tmp_path, *overrides: str):
    config = composed(f"out={tmp_path / 'out'}", *overrides)
    export(read_config(ExportRunConfig, config), Run(tmp_path / "run", config))


def test_the_folder_can_be_loaded_and_its_errors_are_results(tmp_path, capsys):
    pytest.importorskip("ai_edge_litert")
    pytest.importorskip("litert_converter")
    exported(tmp_path, "rows=[8,32]", "caches=[64]", "quant=int4_block32")
    model = lj.load(tmp_path / "out")
    assert model.artifact == tmp_path / "out" and model.tokenizer is not None
    rows = {row["name"]: row for row in json.loads((tmp_path / "run" / "results.json").read_text())}
    assert 0 < rows["error/shard-00.tflite"]["value"] < 0.15
    assert rows["file/shard-00.tflite"]["value"] * 1e6 == pytest.approx(
        (tmp_path / "out" / "shard-00.tflite").stat().st_size
    )
    assert "PUSH.md" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("quant=int3", "quant is 'int3'; allowed: 'float32', 'int8'"),
        ("rows=[32,8]", r"rows is \[32, 8\]; allowed: ascending"),
        ("caches=[]", r"caches is \[\]; allowed: ascending"),
        ("phones.socs=[SM1]", "soc is 'SM1'; allowed: 'SM8550'"),
        ("phones.precision=int2", "precision is 'int2'; allowed: 'fp16'"),
        ("shard_bytes=0", "shard_bytes is 0; allowed: 1 to"),
        ("shard_bytes=1000", r"shard_bytes is 1000; allowed: at least one layer"),
        ("model=nowhere", "no model at 'nowhere'"),
    ],
)
def test_bad_input_leaves_no_folder(override, message, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        exported(tmp_path, override)
    assert not (tmp_path / "out").exists()
