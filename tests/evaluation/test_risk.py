"""Calibrated thresholds: the bound on a model whose risk is known, the fitted table, the check."""

from types import SimpleNamespace

import numpy as np
import pytest

from llada_jax.evaluation.risk import (
    Predictions,
    calibrate,
    drift,
    fit_offsets,
    predictions_of,
    warning,
    wrong_share,
)
from llada_jax.sampler.trace import Event

GRID = np.append(np.linspace(0.3, 0.99, 70), np.inf)  # the last one commits nothing in parallel
END = 9


def drawn_losses(rng, n_items, n_tokens=10):
    """Confidences are uniform and calibrated, and only tokens above the threshold can be wrong: the
    risk of a threshold t is the integral of 1 - c from t to 1, (1 - t)**2 / 2."""
    confidence = rng.random((n_items, n_tokens))
    wrong = rng.random((n_items, n_tokens)) > confidence
    return (wrong[:, :, None] & (confidence[:, :, None] >= GRID)).mean(axis=1)


@pytest.mark.parametrize("alpha", [0.02, 0.1])
def test_the_risk_is_below_the_level_on_average_and_not_far_below(alpha):
    rng, risk = np.random.default_rng(5), (1 - np.minimum(GRID, 1)) ** 2 / 2
    n_items, chosen = 100, []
    for _ in range(300):
        chosen.append(risk[calibrate(drawn_losses(rng, n_items), alpha)])
    assert alpha - 2.5 / n_items < np.mean(chosen) <= alpha


def test_a_loss_that_rises_again_counts_at_every_smaller_threshold():
    losses = np.zeros((99, 4))
    losses[:, 2] = 0.5
    assert calibrate(losses, 0.1) == 3
    losses[:, 1:3] = [0.5, 0]
    assert calibrate(losses, 0.1) == 2


@pytest.mark.parametrize(
    ("n_items", "last", "alpha", "message"),
    [
        (8, 0, 0.1, "there are 8 items; allowed: 9 or more for alpha 0.1"),
        (9, 1, 0.1, "allowed: the sequential answer last"),
        (9, 0, 0, "alpha is 0; allowed: above 0 and below 1"),
    ],
)
def test_bad_calibrations_are_named(n_items, last, alpha, message):
    with pytest.raises(ValueError, match=message):
        calibrate(np.full((n_items, 1), last), alpha)


def drawn_predictions(n, offset_of):
    """Confidences that are too high by `offset_of(step, position)` in log-odds."""
    rng = np.random.default_rng(2)
    step, position, odds = rng.integers(0, 6, n), rng.integers(0, 8, n), rng.normal(1, 1.5, n)
    right = rng.random(n) < 1 / (1 + np.exp(offset_of(step, position) - odds))
    return Predictions(step, position, 1 / (1 + np.exp(-odds)), ~right)


def test_the_table_finds_how_much_too_high_confidences_are():
    found = drawn_predictions(8000, lambda step, position: 1.0 * (step >= 2) + 2.0 * (position < 4))
    table = np.array(fit_offsets(found, 8, n_steps=4, least=300))
    assert table.shape == (4, 8)
    assert table[:2, :4].mean() - table[:2, 4:].mean() == pytest.approx(2, abs=0.3)
    assert table[2:].mean() - table[:2].mean() == pytest.approx(1, abs=0.3)


def test_bins_with_few_predictions_are_joined():
    found = drawn_predictions(400, lambda step, position: 2.0 * (position < 4))
    assert len({*np.ravel(fit_offsets(found, 8, least=100))}) == 1
    assert len({*np.ravel(fit_offsets(found, 8, least=20))}) > 1
    with pytest.raises(ValueError, match="allowed: 400 or more of each"):
        fit_offsets(found, 8, least=400)


def test_a_confidence_that_does_not_order_errors_is_refused():
    found = drawn_predictions(400, lambda step, position: 0.0 * step)
    with pytest.raises(ValueError, match=r"slope of confidence is -.*; allowed: above 0"):
        fit_offsets(found._replace(confidence=1 - found.confidence), 8)


@pytest.mark.parametrize(
    ("answer", "sequential", "share"),
    [
        ([1, 2, END], [1, 2, END], 0),
        ([1, 3, END], [1, 2, END], 1 / 3),
        ([1, 2, 3, END], [1, 2, END], 1 / 2),
        ([1, 2, END], [1, 2, 3, 4], 1 / 2),
    ],
)
def test_wrong_tokens_are_counted_up_to_the_end_of_the_longer_answer(answer, sequential, share):
    assert wrong_share(np.array(answer), np.array(sequential)) == pytest.approx(share)


def test_predictions_after_a_wrong_commit_do_not_count():
    # positions 2 to 5 of the canvas are two blocks of two; the answer is 5 6 7 and the end
    events = [  # step, position, token, confidence, kind
        (0, 2, 5, 0.9, Event.COMMIT),
        (0, 3, 8, 0.4, Event.SCORE),
        (1, 3, 6, 0.8, Event.COMMIT),
        (2, 4, 8, 0.7, Event.COMMIT),
        (2, 5, END, 0.6, Event.SCORE),
        (3, 5, END, 0.9, Event.COMMIT),
    ]
    names = "event_step", "event_position", "event_token", "event_confidence", "event_kind"
    columns = map(np.array, zip(*events, strict=True))
    trace = SimpleNamespace(
        prompt_lengths=np.array([2]), rows=np.zeros(4), block=np.array([[0], [0], [1], [1]]),
        event_row=np.zeros(6, int),
        **dict(zip(names, columns, strict=True)),
    )  # fmt: skip
    found = predictions_of(trace, 0, np.array([5, 6, 7, END]))  # pyright: ignore
    assert found.step.tolist() == [0, 0, 1, 0, 0]
    assert found.position.tolist() == [0, 1, 1, 2, 3]
    assert found.wrong.tolist() == [False, True, False, True, False]


def test_drift_warns_of_other_items_and_seldom_of_the_same():
    rng = np.random.default_rng(1)
    before = rng.random(200)
    same = [drift(before, rng.random(50)) < 0.05 for _ in range(100)]
    assert np.mean(same) < 0.15
    p_value = drift(before, rng.random(50) + 0.5)
    text = warning(p_value, 0.01, 0.02)
    assert text and "more than 0.02 of the tokens" in text
    assert warning(0.5, 0.01, 0.02) is None
