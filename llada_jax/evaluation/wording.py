"""Words that generated texts of several tasks have in common."""

from collections.abc import Sequence
from random import Random

from llada_jax.evaluation.task import Item

GIRLS: tuple[str, ...] = ("Anna", "Emma", "Lily", "Mia", "Zoe")
BOYS: tuple[str, ...] = ("Ben", "Jack", "Leo", "Max", "Sam", "Tom")
PEOPLE: tuple[str, ...] = GIRLS + BOYS
PLACES = ("kitchen", "garden", "office", "school", "park", "library", "garage", "market")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
LETTERS = "ABCD"


def pronoun(name: str) -> str:
    """Returns "she" or "he"."""
    return "she" if name in GIRLS else "he"


def sentence(text: str) -> str:
    """Writes a text as a sentence."""
    return f"{text[0].upper()}{text[1:]}."


def sentences(texts: Sequence[str]) -> str:
    """Writes texts as sentences in a line."""
    return " ".join(map(sentence, texts))


def lettered_item(told: str, choices: Sequence[str], right: str, reasons: str) -> Item:
    """Asks for the letter of the right one of four choices, which are listed below what is told."""
    listed = "".join(f"\n{name}) {text}" for name, text in zip(LETTERS, choices, strict=True))
    letter = LETTERS[choices.index(right)]
    answer = f"{reasons}\n{letter}) {right}\n#### {letter}"
    return Item(f"{told}{listed}", answer, letter, tuple(choices))


def all_lettered(rng: Random, item: Item | None) -> Item | None:
    """Asks a lettered item for the letters of its other choices too, in random order: many small
    decisions in place of one. None stays None."""
    if item is None:
        return None
    letters = [item.target, *rng.sample([name for name in LETTERS if name != item.target], 3)]
    texts = [item.choices[LETTERS.index(letter)] for letter in letters]
    reason, _, _ = item.answer.partition("\n")
    named = "".join(f"\n{letter}) {text}" for letter, text in zip(letters, texts, strict=True))
    target = " ".join(letters)
    question = f"{item.question}\nThen name: {', '.join(texts[1:])}."
    return Item(question, f"{reason}{named}\n#### {target}", target, item.choices)
