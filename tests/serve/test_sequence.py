"""A sequence only streams final text, without text that may still be cut."""

from types import SimpleNamespace

import numpy as np
import pytest

import llada_jax as lj
from llada_jax.sampler.state import MASKED, PROMPT, STABLE, VISIBLE
from llada_jax.serve.sequence import Forward, Request


class Letters:
    """A model with characters as tokens; 0 ends a text."""

    config = SimpleNamespace(eos_id=0, eot_id=None, stop_ids=())
    tokenizer = None

    @staticmethod
    def decode(ids):
        return "".join(map(chr, ids))


Letters.tokenizer = Letters


def sequence(max_tokens=8, stop=()):
    config = lj.SamplerConfig.from_flat(gen_length=8, block_length=4, steps=8, stop=stop)
    (found,) = Request(Letters, [[1, 2]], config, 0, max_tokens).sequences
    return found


def forward(text, status):
    """A canvas after a prompt of two tokens; `.` is a mask, `v` visible, `s` stable."""
    states = {".": MASKED, "v": VISIBLE, "s": STABLE}
    tokens = [1, 2, *(299 if each == "." else ord(each) for each in text)]
    states = [PROMPT, PROMPT, *(states[each] for each in status)]
    sure = np.linspace(0.1, 1, len(tokens), dtype=np.float32)
    return Forward(np.array(tokens), np.array(states), sure, 4)


def test_only_final_text_is_streamed():
    found = sequence()
    steps = [("ab.d....", "sv.s...."), ("abcd....", "ssvs...."), ("abCd....", "ssss...."),
             ("abCdefgh", "ssssvvvv")]  # fmt: skip
    texts = []
    for place, (text, status) in enumerate(steps):
        found.advance(forward(text, status), done=place == 3)
        texts.append(found.text)
    assert texts == ["a", "ab", "abCd", "abCdefgh"] and found.finish == "length"
    assert found.steps == [0, 0, 2, 0, 3, 3, 3, 3]
    assert found.logprobs[0] == pytest.approx(np.log(0.1 + 0.9 * 2 / 9), abs=1e-4)


def test_an_end_a_limit_and_a_stop_string_finish():
    found = sequence()
    found.advance(forward("ab\0.....", "sss....."), done=False)
    assert (found.text, found.finish, len(found.tokens)) == ("ab", "stop", 2)
    found = sequence(max_tokens=3)
    found.advance(forward("abcd....", "ssss...."), done=False)
    assert (found.text, found.finish, len(found.tokens)) == ("abc", "length", 3)
    found = sequence(stop=("cd",))
    found.advance(forward("abc.....", "sss....."), done=False)
    assert (found.text, found.finish) == ("ab", None), "c may begin the stop string"
    found.advance(forward("abcd....", "ssss...."), done=False)
    assert (found.text, found.finish, len(found.tokens)) == ("ab", "stop", 2)
