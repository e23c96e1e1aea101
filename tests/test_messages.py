"""Messages of a chat: one check, for prompts and for training files."""

import json

import pytest

import llada_jax as lj
from llada_jax.messages import checked_messages
from llada_jax.training.sft import read_examples

USER, ANSWER = {"role": "user", "content": "3+4=?"}, {"role": "assistant", "content": "7"}


def part(text, kind="text"):
    return {"type": kind, "text": text}


def test_parts_of_text_are_joined_and_other_keys_stay():
    message = {"role": "user", "content": [part("3+"), part("4=?")], "name": "a"}
    assert checked_messages((message,), str) == [{**USER, "name": "a"}]
    assert message["content"] == [part("3+"), part("4=?")]


BAD = [
    ([], r"messages is \[\]; allowed: a list with one or more"),
    ("3+4", "messages is '3[+]4'; allowed: a list"),
    (USER, "messages is {.*; allowed: a list"),
    (None, "messages is None; allowed: a list"),
    (["3+4"], "message 1 is '3[+]4'; allowed: {.role"),
    ([USER, {"role": "user", "content": None}], "message 2: content is None; allowed: text"),
    ([{"role": "user"}], "message 1: content is None; allowed: text"),
    ([{"role": "user", "content": 3}], "message 1: content is 3; allowed: text"),
    ([{"role": "user", "content": []}], r"message 1: content is \[\]; allowed: text"),
    ([{"role": "user", "content": ["a"]}], "message 1: content is .*; allowed: text"),
    (
        [{"role": "user", "content": [part("a", "image")]}],
        "message 1: content is .*; allowed: text",
    ),
    ([{"role": "user", "content": [part(3)]}], "message 1: content is .*; allowed: text"),
    ([{"role": "tool", "content": "a"}], "message 1: role is 'tool'; allowed: 'system', 'us"),
    ([{"role": ["user"], "content": "a"}], "message 1: role is .*; allowed: 'system'"),
    ([{"content": "a"}], "message 1: role is None; allowed: 'system'"),
    ([USER, {"role": "user", "content": "a\ud800"}], "message 2: the text has '.ud800' at char"),
]


@pytest.mark.parametrize(("messages", "message"), BAD)
def test_prompts_and_training_files_refuse_the_same(messages, message, tmp_path):
    model = lj.load("tiny")
    with pytest.raises(ValueError, match=f"^{message}"):
        model.tokenizer.encode_chat(messages)
    with pytest.raises(ValueError, match=f"^{message}"):
        model.tokenizer.apply_chat_template(messages)
    if isinstance(messages, list):
        (tmp_path / "a.jsonl").write_text(json.dumps({"messages": [*messages, ANSWER][:9]}))
        if messages:
            with pytest.raises(ValueError, match=f"a.jsonl, line 1: {message}"):
                read_examples(tmp_path / "a.jsonl", model.tokenizer, model.config, 32)
