"""Words that generated texts of several tasks have in common, and the stories around a count."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from llada_jax.config_files import read_yaml

GIRLS: tuple[str, ...] = ("Anna", "Emma", "Lily", "Mia", "Zoe")
BOYS: tuple[str, ...] = ("Ben", "Jack", "Leo", "Max", "Sam", "Tom")
PEOPLE: tuple[str, ...] = GIRLS + BOYS
PLACES = ("kitchen", "garden", "office", "school", "park", "library", "garage", "market")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class Happening(NamedTuple):
    """Something that happens: `told` in the question, `shown` with its equation in the answer."""

    symbol: str
    """The operation applied to the count; none in an opening that only states it."""
    told: str
    shown: str = ""
    """Empty, as `asks`: those of the story hold."""
    asks: Sequence[str] = ()


class CountStory(NamedTuple):
    """Events around one running count, and how to state and to ask for that count."""

    openings: Sequence[Happening]
    gains: Sequence[Happening]
    losses: Sequence[Happening]
    endings: Sequence[Happening]
    shown: str
    asks: Sequence[str]
    things: Sequence[str]


def _story(told: Mapping[str, Any]) -> CountStory:
    events = {
        kind: [Happening(symbol, text) for symbol, texts in told[kind].items() for text in texts]
        for kind in ("openings", "gains", "losses")
    }
    endings = [Happening(**ending) for ending in told["endings"]]
    return CountStory(**{**told, **events, "endings": endings})


_FILE = read_yaml(Path(__file__).with_suffix(".yaml"))
THINGS: Sequence[str] = _FILE["things"]
STORIES = [_story(told) for told in _FILE["stories"]]


def sentence(text: str) -> str:
    """Writes a text as a sentence."""
    return f"{text[0].upper()}{text[1:]}."


def sentences(texts: Sequence[str]) -> str:
    """Writes texts as sentences in a line."""
    return " ".join(map(sentence, texts))
