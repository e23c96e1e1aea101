"""The stored process, tasks and sessions are the result of the fit."""

from dataclasses import asdict

import pytest

from llada_jax.phones.graphs import graphs_of
from llada_jax.phones.profile import load_profile
from llada_jax.phones.published_tasks import CANVAS, PublishedTasks
from llada_jax.phones.simulate import ForwardTimer
from llada_jax.phones.system import System
from tests.phones.fitting import fit_tasks

LLADA = graphs_of("llada_8b")
WORLD = PublishedTasks(LLADA)
FIGURES = WORLD.figures
PHONE = load_profile("SM8750")
PROMPTS = {name: WORLD.task(name).prompt for name in WORLD.fitted["tasks"]}


def test_the_process_is_the_result_of_the_fit():
    fitted = asdict(fit_tasks.fit_dynamics(FIGURES))
    assert fitted.pop("answer") is None
    stored = asdict(WORLD.dynamics)
    assert fitted == pytest.approx({name: stored[name] for name in fitted}, rel=1e-4)


def test_prompts_and_their_spread_are_the_result_of_the_fit():
    fitted = {name: fit_tasks.fit_prompt(FIGURES, name, LLADA, PHONE) for name in PROMPTS}
    assert fitted == PROMPTS
    spread, tokens = fit_tasks.fit_spread(FIGURES, LLADA, PHONE, PROMPTS)
    assert PHONE.session.cpu_spread == pytest.approx(spread, rel=1e-2)
    assert WORLD.prompt_spread == pytest.approx(tokens, rel=1e-2)


def test_sessions_and_rates_of_other_phones_are_the_result_of_the_fit():
    slow = load_profile("SM8650")
    fitted = fit_tasks.fit_sessions(FIGURES, LLADA, slow, PROMPTS)
    assert {path: slow.numbers[path].value for path in fitted} == pytest.approx(fitted, rel=1e-3)
    new = load_profile("SM8850")
    rates = fit_tasks.fit_rates(FIGURES, LLADA, new, PHONE, PROMPTS)
    assert {path: new.numbers[path].value for path in rates} == pytest.approx(rates, rel=2e-3)
    assert {new.numbers[path].tag for path in rates} == {"derived"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PROMPTS])
def test_a_task_is_the_result_of_the_fit(name):
    timer = ForwardTimer(LLADA, PHONE, System(), CANVAS)
    fitted, residuals = fit_tasks.fit_answer(
        FIGURES, name, PROMPTS[name], WORLD.dynamics, timer, WORLD.runs
    )
    stored = WORLD.task(name).dynamics
    assert fitted.answer == stored.answer
    assert fitted.reach == pytest.approx(stored.reach, abs=0.01)
    assert max(map(abs, residuals)) < 0.15


def test_the_mean_latency_of_a_task():
    timer = ForwardTimer(LLADA, PHONE, System(), CANVAS)
    task = WORLD.task("GSM8K")
    mean = fit_tasks.mean_latency(task.dynamics, task.prompt, 32, timer, runs=2)
    assert 3 < mean < 6
