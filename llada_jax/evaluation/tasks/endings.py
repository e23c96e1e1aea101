"""Stories with four endings, of which one is consistent with what was told: our HellaSwag.

Two things are open at the end of a story, and the story settles both. The four endings are all
combinations of two alternatives each, so that the endings alone tell nothing. The worked answer
repeats the facts that settle both, tells the right ending, and ends in its letter.

The key of an item is those facts: no such pair of the test split occurs in training.
"""

from collections.abc import Callable
from itertools import product
from random import Random
from typing import NamedTuple

from llada_jax.evaluation.task import Item, OwnsKey, Task
from llada_jax.evaluation.wording import DAYS, LETTERS, PEOPLE, PLACES, lettered, pronoun, sentences

IDLE_SENTENCES = {0: 0, 1: 1, 2: 3}  # by difficulty

OBJECTS = ("ball", "book", "cup", "hat", "key", "lamp", "map", "phone", "ring", "toy")
CONTAINERS = ("box", "bag", "drawer", "basket", "chest", "case")
COLORS = ("red", "blue", "green", "white", "black", "yellow")
CLOTHES = ("hat", "coat", "scarf", "shirt", "belt", "cap")
FOODS = ("apples", "pears", "plums", "nuts", "eggs", "cakes")
TRIPS = (
    ("lake", "swam"),
    ("market", "bought fish"),
    ("zoo", "saw lions"),
    ("station", "met a friend"),
    ("stadium", "watched a game"),
    ("museum", "looked at pictures"),
)
WEATHER = (("rained", "an umbrella"), ("snowed", "warm boots"), ("was hot", "a sun hat"))
SHOPS = (("bakery", "bread"), ("bookshop", "books"), ("pharmacy", "pills"), ("dairy", "milk"))


class Story(NamedTuple):
    """What is told, the start of the last sentence, and its end with two open places.

    Each of `first` and `second` has what is consistent, and what is not; `reasons` are the facts
    that tell which.
    """

    facts: list[str]
    stem: str
    ending: str
    first: tuple[str, str]
    second: tuple[str, str]
    reasons: list[str]


def fetch(rng: Random) -> Story:
    """Someone needs one of two things, each put in a place of its own."""
    who = rng.choice(PEOPLE)
    thing, other = rng.sample(OBJECTS, 2)
    box, other_box = rng.sample(CONTAINERS, 2)
    put, need = f"{who} put the {thing} in the {box}", f"later {who} needed the {thing}"
    facts = [put, f"{who} put the {other} in the {other_box}"]
    return Story(
        [*rng.sample(facts, 2), need],
        f"So {pronoun(who)}",
        "opened the {} and took out the {}",
        (box, other_box),
        (thing, other),
        [need, put],
    )


def handed_over(rng: Random) -> Story:
    """A thing changes hands, and both people go somewhere."""
    giver, taker = rng.sample(PEOPLE, 2)
    thing = rng.choice(OBJECTS)
    place, other_place = rng.sample(PLACES, 2)
    gave, went = f"{giver} gave the {thing} to {taker}", f"{taker} went to the {place}"
    moves = [went, f"{giver} went to the {other_place}"]
    return Story(
        [gave, *rng.sample(moves, 2)],
        "After that",
        f"{{}} had the {thing} in the {{}}",
        (taker, giver),
        (place, other_place),
        [gave, went],
    )


def weather(rng: Random) -> Story:
    """Each day has its weather, and its place to go."""
    who = rng.choice(PEOPLE)
    (happened, took), (other_happened, other_took) = rng.sample(WEATHER, 2)
    day, other_day = rng.sample(DAYS, 2)
    place, other_place = rng.sample(PLACES, 2)
    was, goes = f"on {day} it {happened}", f"on {day} {who} went to the {place}"
    facts = [was, f"on {other_day} it {other_happened}"]
    goals = [goes, f"on {other_day} {who} went to the {other_place}"]
    return Story(
        [*rng.sample(facts, 2), *rng.sample(goals, 2)],
        f"So on {day} {pronoun(who)}",
        "took {} to the {}",
        (took, other_took),
        (place, other_place),
        [was, goes],
    )


def leftovers(rng: Random) -> Story:
    """Asks for a number after a loss or a gain, and who likes the thing."""
    who, friend, other = rng.sample(PEOPLE, 3)
    food, other_food = rng.sample(FOODS, 2)
    had, change = rng.randint(4, 12), rng.randint(2, 6)
    change = min(change, had - 2)
    symbol, verb = rng.choice((("-", "ate"), ("+", "got")))
    more, less = had + change, had - change
    numbers = (str(more), str(less)) if symbol == "+" else (str(less), str(more))
    amount = f"{who} had {had} {food} and {verb} {change}, {had}{symbol}{change}={numbers[0]}"
    told = amount.partition(",")[0]
    likes = f"{friend} likes {food}"
    tastes = [likes, f"{other} likes {other_food}"]
    return Story(
        [told, *rng.sample(tastes, 2)],
        f"In the end {pronoun(who)}",
        f"gave all {{}} {food} to {{}}",
        numbers,
        (friend, other),
        [amount, likes],
    )


def shopping(rng: Random) -> Story:
    """What is needed tells the shop, the hour tells whether it is open."""
    who = rng.choice(PEOPLE)
    (shop, goods), (other, _) = rng.sample(SHOPS, 2)
    hour = rng.randint(13, 17)
    before, after = rng.randint(hour - 4, hour - 1), rng.randint(hour + 1, hour + 4)
    is_open = rng.random() < 0.5
    closes, other_closes = (after, before) if is_open else (before, after)
    state = ("open", "closed") if is_open else ("closed", "open")
    needs = f"at {hour} {who} went out for {goods}"
    shuts = f"the {shop} closes at {closes}"
    facts = [shuts, f"the {other} closes at {other_closes}"]
    return Story(
        [*rng.sample(facts, 2), needs],
        f"So {pronoun(who)}",
        "found the {} {}",
        (shop, other),
        state,
        [needs, shuts],
    )


def present(rng: Random) -> Story:
    """A present that suits one of two friends, who likes one color and lacks one thing."""
    friend, other = rng.sample(PEOPLE, 2)
    color, other_color = rng.sample(COLORS, 2)
    lacks, has = rng.sample(CLOTHES, 2)
    likes = f"{friend} likes {color}"
    tastes = [likes, f"{other} likes {other_color}"]
    owns = f"{friend} has a {has} but no {lacks}"
    return Story(
        [*rng.sample(tastes, 2), owns],
        f"For the birthday {friend} got",
        "a {} {}",
        (color, other_color),
        (lacks, has),
        [likes, owns],
    )


def travel(rng: Random) -> Story:
    """Which bus goes where, and what is done there."""
    who = rng.choice(PEOPLE)
    (place, deed), (other, other_deed) = rng.sample(TRIPS, 2)
    bus, other_bus = rng.sample(range(2, 20), 2)
    goes, wants = f"bus {bus} goes to the {place}", f"{who} wanted to go to the {place}"
    lines = [goes, f"bus {other_bus} goes to the {other}"]
    return Story(
        [*rng.sample(lines, 2), wants],
        f"So {pronoun(who)}",
        "took bus {} and {}",
        (str(bus), str(other_bus)),
        (deed, other_deed),
        [wants, goes],
    )


KINDS: tuple[Callable[[Random], Story], ...] = (
    fetch,
    handed_over,
    weather,
    leftovers,
    shopping,
    present,
    travel,
)


def draw(rng: Random, difficulty: int, owns: OwnsKey) -> Item | None:
    """Draws a story with its endings in random order; None where the split is another's."""
    story = rng.choice(KINDS)(rng)
    if not owns(" ".join(story.reasons)):
        return None
    right, *wrong = (story.ending.format(*each) for each in product(story.first, story.second))
    choices = rng.sample([right, *wrong], 4)
    letter = LETTERS[choices.index(right)]
    facts = [*_idle_sentences(rng, IDLE_SENTENCES[difficulty]), *story.facts]
    question = f"{sentences(facts)} {story.stem}{lettered(choices)}"
    reasons = sentences(story.reasons)
    answer = f"{reasons}\n{letter}) {right}\n#### {letter}"
    return Item(question, answer, letter, tuple(choices))


def _idle_sentences(rng: Random, count: int) -> list[str]:
    kinds = (
        f"{rng.choice(PEOPLE)} sang a song",
        f"{rng.choice(PEOPLE)} was at home",
        f"it was {rng.randint(7, 12)} in the morning",
        f"{rng.choice(PEOPLE)} had a dog",
    )
    return rng.sample(kinds, count)


TASK = Task(
    name="endings",
    about="four endings of a story, one of which is consistent with it",
    draw=draw,
    difficulties={level: f"{count} idle sentences" for level, count in IDLE_SENTENCES.items()},
    default_difficulty=0,
    gen_length=64,
    version=2,
)
