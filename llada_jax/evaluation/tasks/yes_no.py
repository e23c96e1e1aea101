"""Yes/no questions about short passages, where one or a few of several facts decide: our BoolQ.

The worked answer repeats the facts that decide and sets what they say beside what is asked. Half of
the answers are yes, in every kind of passage; whatever a question names occurs in the passage
either way.

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
LARGEST_VALUE = {0: 9, 1: 20, 2: 99}
OPENS, CLOSES = {0: (1, 4), 1: (6, 11), 2: (6, 11)}, {0: (6, 9), 1: (14, 21), 2: (14, 21)}
HOURS = {0: range(10), 1: range(4, 24), 2: range(4, 24)}
DRILLED_QUESTIONS = 3

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

    The answer is yes where what is asked is what is found.
    """

    facts: list[str]
    question: str
    reasons: list[str]
    asked: str
    found: str


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
        place,
        places[who],
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
    question = f"Has {who} got the {thing} now?"
    return Passage(facts, question, [last[thing]], who, owner[thing])


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
        who,
        people[first],
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
        color,
        colors[asked],
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
    found, sign = ("more", ">") if numbers[first] > numbers[second] else ("less", "<")
    return Passage(
        facts,
        f"Does the {word} have more {things[first]} than {things[second]}?",
        [facts[first], facts[second], f"{numbers[first]}{sign}{numbers[second]}"],
        "more",
        found,
    )


def opening_hours(told: Random, rng: Random, difficulty: int, truth: bool) -> Passage:
    """A time lies between two others, or does not."""
    shops = told.sample(SHOPS, FACTS[difficulty])
    hours = [(told.randint(*OPENS[difficulty]), told.randint(*CLOSES[difficulty])) for _ in shops]
    facts = [
        f"the {shop} is open from {opens} to {closes}"
        for shop, (opens, closes) in zip(shops, hours, strict=True)
    ]
    asked = rng.randrange(len(shops))
    opens, closes = hours[asked]
    inside = range(opens + 1, closes)
    outside = [hour for hour in HOURS[difficulty] if hour < opens or hour > closes]
    hour = rng.choice(inside if truth else outside)
    signs = " and ".join(f"{hour}{'<' if hour < edge else '>'}{edge}" for edge in (opens, closes))
    return Passage(
        facts,
        f"Is the {shops[asked]} open at {hour}?",
        [facts[asked], signs],
        "open",
        "open" if opens < hour < closes else "closed",
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
        game,
        games[asked],
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
    facts = " ".join(map(_sentence, passage.facts))
    target, answer = _worked(passage)
    return Item(f"{facts} {passage.question}", f"{answer}\n#### {target}", target)


def drill(rng: Random, difficulty: int, owns: OwnsKey) -> Item | None:
    """Several questions about one passage, each answered as it would be alone."""
    kind, told = rng.choice(KINDS), rng.random()
    asked: dict[str, tuple[str, str]] = {}
    for _ in range(DRILLED_QUESTIONS):
        truth = rng.random() < 0.5
        passage = kind(Random(told), rng, difficulty, truth)
        if not owns(_key(passage)):
            return None
        asked[passage.question] = _worked(passage)
    targets, answers = zip(*asked.values(), strict=True)
    question = " ".join([*map(_sentence, passage.facts), *asked])
    target = " ".join(targets)
    return Item(question, f"{' '.join(answers)}\n#### {target}", target)


def _key(passage: Passage) -> str:
    return " ".join([passage.question, *passage.reasons])


def _worked(passage: Passage) -> tuple[str, str]:
    """Yes or no, and how one comes to it."""
    target = "yes" if passage.asked == passage.found else "no"
    reasons = " ".join(map(_sentence, passage.reasons))
    relation = "is" if target == "yes" else "not"
    return target, f"{reasons} So {passage.found} {relation} {passage.asked}."


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
    version=2,
)
