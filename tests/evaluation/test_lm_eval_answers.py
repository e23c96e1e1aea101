"""Answers to the harness's requests are stored, divided among workers, and read again."""

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("lm_eval", reason="needs the extra eval")

from llada_jax.evaluation.generations import ALONE, Worker
from llada_jax.evaluation.lm_eval_model import StoredAnswers

TEXTS = [
    SimpleNamespace(args=("x" * length, {"until": ["."]}), task_name="task", doc_id=doc)
    for doc, length in enumerate((3, 9, 1, 4, 7, 2, 5))
]
PAIRS = [SimpleNamespace(args=("q", "a" * n), task_name="mc", doc_id=0) for n in (2, 5, 3)]
EXPECTED = [f"{each.args[0]} {each.doc_id}" for each in TEXTS]


def answers(folder, worker=ALONE, **settings):
    return StoredAnswers(folder, {"seed": 0, **settings}, 2, worker)


def texts(kept, requests=TEXTS):
    def answer(places):
        return [f"{requests[i].args[0]} {requests[i].doc_id}" for i in places]

    return kept.to("texts", requests, answer, "")


def likelihoods(kept):
    return kept.to("likelihoods", PAIRS, lambda places: [-len(PAIRS[i].args[1]) for i in places], 0)


def test_workers_answer_all_together_and_the_last_one_reads_it(tmp_path):
    for rank in range(3):
        one = answers(tmp_path, Worker(rank=rank, count=3))
        found = texts(one)
        assert all(each in ("", expected) for each, expected in zip(found, EXPECTED, strict=True))
        assert one.answered == (3 if rank == 0 else 2)
        assert len(likelihoods(one)) == 3
    judging = answers(tmp_path)
    assert texts(judging) == EXPECTED
    assert likelihoods(judging) == [-2, -5, -3]
    assert judging.answered == 0


def test_what_a_killed_worker_left_is_answered_at_the_end(tmp_path):
    texts(answers(tmp_path, Worker(rank=1, count=3)))
    judging = answers(tmp_path)
    assert texts(judging) == EXPECTED
    assert judging.answered == 5


def test_other_settings_and_other_requests_are_refused(tmp_path):
    texts(answers(tmp_path))
    with pytest.raises(ValueError, match="seed is 0 there and 1 here"):
        texts(answers(tmp_path, seed=1))
    with pytest.raises(ValueError, match="requests is"):
        texts(answers(tmp_path), TEXTS[:3])
    stored = next(tmp_path.glob("texts/*.jsonl"))
    stored.write_text(stored.read_text().replace("xxx", "xxy"))
    with pytest.raises(ValueError, match="is damaged"):
        texts(answers(tmp_path))
    assert json.loads((tmp_path / "texts" / "settings.json").read_text())["items"] == len(TEXTS)
