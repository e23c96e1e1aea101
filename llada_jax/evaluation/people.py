"""Names of the people in generated texts."""

GIRLS: tuple[str, ...] = ("Anna", "Emma", "Lily", "Mia", "Zoe")
BOYS: tuple[str, ...] = ("Ben", "Jack", "Leo", "Max", "Sam", "Tom")
PEOPLE = GIRLS + BOYS


def pronoun(name: str) -> str:
    """ "she" or "he"."""
    return "she" if name in GIRLS else "he"
