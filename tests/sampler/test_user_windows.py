"""User-defined windows: sets of positions, chosen by value or by name, and their traces."""

import jax
import numpy as np
import pytest

import llada_jax as lj
from llada_jax.testing import check_window, toy_decode
from tests.sampler.user_windows.dpad import SuffixDropout
from tests.sampler.user_windows.refreshed import LeastConfident

LENGTHS = {"gen_length": 24, "block_length": 8}
PROMPTS = [[3, 1, 4, 1, 5], [9, 2]]
NAMES = {
    "dpad": ("tests.sampler.user_windows.dpad:SuffixDropout", SuffixDropout()),
    "refreshed": ("tests.sampler.user_windows.refreshed:LeastConfident", LeastConfident()),
}


def decode(window, loop="host", **settings):
    config = lj.SamplerConfig.from_flat(window=window, threshold=0.2, **LENGTHS, **settings)
    return toy_decode(PROMPTS, config, salt=2, loop=loop)


@pytest.mark.parametrize("name", [pytest.param("dpad", marks=pytest.mark.slow), "refreshed"])
def test_a_window_meets_the_guarantees(name):
    check_window(NAMES[name][1], salts=(1,))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_window_works_with_every_kind_of_model_and_rule(name):
    window = NAMES[name][1]
    for rule in ({"steps": 12, "threshold": None}, {"accept": "staged", "threshold": None}):
        check_window(window, **rule)


def test_a_window_that_drops_nothing_decodes_as_the_whole_canvas():
    whole = decode("by_cache")
    dropped = decode(SuffixDropout(near=100))
    np.testing.assert_array_equal(dropped.tokens, whole.tokens)
    assert dropped.trace.live_rows.tolist() == whole.trace.live_rows.tolist()


def test_dropped_positions_are_not_run():
    trace = decode(SuffixDropout(near=2, stride=8)).trace
    first = trace.live_rows[0]  # prompt, block of 8, 2 near, and every eighth farther one
    assert first.tolist() == [5 + 8 + 2 + 1, 2 + 8 + 2 + 1]


@pytest.mark.slow
def test_a_window_without_reruns_decodes_as_blockwise():
    @lj.window
    class Block(LeastConfident):
        def positions(self, state, context):
            return state.in_span(state.n_cached, state.block_stop(context.block_length))

    expected = decode("by_cache", cache="blockwise")
    np.testing.assert_array_equal(decode(Block()).tokens, expected.tokens)


def test_finished_tokens_are_run_again():
    trace, plain = decode(LeastConfident(k=3)).trace, decode("by_cache", cache="blockwise").trace
    later = trace.block[:, 0] > 0
    assert (trace.live_rows[later, 0] >= 8 + 3).all()
    assert trace.live_rows[0].tolist() == plain.live_rows[0].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_a_window_by_name_is_found_and_the_trace_names_it(name):
    path, window = NAMES[name]
    result = decode(path)
    settings = result.trace.settings
    assert settings["sampler"]["window"] == path and len(settings["window_sha256"]) == 64
    assert lj.SamplerConfig.from_flat(settings["sampler"]).window == window
    np.testing.assert_array_equal(result.tokens, decode(window).tokens)
    assert result.show is not None and result.trace._repr_html_()


def test_numbers_of_a_window_are_flat_settings():
    path = NAMES["refreshed"][0]
    config = lj.SamplerConfig.from_flat(window=path, k=5)
    assert config.window == LeastConfident(k=5)
    assert config.replace(k=1).window == LeastConfident(k=1)
    assert config.replace(window="by_cache", cache="dual").window.cache == "dual"
    assert lj.SamplerConfig.setting_types(window=path)["k"] is int


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": "nowhere:X"}, "window is 'nowhere:X': No module named"),
        ({"window": "math:pi"}, "window is 'math:pi'; allowed: a class under lj.window"),
        ({"window": "llada_jax:sin"}, "window is 'llada_jax:sin': module"),
        ({"window": NAMES["dpad"][0], "cache": "dual"}, "cache is 'dual' and window is"),
        ({"window": NAMES["dpad"][0], "strid": 2}, "strid: did you mean"),
    ],
)
def test_invalid_windows_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        lj.SamplerConfig.from_flat(**settings)


def test_a_class_without_positions_is_refused_as_a_window():
    with pytest.raises(TypeError, match="window Empty has no positions; allowed: positions"):

        @lj.window
        class Empty:
            pass


def test_floats_of_a_window_are_pytree_leaves():
    @lj.window
    class Soft(SuffixDropout):
        share: float = 0.5

    config = lj.SamplerConfig(window=Soft())
    assert jax.tree.leaves(config) == [0.5]
