"""Checks of request bodies, without a server."""

import pytest

import llada_jax as lj
from llada_jax.serve.requests import parse_api_request

SAMPLER = lj.SamplerConfig.preset("blockwise", gen_length=16, block_length=8)


def parse(messages):
    model = lj.load("tiny")
    body = {"messages": messages}
    return model, parse_api_request(body, chat=True, model=model, sampler=SAMPLER, seed=0)


def test_developer_is_the_system_role_and_parts_are_joined():
    parts = [{"type": "text", "text": "3+"}, {"type": "text", "text": "4=?"}]
    model, request = parse([
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": parts, "name": "Ada"},
    ])  # fmt: skip
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "3+4=?"},
    ]
    assert request.prompts == [model.tokenizer.encode_chat(messages)]


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("hi", "message 1 is 'hi'; allowed: {\"role\""),
        ({"role": "tool", "content": "x"}, "message 1: role is 'tool'; allowed: 'system', 'user'"),
        ({"role": "user", "content": []}, r"message 1: content is \[\]; allowed: text"),
    ],
)
def test_messages_get_the_sentences_of_encode_chat(message, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}"):
        parse([message])
