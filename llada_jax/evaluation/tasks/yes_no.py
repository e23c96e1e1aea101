"""Yes/no questions about short passages in which one or a few facts decide; similar to BoolQ.

The worked answer repeats the deciding facts, and ends in a comparison of the facts with the
question. Half of the answers are yes in every kind of passage, and the question alone does not give
the answer away: everything it names, except hours, occurs in the passage for both answers.

The key of an item is its question with the deciding facts: no such pair of the test split occurs in
training, whatever other facts surround it.
"""

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

from llada_jax.config_files import read_yaml
from llada_jax.evaluation.task import Item, OwnsKey, Task, is_worked_answer
from llada_jax.evaluation.wording import DAYS, PEOPLE, PLACES, sentence, sentences

_FACTS = {0: 3, 1: 5, 2: 8}  # by difficulty
LARGEST_VALUE = {0: 9, 1: 20, 2: 99}
_LATEST_HOUR = {0: 9, 1: 23, 2: 23}
_DRILLED_QUESTIONS = 3
WORDS = read_yaml(Path(__file__).with_suffix(".yaml"))


class _Passage(NamedTuple):
    """Facts in order, a question, the deciding facts, and the conclusion.

    A kind of passage draws the facts with one generator and the question with another, so that
    several questions can be asked about the same facts.
    """

    facts: list[str]
    question: str
    reasons: list[str]
    conclusion: str


def _whereabouts(facts_rng: Random, rng: Random, difficulty: int, truth: bool) -> _Passage:
    """People move about; the last move of a person decides."""
    people = facts_rng.sample(PEOPLE, 2 if difficulty == 0 else 3)
    places, facts, last = dict.fromkeys(people, ""), [], {}
    for _ in range(_FACTS[difficulty]):
        who = facts_rng.choice(people)
        places[who] = facts_rng.choice([place for place in PLACES if place != places[who]])
        facts.append(facts_rng.choice(WORDS["moves"]).format(who=who, place=places[who]))
        last[who] = facts[-1]
    who = rng.choice(list(last))
    others = {fact.rpartition(" ")[2] for fact in facts} - {places[who]}
    place = places[who] if truth else rng.choice(sorted(others))
    question = f"Is {who} in the {place} now?"
    return _Passage(facts, question, [last[who]], _compared(places[who], place))


def _owners(facts_rng: Random, rng: Random, difficulty: int, truth: bool) -> _Passage:
    """Objects change hands; the last handover of an object decides."""
    people = facts_rng.sample(PEOPLE, 4)
    objects = facts_rng.sample(WORDS["objects"], 2)
    owner = dict(zip(objects, people, strict=False))
    facts = [f"{who} had the {thing}" for thing, who in owner.items()]
    last = dict(zip(objects, facts, strict=True))
    for _ in range(_FACTS[difficulty] - 2):
        thing = facts_rng.choice(objects)
        taker = facts_rng.choice([who for who in people if who != owner[thing]])
        facts.append(f"{owner[thing]} gave the {thing} to {taker}")
        owner[thing], last[thing] = taker, facts[-1]
    thing = rng.choice(objects)
    others = [who for who in people if who != owner[thing] and who in " ".join(facts)]
    who = owner[thing] if truth else rng.choice(others)
    question = f"Has {who} got the {thing} now?"
    return _Passage(facts, question, [last[thing]], _compared(owner[thing], who))


def _order(facts_rng: Random, rng: Random, difficulty: int, truth: bool) -> _Passage:
    """A chain of comparisons in random order; the links between two people decide."""
    relation = facts_rng.choice(WORDS["comparisons"])
    people = facts_rng.sample(PEOPLE, _FACTS[difficulty] + 1)
    links = [f"{more} is {relation} than {less}" for more, less in pairwise(people)]
    shuffled = facts_rng.sample(links, len(links))
    steps = rng.randint(1, min(2 + difficulty // 2, len(links)))
    first = rng.randint(0, len(links) - steps)
    asked = (people[first], people[first + steps])
    who, other = asked if truth else reversed(asked)
    question, reasons = f"Is {who} {relation} than {other}?", links[first : first + steps]
    return _Passage(shuffled, question, reasons, _compared(people[first], who))


def _colors_of_kinds(facts_rng: Random, rng: Random, difficulty: int, truth: bool) -> _Passage:
    """Rules for all animals of a kind, and a question about one animal."""
    count = (_FACTS[difficulty] + 1) // 2
    animals, colors = (
        facts_rng.sample(WORDS["animals"], count),
        facts_rng.sample(WORDS["colors"], count),
    )
    kinds = [animal if animal == "sheep" else f"{animal}s" for animal in animals]
    rules = [f"all {kind} are {color}" for kind, color in zip(kinds, colors, strict=True)]
    people = facts_rng.sample(PEOPLE, count)
    pets = [f"{who} is a {animal}" for who, animal in zip(people, animals, strict=True)]
    facts = facts_rng.sample(rules + pets, 2 * count)
    asked = rng.randrange(count)
    who = pets[asked].partition(" ")[0]
    color = colors[asked] if truth else rng.choice(colors[:asked] + colors[asked + 1 :])
    reasons = [pets[asked], rules[asked]]
    return _Passage(facts, f"Is {who} {color}?", reasons, _compared(colors[asked], color))


def _amounts(facts_rng: Random, rng: Random, difficulty: int, truth: bool) -> _Passage:
    """Counts of things, and a question which of two is larger."""
    count = _FACTS[difficulty]
    things = facts_rng.sample(WORDS["fruits"], count)
    numbers = facts_rng.sample(range(2, LARGEST_VALUE[difficulty] + 1), count)
    word = facts_rng.choice(("box", "bag", "basket"))
    facts = [f"the {word} has {n} {thing}" for n, thing in zip(numbers, things, strict=True)]
    first, second = sorted(rng.sample(range(count), 2), key=numbers.__getitem__, reverse=truth)
    compared = f"{numbers[first]}{'>' if truth else '<'}{numbers[second]}"
    question = f"Does the {word} have more {things[first]} than {things[second]}?"
    return _Passage(facts, question, [facts[first], facts[second]], compared)


def _opening_hours(facts_rng: Random, rng: Random, difficulty: int, truth: bool) -> _Passage:
    """Opening hours of shops, and a question whether one is open at some hour.

    Each shop's hour is drawn before it is decided whether it is open then, so that the hour alone
    does not give the answer away.
    """
    count, latest = _FACTS[difficulty], _LATEST_HOUR[difficulty]
    shops, facts, asked = facts_rng.sample(WORDS["shops"], count), [], []
    is_open = facts_rng.sample([True, False, *facts_rng.choices((True, False), k=count - 2)], count)
    for shop, now in zip(shops, is_open, strict=True):
        hour = facts_rng.randint(2, latest - 2)
        early, late = range(hour), range(hour + 1, latest + 1)
        if now:
            opens, closes = facts_rng.choice(early), facts_rng.choice(late)
        else:
            opens, closes = sorted(facts_rng.sample(facts_rng.choice((early, late)), 2))
        facts.append(f"the {shop} is open from {opens} to {closes}")
        signs = [f"{hour}{'<' if hour < edge else '>'}{edge}" for edge in (opens, closes)]
        asked.append((f"Is the {shop} open at {hour}?", " and ".join(signs)))
    place = rng.choice([place for place, now in enumerate(is_open) if now == truth])
    question, signs = asked[place]
    return _Passage(
        facts, question, [facts[place], signs], f"it is {'open' if truth else 'closed'}"
    )


def _timetable(facts_rng: Random, rng: Random, difficulty: int, truth: bool) -> _Passage:
    """One game for each day, and a question about the game of a day."""
    count = min(_FACTS[difficulty], len(DAYS))
    who = facts_rng.choice(PEOPLE)
    days, games = facts_rng.sample(DAYS, count), facts_rng.sample(WORDS["hobbies"], count)
    facts = [f"on {day} {who} plays {game}" for day, game in zip(days, games, strict=True)]
    asked = rng.randrange(count)
    game = games[asked] if truth else rng.choice(games[:asked] + games[asked + 1 :])
    question = f"Is {game} what {who} plays on {days[asked]}?"
    return _Passage(facts, question, [facts[asked]], _compared(games[asked], game))


KINDS = _whereabouts, _owners, _order, _colors_of_kinds, _amounts, _opening_hours, _timetable


def _draw(rng: Random, difficulty: int, owns: OwnsKey) -> Item | None:
    """Draws a passage of about 3, 5 or 8 facts with its question; None if in the other split."""
    truth = rng.random() < 0.5
    passage = rng.choice(KINDS)(rng, rng, difficulty, truth)
    if not owns(_key(passage)):
        return None
    target, answer = _worked(passage, truth)
    question = f"{sentences(passage.facts)} {passage.question}"
    return Item(question, f"{answer}\n#### {target}", target)


def _drill(rng: Random, difficulty: int, owns: OwnsKey) -> Item | None:
    """Asks several questions about one passage, each answered as if it were the only one."""
    kind, facts_seed = rng.choice(KINDS), rng.random()
    asked: dict[str, tuple[str, str]] = {}
    for _ in range(_DRILLED_QUESTIONS):
        truth = rng.random() < 0.5
        passage = kind(Random(facts_seed), rng, difficulty, truth)
        if not owns(_key(passage)):
            return None
        asked[passage.question] = _worked(passage, truth)
    targets, answers = zip(*asked.values(), strict=True)
    question = " ".join([*map(sentence, passage.facts), *asked])
    target = " ".join(targets)
    return Item(question, f"{' '.join(answers)}\n#### {target}", target)


def _key(passage: _Passage) -> str:
    return " ".join([passage.question, *passage.reasons])


def _worked(passage: _Passage, truth: bool) -> tuple[str, str]:
    return "yes" if truth else "no", f"{sentences(passage.reasons)} So {passage.conclusion}."


def _compared(actual: str, asked: str) -> str:
    return f"{actual} {'=' if actual == asked else '!='} {asked}"


TASK = Task(
    name="yes_no",
    about="yes/no questions about a passage, decided by one or a few of its facts",
    draw=_draw,
    difficulties={level: f"about {count} facts" for level, count in _FACTS.items()},
    gen_length=64,
    strict=is_worked_answer,
    drill=_drill,
    version=2,
)
