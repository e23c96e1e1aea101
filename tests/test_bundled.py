"""The bundled model is whole, small, and solves problems that it has not seen."""

import llada_jax as lj
from llada_jax.checkpoint import bundled_folder, bundled_names
from llada_jax.evaluation.tasks import word_problems

LIMIT = 12 * 2**20


def test_it_is_small_and_says_how_it_was_made():
    for name in bundled_names():
        folder = bundled_folder(name)
        assert sum(file.stat().st_size for file in folder.iterdir()) <= LIMIT
        card = (folder / "README.md").read_text()
        assert "python -m experiments.train" in card and "exact match" in card


def test_it_solves_problems_of_the_test_split():
    """Some of the 500 that the model card scores; the bound leaves room for other CPUs."""
    model = lj.load("tiny")
    assert model.tokenizer is not None
    problems = [word_problems.TASK.item(2, index, "test", difficulty=0) for index in range(16)]
    chats = [[{"role": "user", "content": each.question}] for each in problems]
    prompts = [model.tokenizer.encode_chat(chat) for chat in chats]
    result = lj.generate(model, prompts)
    answers = map(model.tokenizer.decode, result.generated)
    assert sum(map(word_problems.verify, problems, answers)) >= 6
