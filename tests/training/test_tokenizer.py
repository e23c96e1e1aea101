import json
import re
from importlib.resources import files
from itertools import islice

import pytest
from tokenizers import Tokenizer

from llada_jax.evaluation.tasks.word_problems import TASK
from llada_jax.training.tokenizer import build_tokenizer, save_tokenizer

BUNDLED = files("llada_jax") / "assets" / "tiny"
SPECIAL_IDS = {
    "<|endoftext|>": 0,
    "<|startoftext|>": 1,
    "<|unk|>": 2,
    "<|mask|>": 3,
    "<|start_header_id|>": 4,
    "<|end_header_id|>": 5,
    "<|eot_id|>": 6,
}


def word_problem_texts(count=20_000):
    """The training text of the bundled tokenizer: train problems of middle difficulty."""
    for problem in islice(TASK.items(0, "train", difficulty=2), count):
        yield from (problem.question, problem.answer)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_str((BUNDLED / "tokenizer.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_module_rebuilds_the_bundled_files(tmp_path):
    save_tokenizer(build_tokenizer(word_problem_texts()), tmp_path)
    built = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    bundled = json.loads((BUNDLED / "tokenizer.json").read_text(encoding="utf-8"))
    assert built["model"] == bundled["model"]
    assert built["added_tokens"] == bundled["added_tokens"]
    name = "tokenizer_config.json"
    assert (tmp_path / name).read_text() == (BUNDLED / name).read_text()


def test_size_and_special_ids(tokenizer):
    assert tokenizer.get_vocab_size() == 472
    assert {token: tokenizer.token_to_id(token) for token in SPECIAL_IDS} == SPECIAL_IDS


@pytest.mark.parametrize("vocab_size", [103, 120, 512])
def test_vocab_size_is_an_upper_bound(vocab_size):
    small = build_tokenizer(islice(word_problem_texts(), 200), vocab_size)
    assert small.get_vocab_size() <= vocab_size
    text = "".join(map(chr, range(32, 127))) + "\n"
    assert small.decode(small.encode(text).ids) == text


def test_a_vocab_size_without_room_is_refused():
    with pytest.raises(ValueError, match="vocab_size is 102; allowed: 103 or more"):
        build_tokenizer([], 102)


def test_golden_tokens(tokenizer):
    text = "Tom had 12 pens, so he had 12+5=17 pens.\n#### 17"
    tokens = tokenizer.encode(text).tokens
    assert [token.replace("Ġ", "_").replace("Ċ", "\n") for token in tokens] == (
        "Tom _had _ 1 2 _pens , _so _he _had _ 1 2 + 5 = 1 7 _pens . \n #### _ 1 7".split(" ")
    )


def test_every_word_of_the_task_and_every_role_is_one_token(tokenizer):
    text = "\n".join(
        f"{p.question}\n{p.answer}" for p in islice(TASK.items(1, "test", difficulty=0), 1000)
    )
    words = {*re.findall(" ?[A-Za-z]+|####", text), "user", "assistant"}
    assert {word for word in words if len(tokenizer.encode(word).ids) > 1} == set()


def test_characters_outside_ascii_become_the_unknown_token(tokenizer):
    assert set(tokenizer.encode("é漢").ids) == {SPECIAL_IDS["<|unk|>"]}


def test_a_prompt_has_the_same_ids_alone_and_before_its_answer(tokenizer):
    for problem in islice(TASK.items(2, "train", difficulty=0), 200):
        prompt = f"{problem.question}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        parts = tokenizer.encode(prompt).ids + tokenizer.encode(problem.answer).ids
        assert tokenizer.encode(prompt + problem.answer).ids == parts
