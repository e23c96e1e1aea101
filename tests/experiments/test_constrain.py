"""`python -m experiments.constrain`: training answers fit the schema that constrains decoding."""

import json

import pytest

import llada_jax as lj
from experiments import constrain as entry
from llada_jax.constraint.compiled import compile_constraints
from llada_jax.evaluation.task import split_of
from llada_jax.evaluation.tasks import load_task
from llada_jax.evaluation.tasks.word_problems import EQUATION
from llada_jax.training.sft import read_examples
from tests.constraint.tiny import accepts
from tests.experiments.in_process import run_experiment

SMALL = ["batch_size=2", "items=2", "tasks=[word_problems]", "forms=[json]"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("spelling", ["own", "any"])
def test_examples_are_texts_of_the_schema_in_its_automaton_s_tokens(tmp_path, spelling):
    run_experiment(entry.main, ["examples=20", "seed=3", f"hydra.run.dir={tmp_path / 'run'}"])
    model = lj.load("small")
    file = tmp_path / "run" / "examples.jsonl"
    examples = read_examples(file, model.tokenizer, model.config, 128)
    schema = lj.json_schema(entry.SCHEMA, spelling=spelling)
    (automaton,) = compile_constraints(schema, model.tokenizer, (0, 6), 960).automata.values()
    assert len(examples) == 20
    assert all(accepts(automaton, [*each.answer, 0, 0]) for each in examples)


def test_examples_contain_their_result_and_come_from_the_training_split():
    schema, task = lj.json_schema(entry.SCHEMA), load_task("word_problems")
    for index in range(50):
        item = task.item(3, index, "train")
        asked, answered = json.loads(entry.training_line(item))["messages"]
        assert asked == {"role": "user", "content": item.question}
        assert entry._read(schema, answered["content"]) == item.target
        assert split_of(" ".join(EQUATION.findall(answered["content"]))) == "train"


@pytest.mark.slow
def test_unconstrained_answers_are_checked_against_the_schema(tmp_path, random_model):
    folder = tmp_path / "run"
    asked = [f"model={random_model}", *SMALL, "ways=[unheld,allowed]", f"hydra.run.dir={folder}"]
    run_experiment(entry.main, asked)
    rows = {row["name"]: row["value"] for row in json.loads((folder / "results.json").read_text())}
    assert rows["word_problems/json/unheld/valid"] == 0
    assert rows["word_problems/json/allowed/valid"] == 1
