"""Word lists shared by several tasks, and the story templates about a running count."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from llada_jax.config_files import read_yaml

GIRLS: tuple[str, ...] = ("Anna", "Emma", "Lily", "Mia", "Zoe")
BOYS: tuple[str, ...] = ("Ben", "Jack", "Leo", "Max", "Sam", "Tom")
PEOPLE: tuple[str, ...] = GIRLS + BOYS
PLACES = ("kitchen", "garden", "office", "school", "park", "library", "garage", "market")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class StoryEvent(NamedTuple):
    """Templates for one event of a story."""

    symbol: str
    """The operation applied to the count; empty in an opening that only states it."""
    told: str
    """Sentence of the question."""
    shown: str = ""
    """End of the answer's sentence, with the equation; empty to use the story's."""
    asks: Sequence[str] = ()
    """Final questions; empty to use the story's."""


class CountStory(NamedTuple):
    """Events that change one running count, and how to state and to ask for that count."""

    openings: Sequence[StoryEvent]
    gains: Sequence[StoryEvent]
    losses: Sequence[StoryEvent]
    endings: Sequence[StoryEvent]
    shown: str
    asks: Sequence[str]
    things: Sequence[str]


def _story(entry: Mapping[str, Any]) -> CountStory:
    events = {
        kind: [StoryEvent(symbol, text) for symbol, texts in entry[kind].items() for text in texts]
        for kind in ("openings", "gains", "losses")
    }
    endings = [StoryEvent(**ending) for ending in entry["endings"]]
    return CountStory(**{**entry, **events, "endings": endings})


_FILE = read_yaml(Path(__file__).with_suffix(".yaml"))
THINGS: Sequence[str] = _FILE["things"]
STORIES = [_story(entry) for entry in _FILE["stories"]]


def sentence(text: str) -> str:
    """Capitalises a text and adds a full stop."""
    return f"{text[0].upper()}{text[1:]}."


def sentences(texts: Sequence[str]) -> str:
    """Joins texts into a line of sentences."""
    return " ".join(map(sentence, texts))
