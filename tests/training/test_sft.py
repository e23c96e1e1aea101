"""Examples from users' files: their conversion, and errors of a line."""

import json
from collections import Counter

import pytest

import llada_jax as lj
from llada_jax.training.sft import read_examples, shuffled

TINY = lj.load("tiny")
TOKENIZER = TINY.tokenizer
assert TOKENIZER is not None
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "3+4=?"},
    {"role": "assistant", "content": "7"},
    {"role": "user", "content": "And 1 more?"},
    {"role": "assistant", "content": "8"},
]


@pytest.fixture
def read(tmp_path):
    def read(*lines, longest: int = 32):
        path = tmp_path / "data.jsonl"
        texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
        path.write_text("".join(text + "\n" for text in texts))
        return read_examples(path, TOKENIZER, TINY.config, longest)

    return read


def test_each_assistant_turn_is_an_example_after_all_earlier_turns(read):
    first, second = read({"messages": CHAT})
    assert first.prompt == TOKENIZER.encode_chat(CHAT[:2])
    assert first.answer == [*TOKENIZER.encode("7"), TINY.config.eot_id]
    assert second.prompt == TOKENIZER.encode_chat(CHAT[:4])
    assert TOKENIZER.decode(second.answer) == "8"


def test_a_pair_is_verbatim_text_followed_by_the_end(read):
    (pair,) = read({"prompt": "3+4=", "completion": "7", "source": "mine"})
    assert pair.prompt == TOKENIZER.encode("3+4=", add_special_tokens=True)
    assert pair.answer == [*TOKENIZER.encode("7"), TINY.config.eos_id]


def test_all_examples_come_once_in_each_round_in_another_order(read):
    examples = read(*({"prompt": str(n), "completion": "a"} for n in range(7)))
    source = shuffled(examples, seed=3)
    rounds = [[tuple(source(i).prompt) for i in range(7 * k, 7 * k + 7)] for k in range(3)]
    assert [Counter(each) for each in rounds] == [Counter(tuple(e.prompt) for e in examples)] * 3
    assert rounds[0] != rounds[1] != rounds[2]
    again = shuffled(examples, seed=3)
    assert [tuple(again(i).prompt) for i in (20, 0, 13)] == [
        rounds[2][6], rounds[0][0], rounds[1][6]
    ]  # fmt: skip
    assert [tuple(shuffled(examples, seed=4)(i).prompt) for i in range(7)] != rounds[0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"line 2: it is no JSON"),
        ("[]", r"line 2: it is \[\]; allowed: \{\"messages\""),
        ({"prompt": "a"}, r"line 2: it is .*; allowed: .*completion"),
        ({"prompt": "a", "completion": 3}, r"line 2: it is "),
        (
            {"prompt": "a", "completion": ""},
            r"line 2: it has an empty answer; allowed: a character",
        ),
        ({"messages": [], "prompt": "a", "completion": "b"}, r"line 2: it is "),
        (
            {"messages": CHAT[:2]},
            r"has the roles \['system', 'user'\]; allowed: a chat that",
        ),
        ({"messages": CHAT[2:3]}, r"has the roles \['assistant'\]; allowed"),
        (
            {"prompt": "a", "completion": "123456789" * 4},
            r"line 2: it has a prompt of \d tokens and an answer of 37; allowed: up to \d+ and 32",
        ),
        (
            {"prompt": "1 " * 900, "completion": "b"},
            r"line 2: it has a prompt of \d{3,} tokens and an answer of 2; allowed: up to \d+ and",
        ),
    ],
)
def test_a_bad_line_is_named(read, line, message):
    with pytest.raises(ValueError, match=message):
        read({"prompt": "1", "completion": "2"}, line)


def test_control_tokens_in_answers_are_text(read):
    texts = ["x <|mask|> y", "a<|endoftext|>b", "5<|eot_id|>6"]
    chats = [{"messages": [CHAT[1], {"role": "assistant", "content": text}]} for text in texts]
    for found in (read(*chats), read(*({"prompt": "a", "completion": text} for text in texts))):
        for example, text in zip(found, texts, strict=True):
            *answer, _ = example.answer
            assert TOKENIZER.decode(answer) == text and not {*answer} & {0, 3, 6}


@pytest.mark.filterwarnings("ignore:the tokenizer has no token for")
def test_only_a_line_feed_ends_a_line(read, tmp_path):
    ends = "\u2028\u2029\u0085\x1c"
    pair = json.dumps({"prompt": f"1{ends}", "completion": "2"}, ensure_ascii=False)
    path = tmp_path / "data.jsonl"
    path.write_bytes(f"\ufeff\n{pair}\r\n \n\n{pair}".encode())
    assert len(read_examples(path, TOKENIZER, TINY.config, 32)) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"prompt": "1", "completion": "2"}\n"é"'.encode("latin-1"), "line 2: 'utf-8' codec can"),
        ('{"prompt": "1", "completion": "2"}'.encode("utf-16"), "line 1: 'utf-8' codec can"),
        (b"\n\n" + b"a" * (1 << 24) + b"b", "line 3: it is too long; allowed: 16,777,216 bytes"),
        (
            json.dumps({"prompt": "1", "completion": "2 " * 10**6}).encode(),
            "line 1: it has an answer of 2,000,000 characters; allowed: up to",
        ),
        (
            json.dumps({"messages": [{**CHAT[1], "content": "3 " * 10**6}, CHAT[2]]}).encode(),
            "line 1: it has a prompt of 2,000,000 characters; allowed: up to",
        ),
        (b'{"prompt": "\\ud800", "completion": "2"}', "line 1: the text has '.ud800' at char"),
        (b'{"prompt": "1", "completion": "\\ud800"}', "line 1: the text has '.ud800' at char"),
    ],
)
def test_invalid_or_too_long_text_is_named_before_encoding(tmp_path, content, message):
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"data.jsonl, {message}"):
        read_examples(path, TOKENIZER, TINY.config, 32)


def test_a_file_without_examples_is_an_error(read, tmp_path):
    with pytest.raises(ValueError, match="is empty; allowed: lines of"):
        read()
    with pytest.raises(FileNotFoundError, match=r"no file .*nowhere; allowed: lines of"):
        read_examples(tmp_path / "nowhere", TOKENIZER, TINY.config, 32)


def test_answers_that_fill_the_model_length_are_refused(read):
    most = TINY.config.max_length
    with pytest.raises(ValueError, match=f"max_gen_length is {most}; allowed: up to {most - 1}"):
        read({"prompt": "1", "completion": "2"}, longest=most)
