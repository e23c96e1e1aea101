"""Wordings of prompts: held-out ones are apart from training's, and a prompt keeps its question."""

import json
import re
from pathlib import Path
from random import Random

import pytest

from llada_jax.config_files import read_yaml
from llada_jax.evaluation.prompts import chat_of, ways_to_ask, wordings
from llada_jax.evaluation.task import Item, Task, TaskItems, split_of
from llada_jax.evaluation.tasks import load_task, task_names

CONF = Path(__file__).parents[2] / "conf" / "lm_eval"
PART = re.compile(r"\{\w+\}")


def templates(part: str) -> list[str]:
    """All wordings of a part, with training's wordings from lm-eval."""
    lists = [wordings()["labels"][part], *wordings()["instructions"][part].values()]
    return [text for texts in lists for text in texts] + (
        list(wordings()["lm_eval"].values()) if part == "train" else []
    )


def literal(template: str) -> str:
    """The words of a template without its question, to compare templates."""
    return " ".join(re.findall(r"[\w#*]+", PART.sub(" ", template).lower()))


def chats(task: str, prompts, count: int) -> list[list[dict[str, str]]]:
    return [load_task(task).chat(f"Is {i} it?", prompts, Random(i)) for i in range(count)]


def test_no_held_out_wording_is_part_of_one_of_training_or_contains_it():
    trained = set(map(literal, templates("train")))
    held_out = [literal(text) for text in templates("held_out")]
    assert all(held_out) and len(set(held_out)) == len(held_out)
    for text in held_out:
        found = [other for other in trained if f" {other} " in f" {text} " or text in other]
        assert set(found) <= {""}, text


def test_training_draws_no_held_out_wording():
    markers = [
        piece
        for text in templates("held_out")
        for piece in PART.split(text)
        if len(piece.split()) > 1
    ]
    for task in task_names():
        text = json.dumps(chats(task, "train", 400), ensure_ascii=False)
        assert not [piece for piece in markers if json.dumps(piece)[1:-1] in text]


@pytest.mark.parametrize("task", task_names())
def test_every_task_has_wordings_of_its_own_in_both_parts(task):
    for part, least in (("train", 20), ("held_out", 8)):
        texts = wordings()["instructions"][part]
        assert len(texts[task]) >= 2 and len(texts["all"] + texts[task]) >= least


@pytest.mark.parametrize("prompts", ["train", "held_out", "few_shot", "lm_eval"])
@pytest.mark.parametrize("task", task_names())
def test_a_prompt_keeps_every_line_of_its_question(task, prompts):
    if prompts not in ways_to_ask(task):
        pytest.skip(f"{task} is not asked so")
    items = TaskItems(task=load_task(task), count=60, prompts=prompts)
    for index in range(60):
        last = items.chat(index)[-1]
        assert last["role"] == "user"
        question, asked = items.item(index).question, last["content"]
        # choices may be listed as "A." instead of "A)", and the last sentence may get a label
        *lines, ask = re.split(r"\n|(?<=\.) ", re.sub(r"(?m)^([A-D])\) ", r"\1. ", question))
        asked = re.sub(r"(?m)^([A-D])\) ", r"\1. ", asked)
        place = 0
        for line in (*lines, ask):
            place = asked.index(line, place) + len(line)


def test_examples_are_solved_items_of_the_training_split_before_the_question():
    drawn = []

    def draw(rng, difficulty, owns):
        item = Item(f"{rng.randint(1, 10**9)}?", "#### 5", "5")
        if not owns(item.question):
            return None
        drawn.append(item)
        return item

    task = Task(name="yes_no", about="", draw=draw, difficulties={0: ""}, gen_length=8)
    forms = set()
    for index in range(40):
        drawn.clear()
        *turns, last = task.chat("Why?", "few_shot", Random(index))
        assert 1 <= len(drawn) <= 2 and {split_of(item.question) for item in drawn} == {"train"}
        text = " ".join(turn["content"] for turn in (*turns, last))
        places = [text.index(item.question) for item in drawn]
        assert places == sorted(places) and max(places) < text.index("Why?")
        assert text.count("#### 5") == len(drawn) and "#### 5" not in text[text.index("Why?") :]
        roles = [turn["role"] for turn in turns]
        assert roles in ([], ["user", "assistant"] * len(drawn))
        forms.add(bool(turns))
    assert forms == {True, False}


@pytest.mark.parametrize("share", [0, 1])
def test_a_share_of_training_prompts_has_solved_examples(share):
    for index in range(20):
        chat = load_task("sudoku").chat("Why?", "train", Random(index), examples_share=share)
        assert any("####" in message["content"] for message in chat) == share


def test_a_chat_is_a_function_of_its_index_and_varies():
    items = TaskItems(task=load_task("countdown"), count=40, prompts="held_out")
    first = [items.chat(index) for index in range(40)]
    assert first == [items.chat(index) for index in range(40)]
    wordings = {
        chat[0]["content"].replace(items.item(index).question, "")
        for index, chat in enumerate(first)
    }
    assert len(wordings) > 15


@pytest.mark.parametrize(
    ("task", "file", "fields"),
    [
        ("word_problems", "gsm8k", ("question",)),
        ("yes_no", "boolq", ("passage", "question")),
        ("choices", "arc_challenge", ("question", "choices")),
    ],
)
def test_the_wording_of_lm_eval_is_that_of_its_file(task, file, fields):
    jinja2 = pytest.importorskip("jinja2")
    item = load_task(task).item(1, 3, "test")
    passage, _, ask = item.question.partition("\n")[0].rpartition(". ")
    data = {"question": item.question}
    if "passage" in fields:  # the file adds the question mark
        data = {"passage": f"{passage}.", "question": ask.removesuffix("?")}
    if "choices" in fields:
        question, *listed = item.question.split("\n")
        data = {"question": question, "choices": {"text": [text[3:] for text in listed]}}
    template = read_yaml(CONF / f"{file}.yaml")["doc_to_text"]
    sent = jinja2.Template(template).render(data)
    [message] = TaskItems(task=load_task(task), count=4, seed=1, prompts="lm_eval").chat(3)
    assert message == {"role": "user", "content": sent}


def test_plain_prompts_are_the_question_and_leave_stored_settings_as_they_were():
    items = TaskItems(task=load_task("sudoku"), count=2)
    assert items.chat(1) == [{"role": "user", "content": items.item(1).question}]
    assert "prompts" not in items.settings
    varied = TaskItems(task=load_task("sudoku"), count=2, prompts="held_out")
    assert varied.settings == items.settings | {"prompts": "held_out"}
    assert varied.item(1) == items.item(1)


def test_ways_that_a_task_lacks_are_refused():
    with pytest.raises(ValueError, match="prompts of inventory is 'few_shot'; allowed: plain, "):
        TaskItems(task=load_task("inventory"), count=1, prompts="few_shot")
    with pytest.raises(ValueError, match="prompts of sudoku is 'rude'; allowed: plain, train, "):
        TaskItems(task=load_task("sudoku"), count=1, prompts="rude")  # ty: ignore


def test_a_custom_task_gets_the_wordings_for_all_tasks():
    def draw(rng, difficulty, owns):
        return Item("2+3?", "#### 5", "5")

    task = Task(name="sums", about="", draw=draw, difficulties={0: ""}, gen_length=8)
    assert ways_to_ask("sums") == ("plain", "train", "held_out")
    items = TaskItems(task=task, count=9, prompts="held_out")
    assert all("2+3?" in items.chat(index)[0]["content"] for index in range(9))
    alone = chat_of("sums", "2+3?", "train", Random(1), lambda: task.item(0, 0, "train"))
    assert "2+3?" in alone[-1]["content"]
