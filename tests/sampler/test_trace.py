"""The trace: its file, its events, and what other parts read from it."""

from dataclasses import replace

import numpy as np
import pytest

import llada_jax as lj
from llada_jax.sampler.record import Event
from llada_jax.sampler.replay import replay
from tests.sampler.toy import toy_decode

PROMPTS = [[3, 1, 4], [1, 5]]
CONFIG = lj.SamplerConfig.from_flat(gen_length=8, block_length=4, steps=4, cache="dual")
PARTED = [[3, 1, 4, 1], [1, 5]]
SAMPLER = lj.SamplerConfig.from_flat(gen_length=8, block_length=8, steps=8)


@pytest.fixture(scope="module")
def trace():
    return toy_decode(PROMPTS, CONFIG, loop="host").trace


def test_saves_and_loads_without_loss(trace, tmp_path):
    trace.save(tmp_path / "run.npz")
    loaded = lj.Trace.load(tmp_path / "run.npz")
    assert loaded.same_decoding(trace)
    np.testing.assert_array_equal(loaded.seconds, trace.seconds)
    assert loaded.settings == {
        **trace.settings,
        "seeds": [list(s) for s in trace.settings["seeds"]],
    }
    for name in ("rows", "event_token", "event_confidence", "event_kind"):
        assert getattr(loaded, name).dtype == getattr(trace, name).dtype
    assert [path.name for path in tmp_path.iterdir()] == ["run.npz"]


def test_an_interrupted_save_leaves_the_old_file(trace, tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    trace.save(path)
    before = path.read_bytes()

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="disk full"):
        trace.save(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04broken"])
def test_other_files_are_refused(content, tmp_path):
    path = tmp_path / "run.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"run\.npz is no trace"):
        lj.Trace.load(path)


def test_other_archives_and_formats_are_refused(trace, tmp_path, monkeypatch):
    np.savez(tmp_path / "other.npz", rows=np.zeros(3))
    with pytest.raises(ValueError, match=r"other\.npz is no trace"):
        lj.Trace.load(tmp_path / "other.npz")
    monkeypatch.setattr("llada_jax.sampler.trace.FORMAT", 99)
    trace.save(tmp_path / "new.npz")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="has trace format 99; allowed: 4"):
        lj.Trace.load(tmp_path / "new.npz")


def other(array, value):
    """Returns the array with another value at its first position."""
    array = array.copy()
    array.flat[0] = value
    return array


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("live_rows", lambda a: a[:, :1], r"live_rows has shape \(4, 1\); allowed here: \(4, 2\)"),
        ("live_rows", lambda a: a[0], r"live_rows has 1 axes; allowed: 2 \[S, B\]"),
        ("event_token", lambda a: a[1:], "event_token has shape"),
        ("event_row", lambda a: a + 0.0, "event_row is ndarray float64; allowed: .* whole numbers"),
        ("event_row", lambda a: other(a, 2), r"event_row has \[2\]; allowed: 0 to 1"),
        ("event_step", lambda a: other(a, -1), r"event_step has \[-1\]; allowed: 0 to 3"),
        ("event_step", lambda a: a[::-1].copy(), "event_step in ascending order"),
        ("event_kind", lambda a: other(a, 7), "event_kind of known events"),
        ("event_position", lambda a: other(a, 99), r"event_position has \[99\]; allowed"),
        ("head_rows", lambda a: -a, r"head_rows has \[-4\]; allowed: 0 to"),
        ("rows", lambda a: a // 8, "live_rows up to the forward's rows"),
        ("cache_length", lambda a: a + 50, "cache_length up to the canvas"),
        ("prompt_lengths", lambda a: a + 9, "canvases within tokens"),
        ("tokens", lambda a: a[:, :-1], r"event_position has \[10\]; allowed: 0 to 9"),
        ("block", lambda a: a.astype(np.int8), "integers of 4 bytes or more"),
        ("seconds", lambda a: -a, "seconds has"),
        ("settings", lambda a: a | {"infill": 1}, "infill is 1; allowed: true or false"),
        ("settings", lambda a: a | {"model": []}, r"model is \[\]; allowed: settings"),
        (
            "settings",
            lambda a: a | {"sampler": a["sampler"] | {"block_length": 0}},
            "sampler.block_length is 0; allowed: 1 to",
        ),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_refused(trace, tmp_path, name, change, message):
    """The damaged files have the right checksum."""
    replace(trace, **{name: change(getattr(trace, name))}).save(tmp_path / "run.npz")
    with pytest.raises(ValueError, match=rf"run\.npz is no trace of llada_jax: .*{message}"):
        lj.Trace.load(tmp_path / "run.npz")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone\.npz"):
        lj.Trace.load(tmp_path / "gone.npz")


def test_events_rebuild_the_canvas(trace):
    canvas = np.full(trace.tokens.shape, -1)
    for row, prompt in enumerate(PROMPTS):
        canvas[row, : len(prompt)] = prompt
    assert (np.diff(trace.event_step) >= 0).all(), "events are in order"
    canvas[trace.event_row, trace.event_position] = trace.event_token
    for row, prompt in enumerate(PROMPTS):
        end = len(prompt) + CONFIG.gen_length
        np.testing.assert_array_equal(canvas[row, :end], trace.tokens[row, :end])


def test_fields_that_the_device_model_reads(trace):
    assert trace.rows.tolist() == [32, 4, 32, 4]
    assert trace.live_rows.tolist() == [[11, 10], [4, 4]] * 2
    assert trace.cache_length.tolist() == [[0, 0], [7, 6], [0, 0], [7, 6]]
    assert trace.head_rows.tolist() == [[4, 4], [2, 2]] * 2
    assert trace.block.tolist() == [[0, 0], [0, 0], [1, 1], [1, 1]]
    assert not trace.shadow_rows.any()
    assert (trace.seconds > 0).all()
    assert trace.nfe.tolist() == [4, 4]
    assert trace.settings["sampler"]["cache"] == "dual"


@pytest.mark.parametrize("loop", ["compiled", pytest.param("host", marks=pytest.mark.slow)])
def test_a_row_finished_by_one_forward_commits_nothing_later(loop):
    config = lj.SamplerConfig.from_flat(
        gen_length=8, block_length=8, threshold=0.2, eos_early_stop=True
    )
    result = toy_decode(PROMPTS, config, salt=9, loop=loop)
    assert result.nfe.tolist() == [4, 1]
    trace = result.trace
    assert np.isnan(trace.seconds).all() == (loop == "compiled") and trace.settings["seconds"] > 0
    of_row = trace.event_row == 1
    assert (trace.event_step[of_row] == 0).all()
    assert len(set(trace.event_position[of_row])) == of_row.sum()


@pytest.fixture(scope="module")
def kept():
    return toy_decode(PARTED, SAMPLER, loop="host", trace="margins").trace


@pytest.fixture(scope="module")
def plain():
    return toy_decode(PARTED, SAMPLER, loop="host", trace="scores").trace


def test_margins_change_nothing_else(kept, plain):
    assert kept.same_decoding(plain) and kept.divergence(plain) is None
    assert replay(kept)["events"] == replay(plain)["events"]
    margins = kept.event_confidence[kept.event_kind == Event.MARGIN]
    assert (margins > 0).all() and len(margins) == kept.head_rows.sum()


def test_the_first_token_that_differs_is_found_with_its_margin(kept):
    commits = np.flatnonzero(kept.event_kind == Event.COMMIT)
    tokens = kept.event_token.copy()
    tokens[commits[3:]] += 1
    found = kept.divergence(replace(kept, event_token=tokens))
    step, position = kept.event_step[commits[3]], kept.event_position[commits[3]]
    assert found[:3] == (step, 1, (position, position))
    assert found.tokens == (tokens[commits[3]] - 1, tokens[commits[3]])
    place = (kept.event_step == step) & (kept.event_row == 1) & (kept.event_position == position)
    margin = kept.event_confidence[place & (kept.event_kind == Event.MARGIN)]
    assert found.margin == margin[0]


def test_commits_at_different_positions_are_compared_by_confidence(kept):
    first = np.flatnonzero((kept.event_step == 0) & (kept.event_row == 0))
    commit = first[kept.event_kind[first] == Event.COMMIT][0]
    rival = first[kept.event_kind[first] == Event.SCORE][0]
    kinds = kept.event_kind.copy()
    kinds[[commit, rival]] = kinds[[rival, commit]]
    found = kept.divergence(replace(kept, event_kind=kinds))
    places = kept.event_position[[commit, rival]], kept.event_token[[commit, rival]]
    assert found[:4] == (0, 0, *(tuple(place) for place in places))
    gap = abs(kept.event_confidence[commit] - kept.event_confidence[rival])
    assert found.margin == pytest.approx(gap)


def test_a_decision_that_only_one_run_took_is_named(kept):
    commit = np.flatnonzero(kept.event_kind == Event.COMMIT)[0]
    kinds = np.where(np.arange(len(kept.event_kind)) == commit, Event.SCORE, kept.event_kind)
    fewer = replace(kept, event_kind=kinds)
    place, token = kept.event_position[commit], kept.event_token[commit]
    assert kept.divergence(fewer)[2:4] == ((place, -1), (token, -1))
    assert fewer.divergence(kept)[2:4] == ((-1, place), (-1, token))


def test_traces_that_cannot_be_compared_are_refused(kept, plain):
    with pytest.raises(ValueError, match="has no margins; allowed"):
        plain.divergence(kept)
    with pytest.raises(ValueError, match="the traces are of prompts of"):
        kept.divergence(replace(kept, prompt_lengths=np.array([1, 2])))
