"""Stop strings: the text ends before the first one, and decoding at the end of its block."""

import numpy as np
import pytest

import llada_jax as lj
from llada_jax.sampler.state import MASKED, PROMPT, STABLE, VISIBLE
from llada_jax.sampler.stops import before_stop, final_tokens, settled_text
from tests.sampler.toy import EOS, toy_decode

PROMPTS = [[1, 2, 3], [4, 5]]


def to_text(ids):
    return "".join(chr(0x100 + int(i)) for i in ids)


def decoded(stop=(), prompts=PROMPTS, salt=4, **options):
    settings = {"gen_length": 32, "block_length": 8, "cache": "blockwise", "threshold": 0.9}
    settings |= options.pop("settings", {})
    config = lj.SamplerConfig.from_flat(settings, stop=stop)
    return toy_decode(prompts, config, to_text=to_text, salt=salt, **options)


def test_before_stop():
    assert before_stop("a#b##c", ("##", "c")) == "a#b"
    assert before_stop("abc", ("x",)) == before_stop("abc", ()) == "abc"


def test_final_tokens_end_where_one_may_change():
    tokens = np.arange(6)
    for last in (MASKED, VISIBLE):
        status = np.array([PROMPT, PROMPT, STABLE, STABLE, last, STABLE])
        assert final_tokens(tokens, status).tolist() == [2, 3]
    assert final_tokens(tokens[:4], status[:4]).tolist() == [2, 3]


@pytest.mark.parametrize("loop", ["compiled", pytest.param("host", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("settings", "salt"),  # toys whose first answer has no EOS in two blocks
    [
        ({}, 4),
        pytest.param({"window": "multi_block"}, 4, marks=pytest.mark.slow),
        pytest.param({"threshold": None, "accept": "staged"}, 4, marks=pytest.mark.slow),
        pytest.param({"cache": "none"}, 3, marks=pytest.mark.slow),
    ],
    ids=["blockwise", "multi_block", "staged", "whole"],
)
def test_a_row_stops_at_the_end_of_the_block_that_has_the_string(loop, settings, salt):
    whole = decoded(settings=settings, salt=salt)
    wanted = to_text(whole.generated[0][9:11])  # in the second block
    first = to_text(whole.generated[0]).index(wanted)
    result = decoded((wanted,), settings=settings, salt=salt, loop=loop)
    tokens, text = result.generated[0], to_text(whole.generated[0])
    assert before_stop(to_text(tokens), (wanted,)) == text[:first]
    assert len(tokens) == 32
    if "accept" not in settings:  # the toy's staged tokens become final in the last forwards
        assert result.nfe[0] < whole.nfe[0]
        assert (tokens[24:] == EOS).all(), "what was not decoded is EOS"
    if wanted not in to_text(whole.generated[1]):
        np.testing.assert_array_equal(result.generated[1], whole.generated[1])
        assert result.nfe[1] == whole.nfe[1]


def test_each_row_of_a_batch_is_what_it_is_alone():
    stop = (to_text(decoded().generated[0][9:11]), to_text(decoded().generated[1][17:18]))
    both = decoded(stop)
    for row, prompt in enumerate(PROMPTS):
        alone = decoded(stop, [prompt], seed=[0])
        np.testing.assert_array_equal(alone.generated[0], both.generated[row])
        assert alone.nfe[0] == both.nfe[row]


def test_steps_are_counted_over_pauses():
    seen = []
    result = decoded(("?",), PROMPTS[:1], loop="host", on_step=lambda view: seen.append(view.step))
    assert seen == list(range(result.nfe[0]))
    assert result.trace.same_decoding(decoded((), PROMPTS[:1], loop="host").trace)


@pytest.mark.parametrize("stop", ["##", [""], [1], 3])
def test_stop_is_a_list_of_texts(stop):
    with pytest.raises(ValueError, match=r"stop is .*; allowed: a list of texts, none of them"):
        lj.SamplerConfig(stop=stop)


def test_stop_is_a_plain_setting():
    config = lj.SamplerConfig.from_flat(stop=["a", "b"])
    assert config.stop == ("a", "b") and config.as_dict()["stop"] == ["a", "b"]
    assert lj.SamplerConfig.from_flat(config.as_dict()) == config


def test_stop_needs_a_tokenizer_and_strings():
    config = lj.SamplerConfig(gen_length=8, block_length=8, stop=("a",))
    with pytest.raises(ValueError, match=r"stop is \('a',\), and no tokenizer; allowed: \(\)"):
        toy_decode(PROMPTS, config)
    model = lj.load("tiny")
    with pytest.raises(ValueError, match=r"stop is \('a',\); allowed in single steps, as ids: "):
        lj.start(model, [[1]], config)
    with pytest.raises(ValueError, match=r"stop is \('a',\), and canvases are infilled"):
        lj.infill(model, [[1, model.config.mask_id]], config)


@pytest.fixture(scope="module")
def whole_run():
    """A model, prompts, a sampler with a stop string that the answers lack, and the answers."""
    model = lj.load("tiny")
    assert model.tokenizer is not None
    question = [{"role": "user", "content": "Anna had 6 apples. She ate 1. How many are left?"}]
    prompts = [model.tokenizer.encode_chat(question), model.tokenizer.encode("2+2=")]
    config = lj.SamplerConfig.preset("blockwise", gen_length=24, block_length=8, stop=("\0",))
    return model, prompts, config, lj.generate(model, prompts, config)


def test_a_model_stops(whole_run):
    model, prompts, config, whole = whole_run
    stop = whole.text[0][2:5]
    result = lj.generate(model, prompts, config.replace(stop=(stop,)))
    assert result.text == [before_stop(text, (stop,)) for text in whole.text]
    assert result.text[0] == whole.text[0][:2] and result.nfe[0] <= whole.nfe[0]


@pytest.mark.slow
def test_a_stream_stops_as_generate_does(whole_run):
    model, prompts, config, whole = whole_run
    stop = whole.text[0][2:5]
    stream = lj.generate_stream(model, prompts, config.replace(stop=(stop,)), places=2)
    assert [each.text[0] for each in stream] == [before_stop(text, (stop,)) for text in whole.text]


def test_settled_text_cannot_be_taken_back():
    assert settled_text("abc", ()) == "abc" and settled_text("ab\ufffd", ()) == "ab"
    assert settled_text("ab##", ("###",)) == "ab" and settled_text("abc", ("bcd", "c!")) == "a"
    assert settled_text("ab###c", ("###",)) == "ab"
