"""Stories with four endings, of which one is consistent with what was told: our HellaSwag.

Two things are open at the end of a story, and the story settles both. The four endings are all
combinations of two alternatives each, so that the endings alone tell nothing. The worked answer
repeats the facts that settle both, tells the right ending, and ends in its letter.

The key of an item is those facts: no such pair of the test split occurs in training.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from llada_jax.config_files import read_yaml
from llada_jax.evaluation.task import Item, OwnsKey, Task
from llada_jax.evaluation.wording import (
    DAYS,
    PEOPLE,
    PLACES,
    all_lettered,
    lettered_item,
    pronoun,
    sentences,
)

IDLE_SENTENCES = {0: 0, 1: 1, 2: 3}  # by difficulty
_FILE = read_yaml(Path(__file__).with_suffix(".yaml"))
WORDS = {"people": PEOPLE, "places": PLACES, "days": DAYS, **_FILE["words"]}


class Story(NamedTuple):
    """What is told, the start of the last sentence, its ends, the right one first, and why."""

    facts: list[str]
    stem: str
    endings: list[str]
    reasons: list[str]


def told(template: Mapping[str, Any], rng: Random) -> Story:
    """Draws the words of a story of endings.yaml."""
    words: dict[str, Any] = {}
    for line, kind in template["draws"].items():
        names = line.split()
        drawn = rng.sample(WORDS[kind], len(names)) if len(names) > 1 else [rng.choice(WORDS[kind])]
        words |= zip(names, drawn, strict=True)
    words["he"] = pronoun(words["who"])

    def filled(texts: Sequence[str]) -> list[str]:
        return [text.format(**words) for text in texts]

    facts = []
    for fact in template["facts"]:
        facts += [fact] if isinstance(fact, str) else rng.sample(fact, len(fact))
    alternatives = product(filled(template["first"]), filled(template["second"]))
    return Story(
        filled(facts),
        template["stem"].format(**words),
        [template["ending"].format(first=a, second=b, **words) for a, b in alternatives],
        filled(template["reasons"]),
    )


def leftovers(rng: Random) -> Story:
    """Asks for a number after a loss or a gain, and who likes the thing."""
    who, friend, other = rng.sample(PEOPLE, 3)
    food, other_food = rng.sample(WORDS["foods"], 2)
    had, change = rng.randint(4, 12), rng.randint(2, 6)
    change = min(change, had - 2)
    symbol, verb = rng.choice((("-", "ate"), ("+", "got")))
    less, more = had - change, had + change
    left, wrong = (more, less) if symbol == "+" else (less, more)
    told = f"{who} had {had} {food} and {verb} {change}"
    likes = f"{friend} likes {food}"
    return Story(
        [told, *rng.sample([likes, f"{other} likes {other_food}"], 2)],
        f"In the end {pronoun(who)}",
        [f"gave all {n} {food} to {name}" for n, name in product((left, wrong), (friend, other))],
        [f"{told}, {had}{symbol}{change}={left}", likes],
    )


def shopping(rng: Random) -> Story:
    """Asks for the shop, which the need tells, and whether it is open, which the hour tells."""
    who = rng.choice(PEOPLE)
    (shop, goods), (other, _) = rng.sample(WORDS["shops"], 2)
    hour = rng.randint(13, 17)
    before, after = rng.randint(hour - 4, hour - 1), rng.randint(hour + 1, hour + 4)
    is_open = rng.random() < 0.5
    closes, other_closes = (after, before) if is_open else (before, after)
    states = ("open", "closed") if is_open else ("closed", "open")
    needs = f"at {hour} {who} went out for {goods}"
    shuts = f"the {shop} closes at {closes}"
    return Story(
        [*rng.sample([shuts, f"the {other} closes at {other_closes}"], 2), needs],
        f"So {pronoun(who)}",
        [f"found the {place} {state}" for place, state in product((shop, other), states)],
        [needs, shuts],
    )


fetch, handed_over, weather, present, travel = (
    partial(told, template) for template in _FILE["stories"].values()
)
Kind = Callable[[Random], Story]
KINDS: tuple[Kind, ...] = fetch, handed_over, weather, leftovers, shopping, present, travel


def draw(rng: Random, difficulty: int, owns: OwnsKey) -> Item | None:
    """Draws a story with its endings in random order; None where the split is another's."""
    story = rng.choice(KINDS)(rng)
    if not owns(" ".join(story.reasons)):
        return None
    choices = rng.sample(story.endings, 4)
    idle = (
        f"{rng.choice(PEOPLE)} sang a song",
        f"{rng.choice(PEOPLE)} was at home",
        f"it was {rng.randint(7, 12)} in the morning",
        f"{rng.choice(PEOPLE)} had a dog",
    )
    facts = [*rng.sample(idle, IDLE_SENTENCES[difficulty]), *story.facts]
    told = f"{sentences(facts)} {story.stem}"
    return lettered_item(told, choices, story.endings[0], sentences(story.reasons))


def drill(rng: Random, difficulty: int, owns: OwnsKey) -> Item | None:
    """Asks for the letters of the other endings too, in random order."""
    return all_lettered(rng, draw(rng, difficulty, owns))


TASK = Task(
    name="endings",
    about="four endings of a story, one of which is consistent with it",
    draw=draw,
    difficulties={level: f"{count} idle sentences" for level, count in IDLE_SENTENCES.items()},
    default_difficulty=0,
    gen_length=64,
    drill=drill,
    version=2,
)
