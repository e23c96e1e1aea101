"""The harness's interface of a model: texts become ids, answers become texts, both are stored."""

import importlib
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import llada_jax as lj

pytest.importorskip("lm_eval", reason="needs the extra eval")

from llada_jax.evaluation import lm_eval_model
from llada_jax.evaluation.generations import ALONE, Worker
from llada_jax.evaluation.likelihood import log_likelihoods
from llada_jax.evaluation.lm_eval_model import LmEvalModel, StoredAnswers

TINY = lj.load("tiny")
TOKENIZER = TINY.tokenizer
assert TOKENIZER is not None
SAMPLER = lj.SamplerConfig.from_flat(gen_length=64, block_length=32, steps=64)


def asking(*args, doc=0):
    return SimpleNamespace(args=args, task_name="task", doc_id=doc)


def model_with(tokenizer=TOKENIZER, **options):
    options = {"mc_num": 4, "batch_size": 4, "progress": False, **options}
    return LmEvalModel(TINY.replace(tokenizer=tokenizer), SAMPLER, **options)


@pytest.fixture
def answers(monkeypatch):
    """Decodes the same text after each prompt, and records its requests."""
    return Answers(monkeypatch)


class Answers:
    def __init__(self, monkeypatch):
        self.text, self.asked, self.stops = "A. B\n\nC", [], []
        monkeypatch.setattr(lm_eval_model, "generate_stream", self)

    def __call__(self, model, prompts, config, *, places, backend, seed):
        assert config.replace(stop=()) == SAMPLER and places == 4 and backend == "xla"
        self.asked.append((prompts, seed))
        self.stops.append(config.stop)
        return (SimpleNamespace(answers=[self.answer(prompt)]) for prompt in prompts)

    def answer(self, prompt):
        return np.array(TOKENIZER.encode(self.text))


def test_likelihoods_of_texts_match_likelihoods_of_ids():
    context, answer = "Anna had 4 apples. How many?", " 4 apples"
    ((value, greedy),) = model_with().loglikelihood([asking(context, answer)])
    ids = TOKENIZER.encode(context), TOKENIZER.encode(answer)
    assert value == log_likelihoods(TINY.params, TINY.config, [ids], mc_num=4, batch_size=4)[0]
    assert greedy is False


def test_likelihoods_come_with_the_greedy_answer_and_standard_errors(monkeypatch):
    context, answers = "Anna had 4 apples. How many?", (" 4", " 4 apples, 3 books")
    model = model_with()

    def greedy_answers(params, config, pairs, batch_size):
        assert pairs == [model._pair(context, answer) for answer in answers] and batch_size == 4
        return np.array([True, False])

    monkeypatch.setattr(lm_eval_model, "greedy_answers", greedy_answers)
    asked = [asking(context, answer, doc=doc) for doc, answer in enumerate(answers)]
    (_, greedy), (value, other) = model.loglikelihood(asked)
    assert (greedy, other) == (True, False)
    assert model.standard_errors["task", 0] == [0.0], "few patterns: exact"
    (error,) = model.standard_errors["task", 1]
    assert 0 < error < -value


def test_a_rolling_likelihood_is_of_the_whole_text_after_bos():
    text = "Anna had 4 apples."
    (value,) = model_with().loglikelihood_rolling([asking(text)])
    pair = [TOKENIZER.bos_id], TOKENIZER.encode(text)
    assert value == log_likelihoods(TINY.params, TINY.config, [pair], mc_num=4, batch_size=4)[0]
    with pytest.raises(
        ValueError, match=r"text of prompt and answer 0 has \d+ tokens; allowed: up to"
    ):
        model_with().loglikelihood_rolling([asking("Anna had 4 apples. " * 200)])


def test_context_and_answer_ids_decode_to_the_text():
    model = model_with()
    for context, answer in [("Anna had ", "4"), ("ap", "ple"), ("x\n\n", "yes"), ("", "a b")]:
        prompt, scored = model._pair(context, answer)
        text = TOKENIZER.decode([*prompt, *scored])
        assert text == context + answer and scored
    prompt, scored = model._pair("Anna had ", "4")
    assert TOKENIZER.decode(prompt) == "Anna had" and TOKENIZER.decode(scored) == " 4"


def test_a_text_without_context_follows_bos():
    assert model_with()._pair("", "a") == ([TOKENIZER.bos_id], TOKENIZER.encode("a"))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "A. B\n\nC"),
        ({"until": ["\n\n"]}, "A. B"),
        ({"until": "\n\n"}, "A. B"),
        ({"until": ["C", ".", "\n"]}, "A"),
        ({"until": ["D"], "do_sample": False, "temperature": 0.0}, "A. B\n\nC"),
        ({"max_gen_toks": 1}, "A"),
        ({"do_sample": True, "temperature": 0.0}, "A. B\n\nC"),
    ],
)
def test_a_text_ends_at_the_tasks_stop_string(answers, settings, text):
    assert model_with().generate_until([asking("x", settings)]) == [text]


def test_a_special_token_can_be_a_stop_string(answers):
    answers.text = "one<|start_header_id|>two"
    stop = {"until": ["<|start_header_id|>"]}
    assert model_with().generate_until([asking("x", stop)]) == ["one"]
    assert model_with().generate_until([asking("x", {})]) == ["onetwo"]


def test_prompts_are_decoded_in_one_stream_and_answered_in_order(answers):
    answers.answer = np.array
    texts = [f"{'x' * n}." for n in (3, 9, 1, 4, 7, 2)]
    assert model_with().generate_until([asking(text, {}) for text in texts]) == texts
    assert model_with().generate_until([asking("a", {})]) == ["a"]
    assert [len(prompts) for prompts, _ in answers.asked] == [6, 1]


def test_each_stop_string_has_a_separate_stream(answers):
    answers.answer = np.array
    settings = [{"until": ["."]}, {"until": "\n"}, {"until": ["."]}]
    asked = [asking(text, each) for text, each in zip("abc", settings, strict=True)]
    assert model_with().generate_until(asked) == ["a", "b", "c"]
    assert answers.stops == [(".",), ("\n",)]
    assert [len(prompts) for prompts, _ in answers.asked] == [2, 1]


def test_an_answer_excludes_the_end_of_turn():
    sampler = lj.SamplerConfig.from_flat(gen_length=32, block_length=32, steps=32, threshold=0.5)
    model = LmEvalModel(TINY, sampler, progress=False)
    context = TOKENIZER.apply_chat_template([{"role": "user", "content": "3+4=?"}])
    asked = [asking(context, {})]
    seeds = model.seeds(asked)
    expected = lj.generate(TINY, [TOKENIZER.encode(context)], sampler, seed=seeds).text
    assert model.generate_until(asked) == expected


def test_seeds_belong_to_the_requests(answers):
    requests = [asking(text, {}, doc=doc) for doc, text in enumerate(("a", "a b c", "a b"))]
    model = model_with(seed=10)
    model.generate_until(requests)
    first, second, third = model.seeds(requests)
    assert [seeds for _, seeds in answers.asked] == [[first, second, third]]
    assert model.seeds(requests[1:]) == [second, third], "a limit changes no seed"
    assert model_with(seed=11).seeds(requests) == [first + 1, second + 1, third + 1]
    assert len({*model.seeds(requests[:1] * 3)}) == 3, "samples of one item differ"


def test_a_chat_goes_through_the_template_once(answers):
    chat = [{"role": "user", "content": "3+4=?"}]
    model = model_with()
    context = model.apply_chat_template(chat)
    model.generate_until([asking(context, {})])
    assert answers.asked[0][0] == [TOKENIZER.encode_chat(chat)]
    assert model.chat_template(True) == TOKENIZER.chat_template and model.chat_template() == ""
    assert not model.apply_chat_template(chat, False).endswith("assistant<|end_header_id|>\n\n")


def test_the_tokenizer_name_depends_on_the_chat_template():
    other = type(TOKENIZER)(TOKENIZER.backend, TOKENIZER.special_tokens, "{{ messages }}")
    assert model_with().tokenizer_name == model_with().tokenizer_name
    assert model_with().tokenizer_name != model_with(tokenizer=other).tokenizer_name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_p": 0.9}, "a task's generation_kwargs have 'top_p'; allowed: until, max_gen_toks"),
        ({"do_sample": True, "temperature": 0.7}, r"samples at temperature 0.7; allowed: .* \(0.0"),
        ({"do_sample": True}, "samples at temperature 1.0; allowed"),
    ],
)
def test_unsupported_requests_are_refused_before_decoding(answers, settings, message):
    with pytest.raises(ValueError, match=message):
        model_with().generate_until([asking("x", {}), asking("x", settings)])
    assert not answers.asked


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": None}, "no tokenizer; allowed: one with tokenizer.json, or"),
        ({"mc_num": 0}, "mc_num is 0; allowed: 1 or more"),
        ({"batch_size": 0}, "batch_size is 0; allowed: 1 or more"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        model_with(**options)


def test_the_error_without_the_extra_names_it(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "lm_eval"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, LmEvalModel.__module__)
    told = r"^lm-evaluation-harness is not installed .*pip install 'llada_jax\[eval\]'$"
    with pytest.raises(ImportError, match=told):
        importlib.import_module(LmEvalModel.__module__)


TEXTS = [
    SimpleNamespace(args=("x" * length, {"until": ["."]}), task_name="task", doc_id=doc)
    for doc, length in enumerate((3, 9, 1, 4, 7, 2, 5))
]
PAIRS = [SimpleNamespace(args=("q", "a" * n), task_name="mc", doc_id=0) for n in (2, 5, 3)]
EXPECTED = [f"{each.args[0]} {each.doc_id}" for each in TEXTS]


def stored_answers(folder, worker=ALONE, **settings):
    return StoredAnswers(folder, {"seed": 0, **settings}, 2, worker)


def texts(kept, requests=TEXTS):
    def answer(places):
        return [f"{requests[i].args[0]} {requests[i].doc_id}" for i in places]

    return kept.to("texts", requests, answer, "")


def likelihoods(kept):
    return kept.to("likelihoods", PAIRS, lambda places: [-len(PAIRS[i].args[1]) for i in places], 0)


def test_workers_share_the_requests_and_the_last_one_has_all_answers(tmp_path):
    for rank in range(3):
        one = stored_answers(tmp_path, Worker(rank=rank, count=3))
        found = texts(one)
        assert all(each in ("", expected) for each, expected in zip(found, EXPECTED, strict=True))
        assert one.answered == (3 if rank == 0 else 2)
        assert len(likelihoods(one)) == 3
    judging = stored_answers(tmp_path)
    assert texts(judging) == EXPECTED
    assert likelihoods(judging) == [-2, -5, -3]
    assert judging.answered == 0


def test_requests_of_a_killed_worker_are_answered_later(tmp_path):
    texts(stored_answers(tmp_path, Worker(rank=1, count=3)))
    judging = stored_answers(tmp_path)
    assert texts(judging) == EXPECTED
    assert judging.answered == 5


def test_other_settings_and_other_requests_are_refused(tmp_path):
    texts(stored_answers(tmp_path))
    with pytest.raises(ValueError, match="seed is 0 there and 1 here"):
        texts(stored_answers(tmp_path, seed=1))
    with pytest.raises(ValueError, match="requests is"):
        texts(stored_answers(tmp_path), TEXTS[:3])
    stored = next(tmp_path.glob("texts/*.jsonl"))
    stored.write_text(stored.read_text().replace("xxx", "xxy"))
    with pytest.raises(ValueError, match="is damaged"):
        texts(stored_answers(tmp_path))
    assert json.loads((tmp_path / "texts" / "settings.json").read_text())["items"] == len(TEXTS)
