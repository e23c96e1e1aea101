"""Answers through the engine: in float32 it scores like the host, and rows report accuracy."""

import jax
import numpy as np
import pytest

import llada_jax as lj
from experiments.sampling_engine.format_costs import AnswersConfig, answer_rows, engine_scores
from llada_jax.model.head import ScoreRules, score_rows


def test_in_float32_the_engine_scores_like_the_host():
    model = lj.load("tiny", "float32")
    rules = ScoreRules(forbidden=(model.config.mask_id,))
    hidden = 3 * jax.random.normal(jax.random.key(0), (2, 5, model.config.width))
    wanted = score_rows(model.params, hidden, None, rules)
    found = engine_scores(model.params, hidden, None, format="float32", rules=rules)
    np.testing.assert_array_equal(found.token, wanted.token)
    np.testing.assert_allclose(found.confidence, wanted.confidence, rtol=1e-4)


@pytest.mark.slow
def test_rows_of_answers():
    config = AnswersConfig(items=2, model="tiny", tasks=("word_problems",))
    rows = {row.name: row for row in answer_rows(config, ("bfloat16",), 2)}
    assert rows["answers/bfloat16/bytes_a_logit"].value == 2
    row = rows["answers/bfloat16/word_problems"]
    assert row.n == 2 and row.interval[0] <= row.value <= row.interval[1]
    assert rows["answers/bfloat16/all"].value == row.value


def test_bad_input():
    with pytest.raises(ValueError, match="task is 'poems'; allowed: "):
        AnswersConfig(tasks=("poems",))
    with pytest.raises(ValueError, match="items is -1; allowed: 0 or more"):
        AnswersConfig(items=-1)
