"""Tasks that a user adds from outside: as an argument, and by an entry point."""

import pytest

import llada_jax as lj
from llada_jax.evaluation.tasks import load_task, task_names
from tests.evaluation.user_tasks.spelling import TASK


@pytest.fixture(autouse=True)
def forgotten():
    load_task.cache_clear()
    yield
    load_task.cache_clear()


def test_evaluate_accepts_a_custom_task():
    decoder = lj.SamplerConfig.from_flat(gen_length=32, block_length=32, threshold=0.5)
    found = lj.evaluate("tiny", TASK, decoder, items=2, progress=False)
    assert found.settings["task"]["name"] == "spelling" and len(found.right) == 2


def test_a_task_can_be_added_by_an_entry_point(installed):
    installed("[llada_jax.tasks]\nspelling = tests.evaluation.user_tasks.spelling:TASK\n")
    assert "spelling" in task_names() and load_task("spelling") is TASK
    item = load_task("spelling").item(0, 0, "test")
    assert TASK.verify(item, item.answer) and not TASK.verify(item, "#### no")
    with pytest.raises(ValueError, match=r"task is 'speling'; allowed: .*, spelling, sudoku"):
        load_task("speling")


def test_an_entry_point_that_is_not_a_task_is_refused(installed):
    installed("[llada_jax.tasks]\nspelling = tests.evaluation.user_tasks.spelling:draw\n")
    with pytest.raises(ValueError, match=r"spelling:draw is a function; allowed in llada_jax\.tas"):
        load_task("spelling")
