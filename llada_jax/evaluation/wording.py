"""Words that generated texts of several tasks have in common."""

from collections.abc import Sequence

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


def lettered(choices: Sequence[str]) -> str:
    """Lists choices, each on a line of its own behind its letter."""
    return "".join(f"\n{name}) {choice}" for name, choice in zip(LETTERS, choices, strict=True))
