"""`evaluate` scores a decoder on a task, stores its answers, and resumes."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

import llada_jax as lj
from llada_jax.checkpoint import model_path, save_huggingface
from llada_jax.evaluation.comparison import STRICT, Comparison
from llada_jax.evaluation.evaluate import Trial, evaluate, fingerprint
from llada_jax.evaluation.generations import GenerationStore
from llada_jax.evaluation.graded import Evaluation, compared, graded
from llada_jax.evaluation.likelihood import log_likelihoods
from llada_jax.evaluation.metrics import wilson_interval
from llada_jax.evaluation.task import Item, Task
from llada_jax.text import Tokenizer
from tests.drawn_params import drawn_params

SHORT = lj.SamplerConfig.from_flat(
    gen_length=8, block_length=8, steps=8, threshold=1e-4, cache="blockwise"
)
"""One forward: whatever a model of random weights holds likely is above the threshold."""


def sums(rng, difficulty, owns):
    a, b = rng.randint(1, 9), rng.randint(1, 9)
    return Item(f"{a}+{b}?", f"#### {a + b}", str(a + b))


EVEN = Task(
    name="even", about="", draw=sums, difficulties={0: ""}, default_difficulty=0, gen_length=8,
    verify=lambda item, text: int(item.target) % 2 == 0,
)  # fmt: skip
"""Graded by its questions alone, so that a score is known beforehand."""


@pytest.fixture(scope="module")
def model() -> lj.Model:
    tokenizer = Tokenizer.from_folder(model_path("tiny"))
    config = lj.ModelConfig(
        family="llada", vocab_size=tokenizer.vocab_size, width=16, n_layers=1, n_heads=2,
        n_kv_heads=2, head_dim=8, ffn_width=16, rope_theta=1e4, norm_eps=1e-5, max_length=256,
        mask_id=tokenizer.mask_id, eos_id=tokenizer.eos_id,
    )  # fmt: skip
    return lj.Model(config, drawn_params(config), tokenizer)


def even(model: lj.Model, sampler: lj.SamplerConfig = SHORT, **settings) -> Evaluation:
    return evaluate(
        model, EVEN, sampler, **{"items": 6, "batch_size": 3, "progress": False, **settings}
    )


def test_questions_can_be_asked_in_other_words(model, tmp_path):
    plain = even(model, folder=tmp_path / "plain")
    other = even(model, folder=tmp_path / "other", prompts="held_out")
    assert other.settings["task"] == plain.settings["task"] | {"prompts": "held_out"}
    [(_, shorter), *_], [(_, longer), *_] = plain.store.traces(), other.store.traces()
    assert (longer.prompt_lengths > shorter.prompt_lengths).all()
    with pytest.raises(ValueError, match="prompts"):  # the folder has answers to others
        even(model, folder=tmp_path / "other")


@pytest.fixture(scope="module")
def found(model) -> Evaluation:
    return even(model)


def test_a_score_has_an_interval_forwards_and_a_summary(found):
    items = [EVEN.item(0, place, "test") for place in range(6)]
    assert [each.item for each in found.generations] == items
    asked = {item.question: int(item.target) % 2 == 0 for item in items}
    right = sum(asked.values())
    assert found.score == right / len(asked)
    assert found.interval == wilson_interval(right, len(asked))
    assert found.nfe == 1 and 1 <= found.tpf <= 8
    assert repr(found).startswith(f"Evaluation(even/custom: {right / len(asked):.1%} of ")
    assert "\n" not in repr(found)


def test_strict_match_counts_right_answers_whose_words_are_right(found):
    assert found.strict_score is None and not found.strict, "the task cannot tell"
    task = replace(EVEN, strict=lambda item, text: int(item.target) % 4 < 2)
    again = graded(found.store, task)
    assert again.strict == {g.index: int(g.item.target) % 4 == 0 for g in again.generations}
    assert again.strict_score is not None
    assert again.strict_score == again.tally.strict_match
    assert again.strict_score <= again.score
    assert f"{again.strict_score:.1%} right in every word" in repr(again)
    half = compared([again], [replace(again, strict=again.right)], strict=True)
    assert half.difference == pytest.approx(again.strict_score - again.score)
    assert STRICT in Comparison({"one": again}).rows[0]


def test_answers_equal_those_of_generate(found, model):
    answers = found.generations[:3]
    questions = [[{"role": "user", "content": each.item.question}] for each in answers]
    prompts = [model.tokenizer.encode_chat(question) for question in questions]
    expected = lj.generate(model, prompts, SHORT).generated
    assert [each.tokens for each in answers] == [each.tolist() for each in expected]


def test_an_interrupted_run_resumes_in_its_folder(found, model, tmp_path, monkeypatch):
    asked = []

    def interrupted(trial, indices):
        asked.append(indices)
        yield next(answers(trial, indices))
        if indices[0] == 0:
            raise KeyboardInterrupt

    answers = Trial.answers
    monkeypatch.setattr(Trial, "answers", interrupted)
    with pytest.raises(KeyboardInterrupt):
        even(model, folder=tmp_path / "run")
    again = even(model, folder=tmp_path / "run")
    assert asked == [[0, 1, 2, 3, 4, 5], [3, 4, 5]]
    assert again.generations == found.generations
    traces = zip(again.store.traces(), found.store.traces(), strict=True)
    assert all(ours.same_decoding(theirs) for (_, ours), (_, theirs) in traces)
    assert Evaluation.load(tmp_path / "run", task=EVEN).score == found.score
    monkeypatch.setattr(Trial, "answers", None)
    assert repr(even(model, folder=tmp_path / "run")) == repr(again)
    with pytest.raises(ValueError, match=r"threshold is 0\.0001 there and 0\.5 here"):
        even(model, SHORT.replace(threshold=0.5), folder=tmp_path / "run")


def test_a_baseline_is_compared_on_the_same_items(found, model):
    compared = even(model, baseline=found)
    assert (compared.against.difference, compared.against.p_value) == (0, 1)
    assert "+0.0 points against the baseline" in repr(compared)
    with pytest.raises(ValueError, match=r"the baseline's task is .*'seed': 0.*'seed': 1"):
        even(model, seed=1, baseline=found)
    with pytest.raises(ValueError, match=r"lacks items \[6\] that this evaluation has"):
        even(model, items=7, baseline=found)


def test_decoders_are_compared_with_the_first(found, model):
    samplers = {"a": SHORT, "b": SHORT.replace(threshold=0.5)}
    settings = {"items": 6, "progress": False}
    comparison = lj.compare({"x": model, "y": model}, samplers, EVEN, **settings)
    assert list(comparison.evaluations) == ["x: a", "x: b", "y: a", "y: b"]
    first, other = comparison.evaluations["x: a"], comparison.evaluations["x: b"]
    assert first.generations == found.generations and other.against.difference == 0
    assert first.nfe == 1 < other.nfe
    assert comparison.rows[1]["forwards"] == f"{other.nfe:.2f}"
    differences = [row["points of difference (95 %)"] for row in comparison.rows]
    assert differences[0] == comparison.rows[0]["McNemar p"] == "" and all(differences[1:])
    cells = "row-forwards | tokens/forward | points of difference (95 %) | McNemar p |"
    assert cells in comparison._repr_markdown_().splitlines()[0]
    assert repr(comparison).splitlines()[2].startswith("x: b  ")
    stored = lj.Comparison({"a": found, "b": first})
    assert stored.rows[0] == {**comparison.rows[0], "": "a"}
    with pytest.raises(ValueError, match=r"the baseline's task is .*'seed': 1.*'seed': 0"):
        lj.Comparison({"a": even(model, seed=1), "b": found})


@pytest.mark.parametrize(
    ("models", "sampler", "message"),
    [
        ("nowhere", {"a": SHORT, "b": "quick"}, "preset is 'quick'; allowed: 'llada'"),
        (None, {"a": SHORT, "b": "draft"}, "drafter is 'own' and the model has none"),
        ({}, SHORT, "evaluations is empty; allowed: one or more"),
    ],
    ids=["preset", "sampler", "none"],
)
def test_a_bad_comparison_decodes_nothing(models, sampler, message, model, monkeypatch):
    monkeypatch.setattr(Trial, "answers", None)
    with pytest.raises(ValueError, match=message):
        lj.compare(model if models is None else models, sampler, EVEN)


def test_a_preset_gets_the_tasks_answer_length(model, monkeypatch):
    asked = []

    def noted(trial, indices):
        asked.append(trial.sampler)
        raise KeyboardInterrupt

    monkeypatch.setattr(Trial, "answers", noted)
    with pytest.raises(KeyboardInterrupt):
        evaluate(model, "yes_no", "staged", items=1, progress=False)
    assert asked == [lj.SamplerConfig.preset("staged", gen_length=64, steps=64)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "chess"}, "task is 'chess'; allowed: choices, countdown"),
        ({"sampler": "quick"}, "preset is 'quick'; allowed: 'llada'"),
        ({"items": 0}, "items is 0; allowed: 1 or more"),
        ({"batch_size": 0}, "batch_size is 0; allowed: 1 or more"),
        ({"places": 0}, "places is 0; allowed: 1 or more"),
        ({"difficulty": 9}, "difficulty of word_problems is 9; allowed: 0, 1, 2, 3"),
        ({"backend": "gpu"}, "backend is 'gpu'; allowed: 'xla'"),
        ({"model": "nowhere"}, "no model at 'nowhere'"),
        ({"baseline": "nowhere"}, "nowhere/generations has no settings.json"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_input_leaves_no_folder(changes, message, model, tmp_path):
    settings = {"model": model, "progress": False, **changes}
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        evaluate(**settings, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_without_a_tokenizer_is_refused(model):
    with pytest.raises(ValueError, match=r"model 'model' has no tokenizer; allowed"):
        even(model.replace(tokenizer=None))


def test_a_fingerprint_is_the_same_in_tiles():
    pytest.importorskip("llvmlite")
    model = lj.load("tiny")
    assert fingerprint(lj.tiled(model)) == fingerprint(model)


def test_non_finite_models_are_not_scored(model, tmp_path):
    """Its weights are finite, and its activations are not."""
    large = model.params._replace(final_norm=model.params.final_norm * 3e38)
    broken = model.replace(params=large)
    with pytest.raises(FloatingPointError, match=r"NaN or infinite \(canvas 0: forward 0, pos.*c"):
        even(broken, folder=tmp_path / "run")
    assert not (tmp_path / "run" / "generations").exists()
    with pytest.raises(FloatingPointError, match="log-likelihoods are NaN or infinite"):
        log_likelihoods(broken.params, broken.config, [([5], [6, 7])])


def test_a_model_is_identified_by_its_content(model, tmp_path):
    config, params = model.config, model.params
    folder = tmp_path / "model"
    save_huggingface(folder, config, params)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model_path("tiny") / name, folder)
    first = lj.load(folder, "float32")
    assert lj.load(folder, "int8").fingerprint == first.fingerprint == fingerprint(first)
    even(first, folder=tmp_path / "run", items=3)
    matrix = np.array(params.layers[0].attention.query)
    matrix[0, 0] += 1  # no vector differs
    layer = params.layers[0]._replace(attention=params.layers[0].attention._replace(query=matrix))
    other = params._replace(layers=(layer, *params.layers[1:]))
    in_memory = [lj.Model(config, each, None) for each in (params, other)]
    assert len(set(map(fingerprint, in_memory))) == 2
    save_huggingface(folder, config, other)
    with pytest.raises(ValueError, match=r"with other settings: fingerprint is '\w{32}' there an"):
        even(lj.load(folder, "float32"), folder=tmp_path / "run")
    with pytest.raises(ValueError, match="dtype is 'float32' there and 'int8' here"):
        even(lj.load(folder, "int8"), folder=tmp_path / "run")


@pytest.mark.slow
def test_evaluate_does_not_import_experiments(tmp_path):
    """In a fresh process that finds neither `experiments` nor Hydra."""
    code = f"""
import sys
sys.modules["hydra"] = sys.modules["omegaconf"] = sys.modules["experiments"] = None
from llada_jax.sampler.config import SamplerConfig
from llada_jax.evaluation.evaluate import evaluate
from llada_jax.evaluation.likelihood import log_likelihoods
sampler = SamplerConfig.from_flat(gen_length=32, steps=32, threshold=0.01, cache="blockwise")
print(evaluate("tiny", "yes_no", sampler, items=1, folder={str(tmp_path)!r}, progress=False))
"""
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith("Evaluation(yes_no/custom: ")
    (batch,) = GenerationStore.load(tmp_path / "generations").batches()
    assert json.loads(json.dumps(batch.environment))["packages"]["jax"] == jax.__version__
