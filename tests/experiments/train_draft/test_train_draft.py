"""`python -m experiments.train_draft`: prompts, batches, and a run that resumes."""

import json
import shutil
from itertools import islice
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

import llada_jax as lj
from experiments.train_draft import __main__ as entry
from experiments.train_draft import answers
from experiments.train_draft.answers import SPLITS, Shard, drawn_prompts, without_loop
from llada_jax.checkpoint import fingerprint, model_path, save_huggingface
from llada_jax.config_files import read_yaml
from llada_jax.draft.files import read_drafter
from llada_jax.draft.gated_lora_files import read_gated_lora
from llada_jax.text import Tokenizer
from llada_jax.training.loop import read_metrics
from tests.drawn_params import drawn_params
from tests.experiments.in_process import run_experiment

CONFIG = entry.DraftTrainConfig(steps=4, batch_size=2, anchors=3)


def shard() -> Shard:
    ends, starts = np.array([9, 12, 5]), np.array([3, 4, 3])
    tokens = np.arange(36, dtype=np.int32).reshape(3, 12)
    taps = np.arange(26 * 2 * 4).reshape(26, 2, 4).astype(ml_dtypes.bfloat16)
    return Shard(tokens, starts, ends, ["a", "b", "c"], np.array([0, 9, 21]), taps)


def test_prompts_are_repeatable_and_held_out():
    drawn = {split: list(islice(drawn_prompts(split, 0), 60)) for split in ("train", *SPLITS)}
    assert drawn["train"] == list(islice(drawn_prompts("train", 0), 60))
    texts = [{text for _, text in part} for part in drawn.values()]
    assert len(set.union(*texts)) == 180
    domains = [{domain for domain, _ in part} for part in drawn.values()]
    assert domains[0] == domains[1] and not domains[0] & domains[2]
    assert not any("{" in text for _, text in drawn["templates"] if _ != "tasks")


def test_values_of_training_alone_extend_lists_that_exist():
    table = read_yaml(Path(answers.__file__).with_name("prompts.yaml"))
    for part, more in table["train_only"].items():
        assert {*more} <= {*table[part]}
    texts = " ".join(text for _, text in islice(drawn_prompts("train", 0), 200))
    held_out = " ".join(text for _, text in islice(drawn_prompts("templates", 0), 200))
    found = [
        any(value in part for value in table["train_only"]["slots"]["passage"])
        for part in (texts, held_out)
    ]
    assert found == [True, False]


@pytest.mark.parametrize(
    ("answer", "kept"),
    [([1, 2, *[3, 4] * 20], 6), ([1, *[7] * 30], 3), ([*range(30)], 30), ([1, 2, 3] * 3, 9)],
)
def test_loops_are_cut_after_their_second_period(answer, kept):
    assert without_loop(answer) == answer[:kept]


def test_a_batch_is_a_function_of_seed_and_step():
    first = list(islice(entry.batches([shard()], CONFIG), 4))
    later = next(entry.batches([shard()], CONFIG, 3))
    for one, other in zip(first[3], later, strict=True):
        np.testing.assert_array_equal(one, other)
    assert any((first[0].anchors != batch.anchors).any() for batch in first[1:])


def test_anchors_and_the_next_token_are_in_the_answer():
    for batch in islice(entry.batches([shard()], CONFIG), 6):
        for tokens, taps, end, anchors in zip(*batch, strict=True):
            row = tokens[0] // 12
            real = anchors[anchors >= 0]
            assert end == shard().ends[row]
            assert len(real) == min(3, shard().ends[row] - shard().starts[row] - 1)
            assert real.min() >= shard().starts[row] and real.max() < end - 1
            first = shard().rows[row]
            np.testing.assert_array_equal(taps[:end], shard().taps[first : first + end])
            assert not taps[end:].any()


def test_frequent_ids_are_those_of_the_answers():
    one = shard()._replace(tokens=np.array([[9] * 12, [5] * 12, [7] * 12], np.int32))
    assert entry.frequent_ids([one], 3, 20).tolist() == [5, 7, 9]
    assert entry.frequent_ids([one], 4, 20).tolist() == [0, 5, 7, 9]


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "target"
    tokenizer = Tokenizer.from_folder(model_path("tiny"))
    config = lj.ModelConfig(
        family="llama",
        vocab_size=-(-tokenizer.vocab_size // 32) * 32,
        width=16,
        n_layers=4,
        n_heads=2,
        n_kv_heads=1,
        head_dim=8,
        ffn_width=16,
        rope_theta=1e4,
        norm_eps=1e-5,
        max_length=256,
        causal="finished",
        eos_id=tokenizer.eos_id,
    )
    save_huggingface(folder, config, drawn_params(config), "float32")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model_path("tiny") / name, folder)
    return folder


def settings_of(target: Path, tmp_path: Path, name: str) -> list[str]:
    return [
        f"model={target}", "family=llama", "dtype=float32", f"data.folder={tmp_path / 'data'}",
        "data.shards=1", "data.shard_size=4", "data.gen_length=12", "data.max_prompt=200",
        "drafter.taps=1", "drafter.block_length=4", "drafter.n_ids=50", "train.steps=4",
        "train.batch_size=2", "train.anchors=4", "train.log_every=2", "train.checkpoint_every=2",
        "train.evaluate_every=2", "train.evaluated=2", f"hydra.run.dir={tmp_path / name}",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_gated_lora_drafter_is_trained_and_continued(target, tmp_path):
    kind = ["drafter.kind=gated_lora", "drafter.rank=2"]
    run_experiment(entry.main, [*settings_of(target, tmp_path, "first"), *kind])
    config, params = read_gated_lora(tmp_path / "first" / "drafter")
    assert (config.target, config.n_masks) == (fingerprint(target), 3)
    assert params.masks.dtype == jnp.bfloat16
    start = f"drafter.start={tmp_path / 'first' / 'drafter'}"
    run_experiment(entry.main, [*settings_of(target, tmp_path, "more"), *kind, start])
    losses = [read_metrics(tmp_path / name)[0]["loss"] for name in ("first", "more")]
    assert losses[1] < losses[0]
    with pytest.raises(SystemExit):  # the start is of another kind
        run_experiment(entry.main, [*settings_of(target, tmp_path, "other"), start])


@pytest.mark.slow
def test_an_interrupted_run_ends_as_an_undisturbed_one(target, tmp_path, monkeypatch):
    def run(name: str, *more: str) -> Path:
        settings = [*settings_of(target, tmp_path, name), "drafter.n_layers=1", *more]
        run_experiment(entry.main, settings)
        return tmp_path / name

    whole, batches = run("whole"), entry.batches

    def cut(shards, config, first_step=0):
        yield from islice(batches(shards, config, first_step), 3)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises((KeyboardInterrupt, SystemExit)):
        patch.setattr(entry, "batches", cut)
        run("cut")
    assert [row["step"] for row in read_metrics(tmp_path / "cut")] == [2]
    resumed = run("cut")
    assert [row["step"] for row in read_metrics(resumed)] == [2, 4]
    for name, tensor in load_file(whole / "drafter" / "model.safetensors").items():
        np.testing.assert_array_equal(
            tensor, load_file(resumed / "drafter" / "model.safetensors")[name]
        )
    config, params = read_drafter(whole / "drafter")
    assert config.target == fingerprint(target) and params.ids is not None
    assert params.fc.dtype == jnp.bfloat16  # pyright: ignore
    results = {row["name"]: row for row in json.loads((whole / "results.json").read_text())}
    assert {
        f"{split}/all/{kind}" for split in SPLITS for kind in ("both", "network", "lookup")
    } <= {*results}
    continued = run("continued", f"drafter.start={whole / 'drafter'}")
    losses = [read_metrics(folder)[0]["loss"] for folder in (whole, continued)]
    assert losses[1] < losses[0]
    with pytest.raises(SystemExit):  # a drafter of another shape
        run("narrow", f"drafter.start={whole / 'drafter'}", "drafter.n_layers=2")
    with pytest.raises(SystemExit):  # answers of another length
        run("other", "data.gen_length=10")
    assert not (tmp_path / "other" / "results.json").exists()
