"""The parts of a trace that a page shows: canvas states, window and scores."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.record import Event
from llada_jax.sampler.replay import KEPT, prompt_text, replay
from llada_jax.sampler.state import MASKED, PAD, PROMPT
from llada_jax.sampler.trace import Trace
from llada_jax.testing import toy_denoiser
from tests.sampler.drawn_trace import drawn_trace
from tests.sampler.toy import in_parts, toy_decode

PROMPTS = [[3, 1, 4, 1], [1, 5]]
BASE = {"gen_length": 16, "block_length": 8}
STAGED = {"accept": "staged", "theta_visible": 0.15, "theta_stable": 0.3, "cache": "blockwise"}
SAMPLERS = {
    "multi_block": {"window": "multi_block", "on_change": "remask", **STAGED},
    "dual": {"cache": "dual", "steps": 8},
}
OTHERS = {
    "whole": {"steps": 8},
    "prefix": {"cache": "prefix", "steps": 8},
    "blockwise": {"cache": "blockwise", "threshold": 0.2},
    "kept": {"window": "multi_block", **STAGED},
}
EACH = [
    "multi_block",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("dual", *OTHERS)),
]


def states_of(run):
    """The canvas after each forward, from events alone."""
    state = np.full(len(run["tokens"]), PROMPT)
    state[run["masked"]] = MASKED
    for flat in run["events"]:
        for position, _, after, _, _ in zip(*[iter(flat)] * 5, strict=True):
            state[position] = state[position] if after == KEPT else after
        yield state.copy()


@pytest.mark.parametrize("name", EACH)
def test_states_and_windows_match_the_run(name, monkeypatch):
    sampler = SamplerConfig.from_flat(**BASE, **{**SAMPLERS, **OTHERS}[name])
    seen, starts = [], []
    plain = in_parts(toy_denoiser(sampler))

    def watched(salt, rows, cache):
        starts.append(np.asarray(rows.positions)[:, 0])
        return plain.forward_rows(salt, rows, cache)

    monkeypatch.setattr(
        "llada_jax.testing._toy", lambda rules: replace(plain, forward_rows=watched)
    )
    result = toy_decode(PROMPTS, sampler, loop="host", trace="scores", on_step=seen.append)
    for row, prompt in enumerate(PROMPTS):
        run = replay(result.trace, row)
        end = len(prompt) + 16
        assert len(run["tokens"]) == end and run["masked"] == [*range(len(prompt), end)]
        expected = [view.state[row, :end] for view in seen]
        useful = np.flatnonzero(result.trace.live_rows[:, row] + result.trace.refreshed[:, row])
        for step, state in zip(useful, states_of(run), strict=True):
            np.testing.assert_array_equal(state, expected[step])
            assert PAD not in state
        assert run["forwards"]["start"] == [int(starts[step][row]) for step in useful]
        stops = run["forwards"]["stop"]
        assert all(a < b <= end for a, b in zip(run["forwards"]["start"], stops, strict=True))
        json.dumps(run, allow_nan=False)


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["host", "compiled"])
def test_scores_are_kept_on_demand_and_change_nothing_else(loop):
    sampler = SamplerConfig.from_flat(**BASE, **SAMPLERS["multi_block"])
    plain = toy_decode(PROMPTS, sampler, loop="host").trace
    kept = toy_decode(PROMPTS, sampler, loop=loop, trace="scores").trace
    score = kept.event_kind == Event.SCORE
    assert score.any() and not (plain.event_kind == Event.SCORE).any()
    np.testing.assert_array_equal(kept.event_position[~score], plain.event_position)
    np.testing.assert_array_equal(kept.filled, plain.filled)
    per_forward = kept.count(Event.SCORE) + kept.count(Event.COMMIT)
    assert (per_forward <= kept.head_rows + kept.count(Event.AHEAD)).all()


def test_infilling_shows_its_holes(tmp_path):
    trace = drawn_trace(forwards=4, block_length=4)
    settings = {**trace.settings, "infill": True, "pieces": {}}
    replace(trace, prompt_lengths=np.array([7]), settings=settings).save(tmp_path / "trace.npz")
    run = replay(Trace.load(tmp_path / "trace.npz"))
    assert run["masked"] == [3, 4, 5, 6] and run["origin"] == 0
    assert run["pieces"][run["tokens"][0]] == "[5]"
    assert [len(flat) // 5 for flat in run["events"]] == [4, 3, 2, 1]
    still = replay(replace(trace, seconds=np.full(4, np.nan)))
    assert still["forwards"]["seconds"] is None


def test_bad_rows_and_kept_records_are_named():
    with pytest.raises(ValueError, match="row is 2; allowed: 0 to 1"):
        replay(SimpleNamespace(prompt_lengths=np.array([3, 4])), 2)
    with pytest.raises(ValueError, match="trace is 'all'; allowed: False, True, 'scores'"):
        toy_decode(PROMPTS, SamplerConfig.from_flat(**BASE), trace="all")


def test_a_replay_is_named_after_its_prompt():
    assert prompt_text(["<|im_start|>", "user", "\n", "How many", " eggs?", "<|im_end|>"]) == (
        "How many eggs?"
    )
    long = prompt_text(["word "] * 40)
    assert long.endswith("word ...") and len(long) <= 100
    assert prompt_text(["<|mask|>", ""]) == "A canvas, replayed"
