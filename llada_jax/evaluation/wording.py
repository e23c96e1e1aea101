"""Words that generated texts of several tasks have in common."""

from collections.abc import Sequence

GIRLS: tuple[str, ...] = ("Anna", "Emma", "Lily", "Mia", "Zoe")
BOYS: tuple[str, ...] = ("Ben", "Jack", "Leo", "Max", "Sam", "Tom")
PEOPLE: tuple[str, ...] = GIRLS + BOYS
PLACES = ("kitchen", "garden", "office", "school", "park", "library", "garage", "market")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def sentence(text: str) -> str:
    """Writes a text as a sentence."""
    return f"{text[0].upper()}{text[1:]}."


def sentences(texts: Sequence[str]) -> str:
    """Writes texts as sentences in a line."""
    return " ".join(map(sentence, texts))
