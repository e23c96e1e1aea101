"""Prompts around a task's question: instructions, labels, solved examples.

A model that was asked in only one way fails when it is asked in another. `prompts.yaml` has
wordings in two parts: one to train on, and one to score on, which training never sees. A prompt
combines an instruction ("Solve this."), a label ("Question: ... Answer:") and solved examples; each
may be absent.
"""

import re
from collections.abc import Callable
from functools import cache
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple, Protocol, get_args

from llada_jax.config_files import read_yaml

Prompts = Literal["plain", "train", "held_out", "few_shot", "lm_eval"]
"""Ways to ask: the question alone; wordings of training; held-out wordings, without and with solved
examples; and the wording of the task's counterpart in conf/lm_eval."""
Message = dict[str, str]

_PLAIN = "{question}"
# Shares of training prompts: solved examples, random words as the instruction, lm-eval's wording.
EXAMPLES_SHARE, NOISE_SHARE, LM_EVAL_SHARE = 0.12, 0.25, 0.08
_LETTERS = "etaoinshrdlucmfwypvbgkjqxz"  # frequent ones first


@cache
def wordings() -> Any:
    """Returns the content of `prompts.yaml`, read once."""
    return read_yaml(Path(__file__).with_suffix(".yaml"))


@cache
def _words() -> list[str]:
    """Returns the words of all instructions of training."""
    texts = chain(*wordings()["instructions"]["train"].values())
    return sorted({word for text in texts for word in text.split() if "{" not in word})


class Solved(Protocol):
    """A question with its worked answer, such as an item of a task."""

    @property
    def question(self) -> str: ...
    @property
    def answer(self) -> str: ...


class _Wording(NamedTuple):
    """Templates of an instruction and a label."""

    instruction: str
    label: str

    def prompt(self, question: str) -> str:
        """Returns the label around the question and its instruction, or, if the instruction comes
        first, the instruction in front of the label."""
        if self.instruction.endswith(_PLAIN):
            return _filled(self.instruction, _filled(self.label, question))
        return _filled(self.label, _filled(self.instruction, question))


def ways_to_ask(task: str) -> tuple[str, ...]:
    """Returns the values of `Prompts` for a task; a custom task has no examples and no counterpart
    in lm-eval."""
    lists = {"few_shot": wordings()["examples"], "lm_eval": wordings()["lm_eval"]}
    return tuple(way for way in get_args(Prompts) if task in lists.get(way, [task]))


def chat_of(
    task: str,
    question: str,
    prompts: Prompts,
    rng: Random,
    example: Callable[[], Solved],
    examples_share: float = EXAMPLES_SHARE,
) -> list[Message]:
    """Returns a chat that asks a question in one of `ways_to_ask(task)`; `rng` chooses the wording
    and `example` draws a solved question of the task, for a share of the prompts of `train`."""
    if prompts == "train" and task in wordings()["lm_eval"] and rng.random() < LM_EVAL_SHARE:
        prompts = "lm_eval"
    if prompts == "plain":
        return [_user(question)]
    if prompts == "lm_eval":
        return [_user(_filled(wordings()["lm_eval"][task], question))]
    wording = _draw_wording("train" if prompts == "train" else "held_out", task, rng)
    most = wordings()["examples"].get(task, 0)
    is_solved = prompts == "few_shot" or (prompts == "train" and rng.random() < examples_share)
    if most == 0 or not is_solved:
        return [_user(wording.prompt(question))]
    solved = [example() for _ in range(rng.randint(1, most))]
    asked = [wording.prompt(one.question) for one in solved]
    answers = [one.answer for one in solved]
    if rng.random() < 0.5:  # a turn of the chat for each example
        turns = [
            message
            for prompt, answer in zip(asked, answers, strict=True)
            for message in (_user(prompt), {"role": "assistant", "content": answer})
        ]
        return [*turns, _user(wording.prompt(question))]
    shown = [f"{prompt} {answer}" for prompt, answer in zip(asked, answers, strict=True)]
    return [_user("\n\n".join([*shown, wording.prompt(question)]))]


def _draw_wording(part: str, task: str, rng: Random) -> _Wording:
    """Draws an instruction, a label or both. Instructions for the task are twice as likely as those
    for all tasks."""
    instructions = wordings()["instructions"][part]
    instruction = rng.choice(instructions["all"] + 2 * instructions.get(task, []))
    if part == "train" and rng.random() < NOISE_SHARE:
        instruction = _noise(rng)
    label, kind = rng.choice(wordings()["labels"][part]), rng.random()
    if kind < 0.4:
        return _Wording(instruction, _PLAIN)
    return _Wording(_PLAIN if kind < 0.6 else instruction, label)


def _noise(rng: Random) -> str:
    """Returns an instruction of known words and random letters, before or after the question. It
    teaches a model to ignore words that it does not know."""
    words = [
        "".join(rng.choices(_LETTERS, range(26, 0, -1), k=rng.randint(2, 9)))
        if rng.random() < 0.5
        else rng.choice(_words())
        for _ in range(rng.randint(2, 12))
    ]
    text = " ".join(words).capitalize() + rng.choice(".:!?")
    space = rng.choice((" ", "\n", "\n\n"))
    return f"{text}{space}{_PLAIN}" if rng.random() < 0.5 else f"{_PLAIN}{space}{text}"


def _filled(template: str, question: str) -> str:
    passage, _, ask = question.rpartition(". ")
    dotted = re.sub(r"(?m)^([A-D])\) ", r"\1. ", question)
    return template.format(question=question, passage=f"{passage}.", ask=ask, dotted=dotted)


def _user(content: str) -> Message:
    return {"role": "user", "content": content}
