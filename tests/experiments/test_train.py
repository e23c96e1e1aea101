"""`python -m experiments.train`: configuration, run folder, exported model."""

import json
import subprocess
import sys

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import llada_jax as lj
from experiments import train as entry
from experiments.model_card import wilson_interval
from experiments.run import REPOSITORY
from experiments.schema import read_config
from llada_jax.evaluation.tasks import word_problems
from llada_jax.text import Tokenizer

TINY = [
    "train.steps=4",
    "train.warmup_steps=1",
    "train.decay_steps=2",
    "train.batch_size=2",
    "train.log_every=2",
    "train.checkpoint_every=2",
    "model.width=16",
    "model.n_layers=1",
    "model.head_dim=4",
    "model.ffn_width=16",
    "score.problems=3",
    "score.batch_size=2",
    "score.steps=4",
]


def composed(*overrides: str):
    with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
        return compose("train", overrides=list(overrides))


def test_the_shipped_configuration_is_valid():
    run = read_config(entry.RunConfig, composed())
    assert run.model.family == "llada"
    assert run.score.sampler == lj.SamplerConfig()
    assert run.train.max_gen_length >= run.score.gen_length


def test_overrides_reach_the_configuration():
    overrides = ("train.seed=7", "train.ema_decay=0.99", "data.difficulty=1")
    run = read_config(entry.RunConfig, composed(*overrides))
    assert (run.train.seed, run.train.ema_decay, run.data.difficulty) == (7, 0.99, 1)


@pytest.mark.parametrize(
    "override", ["+train.speed=3", "+model.colour=red", "+data.split=test", "+extra.key=1"]
)
def test_unknown_keys_are_errors(override):
    with pytest.raises(ValueError, match=r"speed|colour|split|extra"):
        read_config(entry.RunConfig, composed(override))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.steps=soon", "soon"),
        ("train.optimizer=sgd", "optimizer is 'sgd'; allowed: 'adamw', 'muon'"),
        ("data.difficulty=9", "difficulty is 9; allowed: 0, 1, 2, 3"),
        ("score.problems=0", "problems is 0; allowed: 1 or more"),
        ("score.gen_length=100", "gen_length is 100; allowed: a multiple"),
    ],
)
def test_bad_values_are_errors_before_the_run(override, message):
    with pytest.raises(ValueError, match=message):
        read_config(entry.RunConfig, composed(override))


def test_examples_are_chats_that_end_their_turn():
    tokenizer = Tokenizer.from_folder(entry.TOKENIZER_FOLDER)
    example = entry.word_problem_source(tokenizer, entry.DataConfig(seed=4))(5)
    problem = word_problems.problem(4, 5, "train")
    assert tokenizer.decode(example.prompt, skip_special_tokens=False).endswith(
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert problem.question in tokenizer.decode(example.prompt)
    assert tokenizer.decode(example.answer, skip_special_tokens=False) == (
        problem.answer + "<|eot_id|>"
    )


def test_retellings_repeat_sentences_of_the_question():
    tokenizer = Tokenizer.from_folder(entry.TOKENIZER_FOLDER)
    source = entry.word_problem_source(tokenizer, entry.DataConfig(seed=4, retell_share=0.5))
    retold = 0
    for index in range(40):
        prompt, answer = map(tokenizer.decode, source(index))
        if "####" not in answer:
            assert answer in prompt
            assert answer in word_problems.problem(4, index, "train").question
            retold += 1
    assert 10 < retold < 30


def test_drills_are_the_equations_of_training_problems():
    tokenizer = Tokenizer.from_folder(entry.TOKENIZER_FOLDER)
    source = entry.word_problem_source(tokenizer, entry.DataConfig(seed=4, drill_share=1.0))
    prompt, answer = map(tokenizer.decode, source(7))
    solutions = "".join(word_problems.problem(4, 7 + step, "train").answer for step in range(3))
    for equation in answer.split():
        left, _, right = equation.partition("=")
        assert int(right) == eval(left.replace("/", "//"))
        assert equation in solutions and left in prompt and equation not in prompt


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"drill_share": 1.5}, "drill_share is 1.5; allowed: 0 to 1"),
        ({"drill_share": 0.75, "retell_share": 0.5}, r"drill_share is 1.25; allowed: up to 1"),
    ],
)
def test_shares_are_shares(shares, message):
    with pytest.raises(ValueError, match=message):
        entry.DataConfig(**shares)


@pytest.mark.parametrize(
    ("right", "n", "low", "high"), [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634)]
)
def test_wilson_interval_of_published_tables(right, n, low, high):
    assert wilson_interval(right, n) == pytest.approx((low, high), abs=1e-4)


def test_a_run_leaves_a_model_that_loads(tmp_path):
    command = [sys.executable, "-m", "experiments.train", *TINY, f"hydra.run.dir={tmp_path}"]
    output = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=True
    )
    assert "exact_match" in output.stdout
    assert OmegaConf.load(tmp_path / "config.yaml").train.steps == 4
    assert json.loads((tmp_path / "env.json").read_text())["packages"]["jax"]
    (row,) = json.loads((tmp_path / "results.json").read_text())
    assert (row["name"], row["kind"], row["n"]) == ("exact_match", "measured", 3)
    model = lj.load(tmp_path / "model")
    assert model.tokenizer is not None
    assert model.config.mask_id == model.tokenizer.mask_id
    hf = json.loads((tmp_path / "model" / "config.json").read_text())
    for key in ("mask_token_id", "eos_token_id", "pad_token_id", "eot_token_id"):
        assert isinstance(hf[key], int)
    card = (tmp_path / "model" / "README.md").read_text()
    assert "python -m experiments.train train.steps=4" in card
    assert "{" not in card.split("```")[2]
    log = (tmp_path / "model" / "training_log.jsonl").read_text().splitlines()
    assert json.loads(log[-1])["step"] == 4
