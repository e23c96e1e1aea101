"""The harness's standard tasks and groups, unchanged, on small data files of ours."""

import json
from pathlib import Path

import pytest

pytest.importorskip("lm_eval", reason="needs the extra eval")
from experiments.lm_eval.__main__ import HARNESS, evaluate, metric_rows
from experiments.lm_eval.tasks import harness_tasks, tasks_of
from tests.experiments.lm_eval.test_lm_eval import DATA, Oracle, config_of

ADDED = {
    "task_id": "Ours/0",
    "prompt": 'def add(a, b):\n    """Returns the sum."""\n',
    "canonical_solution": "    return a + b\n",
    "test": "def check(candidate):\n    assert candidate(2, 3) == 5\n",
    "entry_point": "add",
}
TRIPLED = {
    "task_id": 11,
    "text": "Write a function that triples a number.",
    "code": "def triple(n):\n    return 3 * n",
    "test_list": [f"assert triple({n}) == {3 * n}" for n in range(3)],
    "test_setup_code": "",
    "challenge_test_list": [],
}
MMLU = {"question": "What is 2 + 2?", "choices": ["3", "4", "5", "6"], "answer": 1}
MMLU_PRO = {
    "question_id": 1,
    "question": "What is 2 + 2?",
    "options": ["3", "4", "5"],
    "answer": "B",
    "answer_index": 1,
    "cot_content": "A: Let's think step by step. The answer is (B).",
    "category": "math",
    "src": "ours",
}
CATEGORIES = (
    *("biology", "business", "chemistry", "computer science", "economics", "engineering"),
    *("health", "history", "law", "math", "other", "philosophy", "physics", "psychology"),
)


class Right(Oracle):
    """Answers every item of these tasks correctly."""

    def __init__(self):
        super().__init__(self.written)

    def written(self, doc):
        if "canonical_solution" in doc:
            return doc["canonical_solution"]
        if "code" in doc:
            return doc["code"]
        if "target" in doc:
            return f" So the answer is {doc['target']}."
        if "options" in doc:
            return f"The answer is ({doc['answer']})."
        return doc["answer"] + " The answer is " + doc["answer"].split("####")[1].strip() + "."

    def loglikelihood(self, requests):
        self.requests += requests
        return [(0.0 if r.idx == self._gold(r.doc) else -9.0, False) for r in requests]

    def _gold(self, doc):
        if "gold" in doc:
            return doc["gold"]
        if "label" in doc:
            return int(doc["label"])
        if "answerKey" in doc:
            return doc["choices"]["label"].index(doc["answerKey"])
        return doc["answer"]


def write(folder, task, lines, *splits):
    (folder / task).mkdir()
    for split in splits:
        content = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / task / f"{split}.jsonl").write_text(content)


def own(name):
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]


def scored(data, task, *overrides):
    settings = [f"task_folder={HARNESS}", f"data={data}", f"tasks=[{task}]", "chat=false"]
    config = config_of(*settings, *overrides, limit=1)
    (asked,) = config.requested_tasks()
    model = Right()
    found = evaluate(model, [asked], config)
    return model, {
        row.name: row.value
        for name in asked.files
        for row in metric_rows(name, found["samples"][name])
    }  # fmt: skip


@pytest.mark.parametrize(
    ("task", "lines", "splits", "metric"),
    [
        ("gsm8k_cot", own("gsm8k"), ["train", "test"], "exact_match/strict-match"),
        ("arc_easy", own("arc_challenge"), ["train", "validation", "test"], "acc_norm"),
        ("arc_challenge", own("arc_challenge"), ["train", "validation", "test"], "acc_norm"),
        ("hellaswag", own("hellaswag"), ["train", "validation"], "acc_norm"),
    ],
)
def test_a_right_answer_scores_in_full(tmp_path, task, lines, splits, metric):
    write(tmp_path, task, lines, *splits)
    _, rows = scored(tmp_path, task)
    assert rows[f"{task}/{metric}"] == 1.0


@pytest.mark.parametrize(
    ("task", "item", "metric"),
    [("humaneval", ADDED, "pass@1/create_test"), ("mbpp", TRIPLED, "pass_at_1")],
)
def test_code_runs_only_with_run_code(tmp_path, monkeypatch, task, item, metric):
    hf = pytest.importorskip("evaluate")
    monkeypatch.setattr(hf, "load", lambda name: Executed())  # the metric itself is on the network
    monkeypatch.setenv("HF_ALLOW_CODE_EVAL", "0")
    write(tmp_path, task, [item], "test")
    with pytest.raises(ValueError, match=f"task {task} runs the code that a model writes"):
        scored(tmp_path, task)
    _, rows = scored(tmp_path, task, "run_code=true")
    assert rows == {f"{task}/{metric}": 1.0}


class Executed:
    """Like `code_eval` of Hugging Face's `evaluate`, for our code, in this process."""

    def compute(self, references, predictions, k):
        passed = [any(runs(code, test) for code in codes) for test, codes in zip(references, predictions, strict=True)]  # fmt: skip  # noqa: E501
        return {f"pass@{each}": sum(passed) / len(passed) for each in k}, {}


def runs(code, test):
    try:
        exec(f"{code}\n{test}", {})
    except AssertionError:
        return False
    return True


def test_a_group_contains_its_tasks_with_separate_data(tmp_path):
    tasks = tasks_of("mmlu_social_sciences")
    assert len(tasks) == 12 and set(tasks) < set(tasks_of("mmlu"))
    for task in tasks:
        write(tmp_path, task, [MMLU], "dev", "test")
    model, rows = scored(tmp_path, "mmlu_social_sciences", "fewshot=1")
    assert set(rows.values()) == {1.0} and set(rows) == {f"{task}/acc" for task in tasks}
    assert model.requests[0].args[0].count("Answer:") == 2, "an example, and the item"


def test_chains_of_thought_of_bbh(tmp_path):
    for task in tasks_of("bbh"):
        write(tmp_path, task, [{"input": "not True is", "target": "False"}], "test")
    _, rows = scored(tmp_path, "bbh")
    assert len(rows) == 27 and set(rows.values()) == {1.0}


def test_tasks_that_pick_their_items_share_the_data_of_their_group(tmp_path):
    lines = [MMLU_PRO | {"category": each} for each in CATEGORIES for _ in range(5)]
    write(tmp_path, "mmlu_pro", lines, "test", "validation")
    _, rows = scored(tmp_path, "mmlu_pro")
    assert len(rows) == 14 and set(rows.values()) == {1.0}


def test_data_of_a_whole_group_are_not_used_for_each_task(tmp_path):
    write(tmp_path, "mmlu_stem", [MMLU], "test")
    with pytest.raises(FileNotFoundError, match=r"mmlu_abstract_algebra/<split>\.jsonl, which"):
        harness_tasks(["mmlu_stem"], tmp_path, runs_code=False)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("gsm9k", "the harness has no task"),
        ("minerva_math", "task minerva_math_algebra needs antlr4 4.11"),
    ],
)
def test_tasks_that_cannot_run_are_refused_before_work_starts(task, message):
    with pytest.raises(ValueError, match=message):
        harness_tasks([task], Path("nowhere"), runs_code=False)
