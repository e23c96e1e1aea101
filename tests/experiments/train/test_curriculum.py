"""The training data: items of the training split, in the configured shares and stages."""

import re
from collections import Counter

import pytest

from experiments.train.curriculum import (
    SENTENCE_END,
    MixtureConfig,
    Stage,
    TaskShare,
    example_source,
    mixture_texts,
)
from llada_jax.checkpoint import model_path
from llada_jax.evaluation.tasks import load_task
from llada_jax.text import Tokenizer
from llada_jax.training.data import ExampleSource

WORDS = TaskShare(name="word_problems", weight=3.0, difficulties=(0,))
SUMS = TaskShare(name="countdown", weight=1.0)
PLAIN = Stage(steps=1)
DRILLS = {"drill_share": 1.0, "drills": (WORDS,)}
BATCH = 4


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(model_path("tiny"))


def source(tokenizer: Tokenizer, *stages: Stage, tasks=(WORDS,), **settings) -> ExampleSource:
    config = MixtureConfig(seed=4, tasks=tasks, stages=stages, **settings)
    return example_source(tokenizer, config, BATCH)


def test_examples_are_chats_that_end_their_turn(tokenizer):
    example = source(tokenizer, PLAIN)(5)
    item = load_task("word_problems").item(4, 5, "train", difficulty=0)
    assert tokenizer.decode(example.prompt, skip_special_tokens=False).endswith(
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert item.question in tokenizer.decode(example.prompt)
    answer = tokenizer.decode(example.answer, skip_special_tokens=False)
    assert answer == item.answer + "<|eot_id|>"


def test_an_example_is_a_function_of_its_index(tokenizer):
    stages = Stage(steps=2, retell_share=0.5), Stage(steps=1, drill_share=0.5, drills=(WORDS,))
    first, second = source(tokenizer, *stages), source(tokenizer, *stages)
    assert [first(i) for i in (3, 9, 3)] == [second(i) for i in (3, 9, 3)]


def test_items_may_have_to_contain_a_text(tokenizer):
    share = TaskShare(name="yes_no", containing="open from")
    stage = Stage(steps=1, drill_share=0.5, drills=(share,))
    draw = source(tokenizer, stage, tasks=(share,))
    questions = [tokenizer.decode(draw(index).prompt) for index in range(40)]
    assert all("open from" in question for question in questions)
    assert len(set(questions)) == 40


def test_tasks_are_drawn_by_weight_with_their_answer_length(tokenizer):
    draw = source(tokenizer, PLAIN, tasks=(WORDS, SUMS))
    lengths = Counter(draw(index).gen_length for index in range(400))
    assert 0.7 < lengths[128] / (lengths[128] + lengths[64]) < 0.8
    assert 0.05 < lengths[None] / 400 < 0.15


def test_difficulties_are_drawn_with_equal_shares(tokenizer):
    tasks = (TaskShare(name="sudoku", difficulties=(0, 2)),)
    draw = source(tokenizer, PLAIN, tasks=tasks)
    sizes = Counter(tokenizer.decode(draw(index).answer).count("\n") for index in range(60))
    assert set(sizes) == {4, 9}
    assert 15 < sizes[4] < 45


def test_stages_follow_one_another_and_the_last_one_stays(tokenizer):
    stages = Stage(steps=2, retell_share=1.0), Stage(steps=3, **DRILLS), PLAIN
    draw = source(tokenizer, *stages)
    kinds = [kind_of(tokenizer.decode(draw(index).answer)) for index in range(8 * BATCH)]
    assert kinds == ["retold"] * 2 * BATCH + ["drill"] * 3 * BATCH + ["answer"] * 3 * BATCH


def kind_of(answer: str) -> str:
    if "####" in answer:
        return "answer"
    return "drill" if re.fullmatch(r"[-+*/=0-9 ]+", answer) else "retold"


def test_retellings_repeat_sentences_of_the_question(tokenizer):
    draw = source(tokenizer, Stage(steps=1, retell_share=1.0))
    in_order = []
    for index in range(40):
        example = draw(index)
        prompt, answer = map(tokenizer.decode, (example.prompt, example.answer))
        item = load_task("word_problems").item(4, index, "train", difficulty=0)
        assert item.question in prompt
        assert set(SENTENCE_END.split(answer)) <= set(SENTENCE_END.split(item.question))
        in_order.append(answer in item.question)
    assert any(in_order) and not all(in_order)


@pytest.mark.parametrize("name", ["word_problems", "yes_no", "choices"])
def test_drills_come_from_the_tasks(tokenizer, name):
    share = TaskShare(name=name, difficulties=(0,))
    example = source(tokenizer, Stage(steps=1, drill_share=1.0, drills=(share,)))(7)
    item = load_task(name).item(4, 7, "train", difficulty=0, drill=True)
    assert item.question in tokenizer.decode(example.prompt)
    assert tokenizer.decode(example.answer) == item.answer
    assert example.gen_length is None


def test_a_stage_may_have_other_tasks(tokenizer):
    stages = Stage(steps=1, tasks=(SUMS,)), PLAIN
    draw = source(tokenizer, *stages, full_length_share=0.0)
    assert {draw(index).gen_length for index in range(BATCH)} == {64}
    assert {draw(index).gen_length for index in range(BATCH, 3 * BATCH)} == {128}


def test_a_tokenizer_is_learnt_from_training_items():
    texts = mixture_texts(MixtureConfig(seed=4, tasks=(WORDS,), stages=(PLAIN,)))
    item = load_task("word_problems").item(4, 0, "train", difficulty=0)
    assert (next(texts), next(texts)) == (item.question, item.answer)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Stage(steps=0), "steps is 0; allowed: 1 or more"),
        (
            lambda: Stage(steps=1, drill_share=1.5),
            "drill_share is 1.5; allowed: 0 or more, up to 1",
        ),
        (
            lambda: Stage(steps=1, drill_share=0.75, retell_share=0.5, drills=(WORDS,)),
            r"retell_share \+ drill_share is 1.25; allowed: up to 1",
        ),
        (lambda: TaskShare(name="sums"), "task is 'sums'; allowed: choices"),
        (lambda: TaskShare(name="yes_no", weight=0.0), "weight of yes_no is 0.0; allowed: above 0"),
        (
            lambda: TaskShare(name="yes_no", containing="a whale"),
            "containing of yes_no is 'a whale'; allowed: what occurs in one of its first 1,000",
        ),
        (
            lambda: Stage(steps=1, drill_share=0.1),
            "drill_share is 0.1 with 0 drills; allowed: both or neither",
        ),
        (
            lambda: Stage(steps=1, drill_share=0.1, drills=(SUMS,)),
            "drills has 'countdown'; allowed: tasks with a drill",
        ),
        (
            lambda: MixtureConfig(tasks=(SUMS,), stages=(PLAIN,), full_length_share=2.0),
            "full_length_share is 2.0; allowed: 0 or more, up to 1",
        ),
        (lambda: MixtureConfig(tasks=(SUMS,), stages=()), "stages is empty; allowed: one or more"),
    ],
)
def test_bad_values_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_share_of_the_prompts_is_varied_and_nothing_else_changes(tokenizer):
    plain, varied = (
        source(tokenizer, PLAIN, tasks=(WORDS, SUMS), varied_share=share) for share in (0, 0.5)
    )
    pairs = [(plain(index), varied(index)) for index in range(200)]
    assert all(one.answer == other.answer for one, other in pairs)
    assert 70 < sum(one.prompt == other.prompt for one, other in pairs) < 130
    with pytest.raises(ValueError, match="varied_share is 2; allowed: 0 or more, up to 1"):
        source(tokenizer, PLAIN, varied_share=2)
