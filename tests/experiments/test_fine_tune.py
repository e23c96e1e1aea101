"""`python -m experiments.fine_tune`: a user's file becomes a model in a folder."""

import json
from pathlib import Path

import pytest

import llada_jax as lj
from experiments import fine_tune as entry
from llada_jax.training.loop import read_metrics
from tests.experiments.in_process import run_experiment

SMALL = [
    "train.steps=4", "train.warmup_steps=0", "train.decay_steps=2", "train.batch_size=2",
    "train.log_every=2", "train.checkpoint_every=2", "train.length_multiple=64",
    "train.max_gen_length=8", "train.block_length=8", "sampler.block_length=8",
    "train.lora.rank=2",
]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for name, first in (("chats", 0), ("others", 9)):
        chats = [
            [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"{n}"}]
            for n in range(first, first + 3)
        ]
        lines = "".join(json.dumps({"messages": chat}) + "\n" for chat in chats)
        (folder / f"{name}.jsonl").write_text(lines)
    return folder


@pytest.fixture
def run(random_model, files, tmp_path):
    def run(*others: str) -> str:
        asked = [f"model={random_model}", f"file={files / 'chats.jsonl'}", *SMALL, *others]
        return run_experiment(entry.main, [*asked, f"hydra.run.dir={tmp_path / 'run'}"])

    return run


@pytest.mark.slow
def test_fine_tuning_resumes_scores_and_exports(run, files, tmp_path, random_model):
    run("train.steps=2", "dtype=int8")
    folder = tmp_path / "run"
    run("dtype=int8", f"test_file={files / 'others.jsonl'}")
    assert [row["step"] for row in read_metrics(folder)] == [2, 4]
    (row,) = json.loads((folder / "results.json").read_text())
    assert (row["name"], row["n"]) == ("test_file/exact_match", 3)
    model = lj.load(folder / "model")
    assert row["fingerprint"] == model.fingerprint
    assert model.config == lj.load(random_model).config and model.stored_as == "bfloat16"
    card = (folder / "model" / "README.md").read_text()
    assert "fine-tuned on 3 examples of `chats.jsonl`: adapters of rank 2" in card
    assert "python -m experiments.fine_tune model=" in card


@pytest.mark.slow
def test_all_parameters_may_be_trained(run, tmp_path):
    run("train.lora=null", "train.optimizer=muon")
    assert "all of its parameters" in (tmp_path / "run" / "model" / "README.md").read_text()


def test_resuming_with_another_file_or_model_is_refused(run, files, tmp_path):
    run("train.steps=2")
    with pytest.raises(SystemExit, match=r"holds a training with other settings: file is"):
        run(f"file={files / 'others.jsonl'}")
    with pytest.raises(SystemExit, match=r"other settings: train\.lora\.rank is 2 there and 3"):
        run("train.lora.rank=3")


@pytest.mark.parametrize(
    ("others", "message"),
    [
        (["file=nowhere"], "no file nowhere; allowed: lines of"),
        (["train.lora=null", "dtype=int8"], "dtype is 'int8' without train.lora; allowed: float32"),
        (
            ["train.max_gen_length=1", "train.block_length=1", "sampler.block_length=1"],
            "and an answer of 2; allowed",
        ),
        (["model=nowhere"], "no model at 'nowhere'"),
    ],
)
def test_bad_input_leaves_nothing(run, tmp_path, others, message):
    with pytest.raises(SystemExit, match=message):
        run(*others)
    assert not any((tmp_path / "run").iterdir())
