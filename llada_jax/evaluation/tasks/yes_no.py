"""Yes/no questions about short passages, where one or a few of several facts decide: our BoolQ.

The worked answer repeats the facts that decide and draws the conclusion. Half of the answers are
yes, in every kind of passage; whatever a question names occurs in the passage either way.

The key of an item is its question with the facts that decide: no such pair of the test split
occurs in training, whatever facts stand around it.
"""

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import NamedTuple

from llada_jax.evaluation.people import PEOPLE
from llada_jax.evaluation.task import Item, OwnsKey, Task

FACTS = {0: 3, 1: 5, 2: 8}  # by difficulty
LARGEST_VALUE = {0: 10, 1: 20, 2: 99}
DRILLED_QUESTIONS = 5

PLACES = ("kitchen", "garden", "office", "school", "park", "library", "garage", "market")
MOVES = ("{who} went to the {place}", "{who} walked to the {place}", "{who} ran to the {place}")
OBJECTS = ("ball", "book", "key", "lamp", "map", "phone", "hat", "cup")
COMPARISONS = ("taller", "older", "faster", "stronger")
ANIMALS = ("cat", "dog", "horse", "bird", "cow", "sheep", "rabbit", "duck", "pig")
COLORS = ("black", "white", "red", "green", "blue", "brown", "yellow", "gray", "pink")
FRUITS = ("apples", "pears", "plums", "nuts", "lemons", "melons", "grapes", "figs", "dates")
SHOPS = ("bakery", "library", "museum", "bank", "market", "school", "office", "hotel", "zoo")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
HOBBIES = ("chess", "tennis", "cards", "football", "golf", "hockey", "drums", "darts")


class Passage(NamedTuple):
    """Facts in the order told, a question, and why its answer is what it is.

    A kind of passage draws the facts by one generator and the question by another, so that several
    questions can be asked about the same facts.

    `conclusion` has a place for "" or "not " where a denial would stand.
    """

    facts: list[str]
    question: str
    reasons: list[str]
    conclusion: str


def whereabouts(told: Random, rng: Random, difficulty: int, truth: bool) -> Passage:
    """People move about; the last move of a person decides."""
    people = told.sample(PEOPLE, 2 if difficulty == 0 else 3)
    places, facts, last = dict.fromkeys(people, ""), [], {}
    for _ in range(FACTS[difficulty]):
        who = told.choice(people)
        places[who] = told.choice([place for place in PLACES if place != places[who]])
        facts.append(told.choice(MOVES).format(who=who, place=places[who]))
        last[who] = facts[-1]
    who = rng.choice(list(last))
    named = {fact.rpartition(" ")[2] for fact in facts} - {places[who]}
    place = places[who] if truth or not named else rng.choice(sorted(named))
    if not truth and not named:
        place = rng.choice([place for place in PLACES if place != places[who]])
    return Passage(
        facts,
        f"Is {who} in the {place} now?",
        [last[who]],
        f"{who} is {{}}in the {place}",
    )


def owners(told: Random, rng: Random, difficulty: int, truth: bool) -> Passage:
    """Objects change hands; the last owner of an object decides."""
    people = told.sample(PEOPLE, 4)
    objects = told.sample(OBJECTS, 2)
    owner = dict(zip(objects, people, strict=False))
    facts = [f"{who} had the {thing}" for thing, who in owner.items()]
    last = dict(zip(objects, facts, strict=True))
    for _ in range(FACTS[difficulty] - 2):
        thing = told.choice(objects)
        taker = told.choice([who for who in people if who != owner[thing]])
        facts.append(f"{owner[thing]} gave the {thing} to {taker}")
        owner[thing], last[thing] = taker, facts[-1]
    thing = rng.choice(objects)
    others = [who for who in people if who != owner[thing] and who in " ".join(facts)]
    who = owner[thing] if truth else rng.choice(others)
    conclusion = f"{who} has {{}}got the {thing}"
    return Passage(facts, f"Has {who} got the {thing} now?", [last[thing]], conclusion)


def order(told: Random, rng: Random, difficulty: int, truth: bool) -> Passage:
    """A chain of comparisons, told in any order; the links between two people decide."""
    relation = told.choice(COMPARISONS)
    people = told.sample(PEOPLE, FACTS[difficulty] + 1)
    links = [f"{more} is {relation} than {less}" for more, less in pairwise(people)]
    shuffled = told.sample(links, len(links))
    steps = rng.randint(1, min(2 + difficulty // 2, len(links)))
    first = rng.randint(0, len(links) - steps)
    asked = (people[first], people[first + steps])
    who, other = asked if truth else reversed(asked)
    return Passage(
        shuffled,
        f"Is {who} {relation} than {other}?",
        links[first : first + steps],
        f"{who} is {{}}{relation} than {other}",
    )


def colors_of_kinds(told: Random, rng: Random, difficulty: int, truth: bool) -> Passage:
    """What holds for all animals of a kind holds for the one that is named."""
    count = (FACTS[difficulty] + 1) // 2
    animals, colors = told.sample(ANIMALS, count), told.sample(COLORS, count)
    rules = [
        f"all {animal}s are {color}" if animal != "sheep" else f"all sheep are {color}"
        for animal, color in zip(animals, colors, strict=True)
    ]
    pets = [
        f"{who} is a {animal}"
        for who, animal in zip(told.sample(PEOPLE, count), animals, strict=True)
    ]
    facts = told.sample(rules + pets, 2 * count)
    asked = rng.randrange(count)
    who = pets[asked].partition(" ")[0]
    color = colors[asked] if truth else rng.choice(colors[:asked] + colors[asked + 1 :])
    return Passage(
        facts,
        f"Is {who} {color}?",
        [pets[asked], rules[asked]],
        f"{who} is {{}}{color}",
    )


def amounts(told: Random, rng: Random, difficulty: int, truth: bool) -> Passage:
    """Two of several numbers are compared."""
    count = FACTS[difficulty]
    things = told.sample(FRUITS, count)
    numbers = told.sample(range(2, LARGEST_VALUE[difficulty] + 1), count)
    word = told.choice(("box", "bag", "basket"))
    facts = [
        f"the {word} has {number} {thing}" for number, thing in zip(numbers, things, strict=True)
    ]
    pair = rng.sample(range(count), 2)
    pair.sort(key=lambda place: numbers[place], reverse=truth)
    first, second = pair
    return Passage(
        facts,
        f"Does the {word} have more {things[first]} than {things[second]}?",
        [facts[first], facts[second]],
        f"{numbers[first]} is {{}}more than {numbers[second]}",
    )


def opening_hours(told: Random, rng: Random, difficulty: int, truth: bool) -> Passage:
    """A time lies between two others, or does not."""
    shops = told.sample(SHOPS, FACTS[difficulty])
    hours = [(told.randint(6, 11), told.randint(14, 21)) for _ in shops]
    facts = [
        f"the {shop} is open from {opens} to {closes}"
        for shop, (opens, closes) in zip(shops, hours, strict=True)
    ]
    asked = rng.randrange(len(shops))
    opens, closes = hours[asked]
    inside = range(opens + 1, closes)
    outside = [hour for hour in range(4, 24) if hour < opens or hour > closes]
    hour = rng.choice(inside if truth else outside)
    shop = shops[asked]
    return Passage(
        facts, f"Is the {shop} open at {hour}?", [facts[asked]], f"at {hour} it is {{}}open"
    )


def timetable(told: Random, rng: Random, difficulty: int, truth: bool) -> Passage:
    """Each day has its own game."""
    count = min(FACTS[difficulty], len(DAYS))
    who = told.choice(PEOPLE)
    days, games = told.sample(DAYS, count), told.sample(HOBBIES, count)
    facts = [f"on {day} {who} plays {game}" for day, game in zip(days, games, strict=True)]
    asked = rng.randrange(count)
    game = games[asked] if truth else rng.choice(games[:asked] + games[asked + 1 :])
    return Passage(
        facts,
        f"Is {game} what {who} plays on {days[asked]}?",
        [facts[asked]],
        f"it is {{}}{game}",
    )


KINDS: tuple[Callable[[Random, Random, int, bool], Passage], ...] = (
    whereabouts,
    owners,
    order,
    colors_of_kinds,
    amounts,
    opening_hours,
    timetable,
)


def draw(rng: Random, difficulty: int, owns: OwnsKey) -> Item | None:
    """A passage of 3, 5 or 8 facts with its question; None where the split is another's."""
    truth = rng.random() < 0.5
    passage = rng.choice(KINDS)(rng, rng, difficulty, truth)
    if not owns(_key(passage)):
        return None
    facts, reasons = (" ".join(map(_sentence, each)) for each in (passage.facts, passage.reasons))
    target, conclusion = _conclusion(passage, truth)
    answer = f"{reasons} So {conclusion}.\n#### {target}"
    return Item(f"{facts} {passage.question}", answer, target)


def drill(rng: Random, difficulty: int, owns: OwnsKey) -> Item | None:
    """Several questions about one passage, answered by their conclusions alone."""
    kind, told = rng.choice(KINDS), rng.random()
    asked: dict[str, tuple[str, str]] = {}
    for _ in range(DRILLED_QUESTIONS):
        truth = rng.random() < 0.5
        passage = kind(Random(told), rng, difficulty, truth)
        if not owns(_key(passage)):
            return None
        asked[passage.question] = _conclusion(passage, truth)
    targets, conclusions = zip(*asked.values(), strict=True)
    question = " ".join([*map(_sentence, passage.facts), *asked])
    target = " ".join(targets)
    return Item(question, f"{' '.join(map(_sentence, conclusions))}\n#### {target}", target)


def _key(passage: Passage) -> str:
    return " ".join([passage.question, *passage.reasons])


def _conclusion(passage: Passage, truth: bool) -> tuple[str, str]:
    """Yes or no, and the sentence that says why."""
    return "yes" if truth else "no", passage.conclusion.format("" if truth else "not ")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


TASK = Task(
    name="yes_no",
    about="yes/no questions about a passage, decided by one or a few of its facts",
    draw=draw,
    difficulties={level: f"about {count} facts" for level, count in FACTS.items()},
    default_difficulty=0,
    gen_length=64,
    drill=drill,
)
