"""Routing traces: their content, lossless files, and refused input."""

import dataclasses

import numpy as np
import pytest

from llada_jax.experts.routing import (
    ABSENT,
    RoutingTrace,
    experts_per_step,
    gate_accuracy,
    imbalance,
    joined,
    loads_of,
    row_reuse,
    step_similarity,
)
from tests.experts.traces import small_trace, trace_of_loads

ARRAYS = [f.name for f in dataclasses.fields(RoutingTrace) if f.name != "settings"]


def test_a_file_preserves_all_values(tmp_path):
    trace = small_trace()
    trace.save(tmp_path / "routing.npz")
    loaded = RoutingTrace.load(tmp_path / "routing.npz")
    for name in ARRAYS:
        mine, theirs = getattr(trace, name), getattr(loaded, name)
        assert mine.dtype == theirs.dtype, name
        np.testing.assert_array_equal(mine, theirs, err_msg=name)
    assert loaded.settings == trace.settings
    assert [path.name for path in tmp_path.iterdir()] == ["routing.npz"]


def test_an_interrupted_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "routing.npz"
    small_trace().save(path)
    before = path.read_bytes()

    def breaks(file, **arrays):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", breaks)
    with pytest.raises(OSError, match="disk full"):
        small_trace(seed=1).save(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"text"])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "routing.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"routing.npz is no routing trace of llada_jax"):
        RoutingTrace.load(tmp_path / "routing.npz")


def test_another_format_is_refused(tmp_path):
    trace = small_trace(blocks=1)
    arrays = {name: getattr(trace, name) for name in ARRAYS}
    np.savez(tmp_path / "t.npz", settings=np.array('{"format": 1}'), **arrays)
    with pytest.raises(ValueError, match="has routing format 1; allowed: 3"):
        RoutingTrace.load(tmp_path / "t.npz")


def test_loads_count_rows_and_leave_out_absent_ones():
    experts = np.array([[[0, 2], [2, 1], [-1, -1]]])
    np.testing.assert_array_equal(loads_of(experts, 4), [[1, 1, 2, 0]])
    np.testing.assert_array_equal(loads_of(np.zeros((2, 0, 3), int), 4), np.zeros((2, 4)))


def changed(trace, **arrays):
    return dataclasses.replace(trace, **arrays)


def test_bad_traces_are_refused():
    trace = small_trace(blocks=1)
    nan = trace.scores.copy()
    nan[1, 2, 3] = np.nan
    twice = trace.experts.copy()
    twice[0, 0, 0] = 5
    beyond = np.where(trace.experts == trace.experts.max(), 16, trace.experts)
    for arrays, message in [
        ({"scores": nan}, "scores has 1 values that are NaN or infinite; allowed: none"),
        ({"changed": trace.changed[:, :-1]}, r"changed has shape .*; allowed here: "),
        (
            {"foreseen": trace.foreseen[:, :, 0]},
            r"foreseen has 4 axes; allowed: 5 \[S, N, A, R, k\]",
        ),
        ({"experts": trace.experts[0]}, r"experts has 3 axes; allowed: 4 \[S, N, R, k\]"),
        ({"experts": twice}, "a row takes an expert twice; allowed: once"),
        ({"experts": beyond}, r"experts has \[16\]; allowed: -1 to 15"),
        ({"scores": [[1.0]]}, "scores is list ; allowed: a NumPy array of floats"),
        ({"experts": trace.experts + 0.5}, "experts is ndarray float.*; allowed: .* whole numbers"),
        ({"committed": trace.committed - 9}, r"committed has \[-\d\]; allowed: 0 to"),
    ]:
        with pytest.raises(ValueError, match=message):
            changed(trace, **arrays)


def test_statistics_of_a_small_trace():
    trace = trace_of_loads([[[2, 1, 0]], [[2, 1, 0]], [[0, 0, 3]]])
    assert experts_per_step(trace) == pytest.approx(5 / 3)
    assert step_similarity(trace) == pytest.approx(0.5)
    assert step_similarity(trace, lag=2) == pytest.approx(0.0)
    np.testing.assert_allclose(imbalance(trace), [4 / 3])


def test_similarity_is_within_blocks():
    loads = np.zeros((4, 1, 3), int)
    loads[:2, 0, 0] = loads[2:, 0, 1] = 1
    trace = trace_of_loads(loads)
    assert step_similarity(trace) == pytest.approx(2 / 3)
    parted = changed(trace, block=np.array([[0], [0], [1], [1]]))
    assert step_similarity(parted) == pytest.approx(1.0)
    np.testing.assert_array_equal(parted.begins_block, [True, False, True, False])
    with pytest.raises(ValueError, match="lag is 2; allowed: less than the steps of a block"):
        step_similarity(parted, lag=2)


def test_runs_are_joined_in_order():
    """Two runs, the second with fewer rows: absent rows pad it, and its blocks go on counting."""
    first, second = small_trace(blocks=2), small_trace(seed=1, blocks=1)
    narrow = dataclasses.replace(
        second, experts=second.experts[:, :, :6], foreseen=second.foreseen[:, :, :, :6],
        changed=second.changed[:, :6], block=second.block[:, :6],
    )  # fmt: skip
    both = joined([first, narrow])
    assert both.n_steps == first.n_steps + narrow.n_steps
    after = first.n_steps
    np.testing.assert_array_equal(both.loads[:after], first.loads)
    np.testing.assert_array_equal(both.loads[after:], narrow.loads)
    assert (both.experts[after:, :, 6:] == ABSENT).all() and both.changed[after:, 6:].all()
    assert np.flatnonzero(both.begins_block)[-1] == after
    assert both.block[after:].min() == both.block[:after].max() + 1 == both.block[after:].max()


def test_row_reuse_computed_by_hand():
    """Of two experts a row keeps both, one, or none; the last step begins a block."""
    experts = np.array([[[[0, 1], [2, 3]]], [[[1, 0], [3, 4]]], [[[5, 6], [3, 4]]], [[[5, 6]] * 2]])
    trace = RoutingTrace(
        experts=experts, scores=np.zeros((4, 1, 8)), foreseen=np.full((4, 1, 0, 2, 2), ABSENT),
        changed=np.ones((4, 2), bool), block=np.array([[0, 0]] * 3 + [[1, 1]]),
        committed=np.ones(4, int), settings={},
    )  # fmt: skip
    np.testing.assert_array_equal(row_reuse(trace), [[1, 0.5], [0, 1], [np.nan, np.nan]])


def test_gates_of_synthetic_traces_have_the_set_accuracy():
    found = gate_accuracy(small_trace(blocks=12))
    assert found.shape == (3,) and (np.diff(found) < 0).all()
    assert found[0] == pytest.approx(0.78, abs=0.05)
