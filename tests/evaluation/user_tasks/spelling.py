"""A user-defined task: words of four letters, backwards."""

from random import Random

from llada_jax.evaluation.task import Item, OwnsKey, Task


def draw(rng: Random, difficulty: int, owns: OwnsKey) -> Item | None:
    word = "".join(rng.choices("abcde", k=difficulty))
    if not owns(word):  # the task may not choose the split of a word
        return None
    backwards = word[::-1]
    return Item(f"Spell {word} backwards.", f"#### {backwards}", backwards)


TASK = Task(
    name="spelling",
    about="a word, backwards",
    draw=draw,
    difficulties={4: "four letters", 8: "eight letters"},
    default_difficulty=4,
    gen_length=32,
)
