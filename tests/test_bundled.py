"""Every bundled model is complete, small, and matches its card."""

import pytest
from scipy.stats import binom

from llada_jax.checkpoint import bundled_names, model_path
from llada_jax.evaluation.evaluate import evaluate
from llada_jax.evaluation.metrics import wilson_interval
from llada_jax.evaluation.tasks import task_names
from tests.model_cards import StatedScore, outdated_tasks, stated_scores

LIMIT = 12 * 2**20
FEW = 8
UNLIKELY = 1e-3


def stated(cheapest: bool = False):
    """Documented scores of bundled models; skipped if the items have changed since."""
    for name in bundled_names():
        folder = model_path(name)
        scores, outdated = stated_scores(folder), outdated_tasks(folder)
        order = sorted(scores, key=lambda each: (each.task in outdated, each.cost))
        for score in order[:1] if cheapest else scores:
            version = f"{name} was trained on version {outdated.get(score.task)} of {score.task}"
            marks = [pytest.mark.skip(version)] if score.task in outdated else []
            yield pytest.param(name, score, id=f"{name}-{score.task}-{score.name}", marks=marks)


def slow_but_for(name: str, case: str) -> list:
    return [] if case.startswith(name) else [pytest.mark.slow]


@pytest.mark.parametrize("name", bundled_names())
def test_a_bundled_model_is_small_and_documents_its_training(name):
    folder = model_path(name)
    assert sum(file.stat().st_size for file in folder.iterdir()) <= LIMIT
    card = (folder / "README.md").read_text()
    assert "python -m experiments.train" in card and "exact match" in card


@pytest.mark.parametrize("name", bundled_names())
def test_the_intervals_of_scores_follow_from_the_counts(name):
    scores = stated_scores(model_path(name))
    assert scores
    for score in scores:
        low, high = wilson_interval(round(score.share * score.items), score.items)
        assert (score.low, score.high) == pytest.approx((low, high), abs=6e-4)


@pytest.mark.parametrize("name", ["small", "tiny"])
def test_benchmark_models_are_scored_on_current_tasks(name):
    """Outdated scores on removed tasks may stay, since they cannot be measured again."""
    assert not set(outdated_tasks(model_path(name))) & set(task_names())


@pytest.mark.parametrize(
    ("name", "score"),
    [
        pytest.param(*each.values, id=each.id, marks=[*each.marks, *slow_but_for("tiny", each.id)])
        for each in stated(cheapest=True)
    ],
)
def test_a_bundled_model_solves_problems_of_the_test_split(name, score):
    """A few of the scored items are solved, not fewer than chance allows."""
    assert right(name, score, FEW) >= binom.ppf(UNLIKELY, FEW, score.share)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "score"), list(stated()))
def test_a_bundled_model_reaches_the_scores_of_its_card(name, score):
    """On all items: other processors and kernels may round some answers to others."""
    assert score.low <= right(name, score, score.items) / score.items <= score.high


def right(name: str, score: StatedScore, items: int) -> int:
    found = evaluate(name, score.task, score.sampler, items=items, seed=score.seed)
    count = sum(found.right.values())
    print(f"{name}: {count} of {items} {score.task}, {score.name}; stated {score.share:.1%}")
    return count
