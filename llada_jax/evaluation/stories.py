"""Templates of word problems: stories around one running count, and what happens in them."""

from typing import NamedTuple

THINGS = ("apples", "books", "cards", "coins", "pears", "pens", "shells", "stamps", "toys")


class Happening(NamedTuple):
    """Something that happens: `told` in the question, `shown` with its equation in the answer.

    The symbol is the operation applied to the running count; an opening that only states the
    count has none. Without `shown` or `asks` those of the story hold.
    """

    symbol: str
    told: str
    shown: str = ""
    asks: tuple[str, ...] = ()


class CountStory(NamedTuple):
    """Events around one running count, and how to state and to ask for that count."""

    openings: tuple[Happening, ...]
    gains: tuple[Happening, ...]
    losses: tuple[Happening, ...]
    endings: tuple[Happening, ...]
    shown: str
    asks: tuple[str, ...]
    things: tuple[str, ...] = THINGS


SHARE = Happening(
    "/",
    "{he} shared all the {things} equally among {a} friends",
    "each friend got {equation} {things}",
    ("How many {things} did each friend get?",),
)
PACK = Happening(
    "/",
    "{he} put all the {things} into bags of {a}",
    "{he} filled {equation} bags",
    ("How many bags did {he} fill?",),
)
SELL_ALL = Happening(
    "*",
    "{he} sold all the {things} for {a} dollars each",
    "{he} got {equation} dollars",
    ("How many dollars did {he} get for the {things}?",),
)
OWNED = "{he} had {equation} {things}"
ASK_OWNED = (
    "How many {things} did {name} have in the end?",
    "How many {things} did {he} have after that?",
)
FOUND_OR_BOUGHT = (
    Happening("+", "{he} bought {a} more {things}"),
    Happening("+", "{he} found {a} more {things}"),
    Happening("+", "{friend} gave {him} {a} more {things}"),
)
GIVEN_OR_LOST = (
    Happening("-", "{he} gave {a} {things} to {friend}"),
    Happening("-", "{he} lost {a} {things}"),
    Happening("-", "{he} sold {a} {things}"),
)
COLLECTION = CountStory(
    openings=(
        Happening("", "{name} had {a} {things}"),
        Happening("", "{name} started with {a} {things}"),
    ),
    gains=FOUND_OR_BOUGHT,
    losses=GIVEN_OR_LOST,
    endings=(SHARE, PACK, SELL_ALL),
    shown=OWNED,
    asks=ASK_OWNED,
)
BOXES = CountStory(
    openings=(
        Happening("*", "{name} had {a} boxes with {b} {things} in each box"),
        Happening("*", "{name} bought {a} bags of {b} {things}"),
    ),
    gains=FOUND_OR_BOUGHT,
    losses=GIVEN_OR_LOST,
    endings=(SHARE, PACK),
    shown=OWNED,
    asks=ASK_OWNED,
)
BUS = CountStory(
    openings=(
        Happening("", "a bus started with {a} people"),
        Happening("", "there were {a} people on a bus"),
    ),
    gains=(Happening("+", "at the next stop {a} people got on"),),
    losses=(Happening("-", "at the next stop {a} people got off"),),
    endings=(),
    shown="the bus had {equation} people",
    asks=(
        "How many people were on the bus in the end?",
        "How many people were on the bus after that?",
    ),
)
SAVINGS = CountStory(
    openings=(Happening("", "{name} had {a} {things}"), Happening("", "{name} saved {a} {things}")),
    gains=(
        Happening("+", "{he} earned {a} more {things}"),
        Happening("+", "{friend} gave {him} {a} more {things}"),
    ),
    losses=(
        Happening("-", "{he} spent {a} {things} on lunch"),
        Happening("-", "{he} spent {a} {things} on toys"),
        Happening("-", "{he} gave {a} {things} to {friend}"),
    ),
    endings=(SHARE,),
    shown=OWNED,
    asks=ASK_OWNED,
    things=("dollars",),
)
COOKIES = CountStory(
    openings=(
        Happening("*", "{name} baked {a} trays of {b} {things}"),
        Happening("", "{name} baked {a} {things}"),
    ),
    gains=(
        Happening("+", "{he} baked {a} more {things}"),
        Happening("+", "{friend} gave {him} {a} more {things}"),
    ),
    losses=(
        Happening("-", "{friend} ate {a} {things}"),
        Happening("-", "{he} sold {a} {things}"),
        Happening("-", "{he} gave {a} {things} to {friend}"),
    ),
    endings=(SHARE, PACK, SELL_ALL),
    shown=OWNED,
    asks=ASK_OWNED,
    things=("cookies",),
)
HENS = CountStory(
    openings=(
        Happening("*", "{name} had {a} hens and each hen laid {b} {things}"),
        Happening("*", "on the farm each of {a} hens laid {b} {things} for {name}"),
    ),
    gains=(
        Happening("+", "{he} found {a} more {things}"),
        Happening("+", "the hens laid {a} more {things}"),
    ),
    losses=(
        Happening("-", "{he} used {a} {things} for a cake"),
        Happening("-", "{he} sold {a} {things}"),
    ),
    endings=(PACK,),
    shown=OWNED,
    asks=ASK_OWNED,
    things=("eggs",),
)
READING = CountStory(
    openings=(
        Happening("", "{name} had a book with {a} pages"),
        Happening("", "{name} got a book with {a} pages"),
    ),
    gains=(),
    losses=(Happening("-", "on {day} {he} read {a} pages"),),
    endings=(
        Happening(
            "/",
            "{he} read the rest with {a} pages each day",
            "the rest took {equation} days",
            ("How many days did the rest take?",),
        ),
    ),
    shown="{equation} pages were left",
    asks=("How many pages were left in the end?", "How many pages were left after that?"),
)
SCHOOL_CLASS = CountStory(
    openings=(
        Happening("+", "a class had {a} girls and {b} boys"),
        Happening("+", "there were {a} girls and {b} boys in a class"),
    ),
    gains=(
        Happening("+", "later {a} more girls joined the class"),
        Happening("+", "later {a} more boys joined the class"),
    ),
    losses=(Happening("-", "later {a} children left the class"),),
    endings=(
        Happening(
            "/",
            "all the children made groups of {a}",
            "they made {equation} groups",
            ("How many groups did they make?",),
        ),
    ),
    shown="the class had {equation} children",
    asks=(
        "How many children did the class have in the end?",
        "How many children did the class have after that?",
    ),
)
GARDEN = CountStory(
    openings=(
        Happening("*", "{name} planted {a} rows of {b} {things}"),
        Happening("*", "in the garden {name} planted {a} rows with {b} {things} in each row"),
    ),
    gains=(Happening("+", "{he} planted {a} more {things}"),),
    losses=(
        Happening("-", "in the night {a} {things} died"),
        Happening("-", "{he} gave {a} {things} to {friend}"),
    ),
    endings=(SHARE,),
    shown=OWNED,
    asks=ASK_OWNED,
    things=("flowers",),
)
LIBRARY = CountStory(
    openings=(
        Happening("*", "a library had {a} shelves with {b} books on each shelf"),
        Happening("*", "there were {a} shelves with {b} books on each shelf in a library"),
    ),
    gains=(
        Happening("+", "the library bought {a} more books"),
        Happening("+", "{name} gave {a} more books to the library"),
    ),
    losses=(Happening("-", "people took {a} books"), Happening("-", "the library sold {a} books")),
    endings=(),
    shown="the library had {equation} books",
    asks=(
        "How many books did the library have in the end?",
        "How many books did the library have after that?",
    ),
)
STORIES = (COLLECTION, BOXES, BUS, SAVINGS, COOKIES, HENS, READING, SCHOOL_CLASS, GARDEN, LIBRARY)
