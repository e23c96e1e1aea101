"""Rows move what they tell, and leave the rest; bands hold what was not fitted."""

from dataclasses import replace

import numpy as np
import pytest

import llada_jax as lj
from experiments.calibrate import drawn_phone, measured
from llada_jax.backend.exported.calibration_export import calibration_rows
from llada_jax.phones.calibration import calibrate as module
from llada_jax.phones.calibration.calibrate import CostModel, calibrate
from llada_jax.phones.calibration.measurements import hold_out
from llada_jax.phones.profile import load_profile

PARENT = load_profile("SM8750")
COST_MODEL = CostModel("llada_8b", "vendor", "tuned")
PLAN = calibration_rows()


def rows_of(phone, count=None, seed=0, noise=0.02):
    return list(measured(phone, COST_MODEL, PLAN[:count], seed, noise))


@pytest.fixture(scope="module")
def slow():
    """A phone whose bandwidth and calls alone differ from the parent's."""
    return PARENT.with_values({"npu.vendor.dma_gbps": 50.0, "npu.vendor.step_overhead_us": 4000.0})


@pytest.fixture(scope="module")
def found(slow):
    return calibrate(rows_of(slow, 12), PARENT, "llada_8b", name="slow")


def test_what_the_rows_tell_is_found_and_the_rest_is_the_parent_s(found):
    told = {each.number: each for each in found.identified}
    for number, wanted in (("npu.vendor.dma_gbps", 50.0), ("npu.vendor.step_overhead_us", 4000.0)):
        assert told[number].value == pytest.approx(wanted, rel=0.15)
        assert told[number].doubt < told[number].parent_doubt
    assert not found.counted
    kept = set(PARENT.numbers) - set(told)
    assert {"power.npu_w", "mapping.event_ms", "npu.llada_cpp.dequant_gweights"} < kept
    assert all(found.profile.numbers[path] == PARENT.numbers[path] for path in kept)
    pairs = [abs(each[2]) for each in found.correlations]
    assert pairs == sorted(pairs, reverse=True) and pairs[0] < 1


def test_the_profile_is_a_file_that_loads(found, tmp_path):
    path = tmp_path / "slow.yaml"
    found.profile.save(path)
    loaded = lj.phone(path).profile
    assert loaded == found.profile and loaded.soc == "slow"
    entry = loaded.numbers["npu.vendor.dma_gbps"]
    assert entry.tag == "measured" and entry.doubt and "12 rows" in entry.source


def test_ten_rows_of_a_drawn_phone_predict_the_others():
    errors, before, inside = [], [], []
    for seed in (0, 1):
        phone = drawn_phone(PARENT, COST_MODEL, seed)
        rows = rows_of(phone, seed=seed)
        held = [replace(row, held_out=True) for row in rows[30:]]
        fit = calibrate([*rows[:10], *held], PARENT, "llada_8b")
        errors += [abs(each.ms / each.measurement.median_ms - 1) for each in fit.predicted]
        inside += [each.is_inside for each in fit.predicted]
        before += [abs(1e3 * COST_MODEL.seconds(PARENT, row) / row.median_ms - 1) for row in held]
    assert np.median(errors) < 0.05 < np.median(before)
    assert np.mean(inside) >= 0.85


def test_another_tile_is_seen_where_rows_straddle_its_edge():
    other = PARENT.with_values({"npu.vendor.pass_rows": 32, "npu.vendor.tile_rows": 32})
    found = calibrate(rows_of(other, 30, noise=0.01), PARENT, "llada_8b")
    assert found.counted["npu.vendor.pass_rows"] == (128, 32)
    assert found.profile.npu["vendor"].pass_rows == 32


def test_a_phone_calibrates_itself(slow):
    phone = lj.phone("SM8750", kernels="vendor", cpu="tuned")
    found = phone.calibrate(hold_out(rows_of(slow, 10), 5), "llada_8b", name="slow")
    assert [each.measurement.name for each in found.predicted] == [PLAN[4]["name"], PLAN[9]["name"]]
    assert all(each.low < each.ms < each.high for each in found.predicted)


def test_input_that_cannot_be_fitted_is_refused(slow):
    rows = rows_of(slow, 3)
    message = "2 rows to fit; allowed: 3 or more that are not held out"
    with pytest.raises(ValueError, match=message):
        calibrate([*rows[:2], replace(rows[2], held_out=True)], PARENT, "llada_8b")
    wrong = replace(rows[0], graph="product", weight="ffn.sideways")
    with pytest.raises(ValueError, match=r"weight of .* is 'ffn.sideways'; allowed: .*ffn.down"):
        calibrate([wrong, *rows[1:]], PARENT, "llada_8b")


@pytest.fixture
def parent_steps(monkeypatch):
    """Keeps the parent's tiles and passes, whose comparison takes most of a fit's time."""
    monkeypatch.setattr(module, "TILES", ())


def scaled(row, factor):
    times = ("median_ms", "p5_ms", "p95_ms")
    return replace(row, **{name: factor * getattr(row, name) for name in times})


def swapped(row):
    return replace(row, rows=row.cache, cache=row.rows)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda rows: [scaled(row, 1e3) for row in rows], r"microseconds \(10 of 10 rows"),
        (lambda rows: [scaled(row, 1e-3) for row in rows], "the times are seconds"),
        (lambda rows: [rows[0], *(scaled(row, 1e3) for row in rows[1:2]), *rows[2:]], "microsec"),
        (
            lambda rows: [*rows[:3], swapped(rows[3]), *rows[4:]],
            r"rows and cache are swapped",
        ),
        (lambda rows: [*rows[:9], scaled(replace(rows[9], held_out=True), 1e3)], "microseconds"),
        (lambda rows: [replace(rows[0], rows=1 << 20), *rows[1:]], "the row describes another"),
        (lambda rows: [scaled(rows[0], 20), *rows[1:]], "was throttled or busy, or the row"),
    ],
)
def test_rows_far_from_the_parent_s_prediction_are_refused(slow, parent_steps, change, cause):
    rows = change(rows_of(slow, 10))
    message = rf"median_ms of .* is .*; allowed: .* predicted from SM8750; likely cause: .*{cause}"
    with pytest.raises(ValueError, match=message):
        calibrate(rows, PARENT, "llada_8b")


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda rows: [*rows[:2], scaled(rows[2], 1.6), *rows[3:]], "was throttled or busy, or .*"),
        (lambda rows: [*rows[:2], swapped(rows[2]), *rows[3:]], "rows and cache are swapped"),
        (lambda rows: [*rows, replace(scaled(rows[2], 0.5), name="again")], "another graph"),
    ],
)
def test_rows_that_contradict_the_others_are_named(slow, parent_steps, change, cause):
    rows = change(rows_of(slow, 10))
    message = rf"^median_ms of [^;]*; allowed: [^;]* predicted from the other rows; .*{cause}$"
    with pytest.warns(UserWarning, match=message):
        calibrate(rows, PARENT, "llada_8b")


def test_rows_of_another_phone_of_the_package_are_accepted():
    rows = rows_of(load_profile("SM8550"), 12)
    assert calibrate(rows, PARENT, "llada_8b").identified
