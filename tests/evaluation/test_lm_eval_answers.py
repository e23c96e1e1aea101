"""Answers to the harness's requests are stored, divided among workers, and read again."""

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("lm_eval", reason="needs the extra eval")

from llada_jax.evaluation.lm_eval_answers import StoredAnswers
from llada_jax.evaluation.worker import ALONE, Worker


class Echo:
    """Answers a text with itself and its seed, a likelihood with a length; counts what it does."""

    tokenizer_name = "echo"

    def __init__(self):
        self.asked = 0

    def seeds(self, requests):
        return [request.doc_id * 10 for request in requests]

    def texts(self, requests, seeds):
        self.asked += len(requests)
        return [f"{each.args[0]} {seed}" for each, seed in zip(requests, seeds, strict=True)]

    def loglikelihood(self, requests):
        self.asked += len(requests)
        return [(-float(len(each.args[1])), False) for each in requests]


TEXTS = [
    SimpleNamespace(args=("x" * length, {"until": ["."]}), task_name="task", doc_id=doc)
    for doc, length in enumerate((3, 9, 1, 4, 7, 2, 5))
]
PAIRS = [SimpleNamespace(args=("q", "a" * n), task_name="mc", doc_id=0) for n in (2, 5, 3)]
EXPECTED = [f"{each.args[0]} {10 * each.doc_id}" for each in TEXTS]


def answers(folder, worker=ALONE, **settings):
    return StoredAnswers(Echo(), folder, {"seed": 0, **settings}, 2, worker)


def test_workers_answer_all_together_and_the_last_one_reads_it(tmp_path):
    for rank in range(3):
        one = answers(tmp_path, Worker(rank=rank, count=3))
        found = one.generate_until(TEXTS)
        assert all(each in ("", expected) for each, expected in zip(found, EXPECTED, strict=True))
        assert one.answered == (3 if rank == 0 else 2)
        assert len(one.loglikelihood(PAIRS)) == 3
    judging = answers(tmp_path)
    assert judging.generate_until(TEXTS) == EXPECTED
    assert judging.loglikelihood(PAIRS) == [(-2.0, False), (-5.0, False), (-3.0, False)]
    assert judging.answered == judging._model.asked == 0


def test_what_a_killed_worker_left_is_answered_at_the_end(tmp_path):
    answers(tmp_path, Worker(rank=1, count=3)).generate_until(TEXTS)
    judging = answers(tmp_path)
    assert judging.generate_until(TEXTS) == EXPECTED
    assert judging.answered == 5


def test_other_settings_and_other_requests_are_refused(tmp_path):
    answers(tmp_path).generate_until(TEXTS)
    with pytest.raises(ValueError, match="seed is 0 there and 1 here"):
        answers(tmp_path, seed=1).generate_until(TEXTS)
    with pytest.raises(ValueError, match="requests is"):
        answers(tmp_path).generate_until(TEXTS[:3])
    text = next(tmp_path.glob("texts/*.jsonl"))
    text.write_text(text.read_text().replace("xxx", "xxy"))
    with pytest.raises(ValueError, match="is damaged"):
        answers(tmp_path).generate_until(TEXTS)
    assert json.loads((tmp_path / "texts" / "settings.json").read_text())["items"] == len(TEXTS)
