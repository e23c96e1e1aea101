"""Measured rows change the numbers that they depend on, and predictions have honest intervals."""

from dataclasses import replace

import numpy as np
import pytest

import llada_jax as lj
from llada_jax.backend.exported.calibration_export import calibration_rows
from llada_jax.phones.calibration import calibrate as module
from llada_jax.phones.calibration.calibrate import CostModel, calibrate
from llada_jax.phones.calibration.measurements import hold_out
from llada_jax.phones.calibration.synthetic import draw_measurements, draw_phone
from llada_jax.phones.profile import load_profile

PARENT = load_profile("SM8750")
COST_MODEL = CostModel("llada_8b", "vendor", "tuned")
PLAN = calibration_rows()


def rows_of(phone, count=None, seed=0, noise=0.02):
    return list(draw_measurements(phone, COST_MODEL, PLAN[:count], seed, noise))


@pytest.fixture(scope="module")
def slow():
    """A phone that differs from the parent in bandwidth and call overhead only."""
    return PARENT.with_values({"npu.vendor.dma_gbps": 50.0, "npu.vendor.step_overhead_us": 4000.0})


@pytest.fixture(scope="module")
def calibration(slow):
    return calibrate(rows_of(slow, 12), PARENT, "llada_8b", name="slow")


def test_rows_change_the_numbers_that_they_identify_and_no_others(calibration):
    identified = {entry.number: entry for entry in calibration.identified}
    for number, true_value in (
        ("npu.vendor.dma_gbps", 50.0),
        ("npu.vendor.step_overhead_us", 4000.0),
    ):
        assert identified[number].value == pytest.approx(true_value, rel=0.15)
        assert identified[number].doubt < identified[number].parent_doubt
    assert not calibration.counted
    spread = "npu.vendor.export_spread"  # of exports that were not measured
    assert calibration.profile.numbers[spread].value == calibration.misfit_doubt
    kept = set(PARENT.numbers) - set(identified) - {spread}
    assert {"power.npu_w", "mapping.event_ms", "npu.llada_cpp.dequant_gweights"} < kept
    assert all(calibration.profile.numbers[path] == PARENT.numbers[path] for path in kept)
    strengths = [abs(correlation) for _, _, correlation in calibration.correlations]
    assert strengths == sorted(strengths, reverse=True) and strengths[0] < 1


def test_the_profile_is_saved_and_loaded(calibration, tmp_path):
    path = tmp_path / "slow.yaml"
    calibration.profile.save(path)
    loaded = lj.phone(path).profile
    assert loaded == calibration.profile and loaded.soc == "slow"
    entry = loaded.numbers["npu.vendor.dma_gbps"]
    assert entry.tag == "measured" and entry.doubt and "12 rows" in entry.source


def test_ten_rows_of_a_drawn_phone_predict_the_others():
    errors, before, inside = [], [], []
    for seed in (0, 1):
        phone = draw_phone(PARENT, COST_MODEL, seed)
        rows = rows_of(phone, seed=seed)
        held = [replace(row, held_out=True) for row in rows[30:]]
        fit = calibrate([*rows[:10], *held], PARENT, "llada_8b")
        errors += [abs(row.ms / row.measurement.median_ms - 1) for row in fit.predicted]
        inside += [row.is_inside for row in fit.predicted]
        before += [abs(1e3 * COST_MODEL.seconds(PARENT, row) / row.median_ms - 1) for row in held]
    assert np.median(errors) < 0.05 < np.median(before)
    assert np.mean(inside) >= 0.85


def test_other_tiles_are_detected_from_rows_on_both_sides_of_an_edge():
    other = PARENT.with_values({"npu.vendor.pass_rows": 32, "npu.vendor.tile_rows": 32})
    calibration = calibrate(rows_of(other, 30, noise=0.01), PARENT, "llada_8b")
    assert calibration.counted["npu.vendor.pass_rows"] == (128, 32)
    assert calibration.profile.npu["vendor"].pass_rows == 32


def test_phone_calibrate_predicts_held_out_rows(slow):
    phone = lj.phone("SM8750", kernels="vendor", cpu="tuned")
    calibration = phone.calibrate(hold_out(rows_of(slow, 10), 5), "llada_8b", name="slow")
    assert [row.measurement.name for row in calibration.predicted] == [
        PLAN[4]["name"],
        PLAN[9]["name"],
    ]
    assert all(row.low < row.ms < row.high for row in calibration.predicted)


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
    """Keeps the parent's tiles and passes, since comparing them takes most of a fit's time."""
    monkeypatch.setattr(module, "TILES", ())


def scaled(row, factor):
    times = ("median_ms", "p5_ms", "p95_ms")
    return replace(row, **{name: factor * getattr(row, name) for name in times})


class CostPerRow(CostModel):
    """A phone with a cost that the cost model does not have."""

    def seconds(self, profile, row):
        return super().seconds(profile, row) + 2e-5 * row.rows * row.layers


@pytest.mark.slow
def test_misfit_widens_the_bands_and_names_rows(parent_steps):
    truth = CostPerRow("llada_8b", "vendor", "tuned")
    rows = list(draw_measurements(PARENT, truth, [*PLAN[:16], *PLAN[30:36]], 0))
    held = [replace(row, held_out=True) for row in rows[16:]]
    with pytest.warns(UserWarning, match=r"does not fit these rows, .*layers4-rows\S+ \(\+\d+%\)"):
        misfit = calibrate([*rows[:16], *held], PARENT, "llada_8b")
    assert misfit.misfit_doubt > 0.05
    assert np.mean([row.is_inside for row in misfit.predicted]) >= 0.8


def test_the_first_16_rows_identify_the_engines_and_scores():
    fit = module._Fit(PARENT, COST_MODEL, rows_of(PARENT, 16))
    slopes = fit.slopes(np.zeros(len(fit.doubts))) / fit.noise[:, None]
    deviations = np.sqrt(np.diag(np.linalg.inv(slopes.T @ slopes + np.eye(len(fit.doubts)))))
    found = dict(zip(fit.entries, deviations, strict=True))
    for number in ("npu.vendor.matrix_tops", "npu.vendor.score_ns", "cpu.tuned.gemm_tops"):
        assert found[number] < 0.75, number


def swapped(row):
    return replace(row, rows=row.cache, cache=row.rows)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda rows: [scaled(row, 1e3) for row in rows], r"microseconds \(10 of 10 rows"),
        (lambda rows: [scaled(row, 1e-3) for row in rows], "the times are seconds"),
        (lambda rows: [rows[0], *(scaled(row, 1e3) for row in rows[1:2]), *rows[2:]], "microsec"),
        (
            lambda rows: [*rows[:5], swapped(rows[5]), *rows[6:]],
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
        (lambda rows: [*rows[:4], scaled(rows[4], 1.6), *rows[5:]], "was throttled or busy, or .*"),
        (lambda rows: [*rows[:4], swapped(rows[4]), *rows[5:]], "rows and cache are swapped"),
        (lambda rows: [*rows, replace(scaled(rows[4], 0.5), name="again")], "another graph"),
    ],
)
def test_rows_that_contradict_the_others_are_named(slow, parent_steps, change, cause):
    rows = change(rows_of(slow, 10))
    message = rf"^median_ms of [^;]*; allowed: [^;]* predicted from the other rows; .*{cause}"
    with pytest.warns(UserWarning, match=message):
        calibrate(rows, PARENT, "llada_8b")


def test_rows_of_another_phone_of_the_package_are_accepted():
    rows = rows_of(load_profile("SM8550"), 12)
    with pytest.warns(UserWarning, match="the cost model does not fit these rows"):
        assert calibrate(rows, PARENT, "llada_8b").identified
