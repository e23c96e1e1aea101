"""The constraints of a batch: their automata as one record, and whether canvases hold a text."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from llada_jax.config import require
from llada_jax.constraint.automaton import DEAD, FAR, Automaton
from llada_jax.constraint.compiled import compiled
from llada_jax.constraint.patterns import Constraint
from llada_jax.constraint.reach import Grammar, Placed
from llada_jax.text import Tokenizer

Constraints = Constraint | Sequence[Constraint]


class Texts(NamedTuple):
    """Constraints, one for each row or one for all, and the automata of their different patterns,
    by `Constraint.texts`."""

    constraints: tuple[Constraint, ...]
    automata: Mapping[Any, Automaton]


def texts_of(
    constraints: Constraints, tokenizer: Tokenizer | None, ends: Sequence[int], vocab_size: int
) -> Texts:
    """Returns constraints with their automata.

    Raises ValueError for other values, constraints that measure confidence in two ways, a model
    without tokenizer or end, and patterns that no text or automaton can be made of.
    """
    given = (constraints,) if isinstance(constraints, Constraint) else constraints
    listed = isinstance(given, Sequence) and len(given) > 0
    require(
        listed and all(isinstance(each, Constraint) for each in given),
        f"constraint is {constraints!r}; allowed: lj.regex(...), lj.json_schema(...), "
        "lj.choice(...), or a list of them, one for each prompt",
    )
    measures = sorted({each.confidence for each in given})
    require(len(measures) == 1, f"the batch has confidences {measures}; allowed: one of them")
    if tokenizer is None:
        raise ValueError("the model has no tokenizer; allowed: a constraint with one")
    require(
        len(ends) > 0, "neither the model nor the sampler names an EOS; allowed: one, as eos_id"
    )
    different = {each.texts: each for each in given}
    made = {key: compiled(each, tokenizer, ends, vocab_size) for key, each in different.items()}
    return Texts(tuple(given), made)


def grammar_of(texts: Texts, ends: Sequence[int]) -> Grammar:
    """Returns the patterns of constraints over one class for each id.

    Ids are of one class where they are of one in every automaton; those that end a text are. Sizes
    are padded to powers of two, so that patterns of similar size share programs.
    """
    automata = list(texts.automata.values())
    together = np.zeros(len(automata[0].class_of), np.int64)
    for each in automata:
        keys = together * each.transitions.shape[1] + each.class_of
        _, first, together = np.unique(keys, return_index=True, return_inverse=True)
    n_states = _padded(max(len(each.transitions) for each in automata))
    n_classes, known = _padded(len(first)), len(first)
    transitions = np.full((len(automata), n_states, n_classes), DEAD, np.int32)
    distance = np.full((len(automata), n_states), FAR, np.int32)
    for pattern, each in enumerate(automata):
        size = len(each.transitions)
        transitions[pattern, :size, :known] = each.transitions[:, each.class_of[first]]
        distance[pattern, :size] = each.distance
    end_class = together[ends[0]]
    representative, single = np.zeros(n_classes, np.int32), np.zeros(n_classes, bool)
    representative[:known], single[:known] = first, np.bincount(together) == 1
    representative[end_class], single[end_class] = ends[0], True  # ends are all the same
    sources, targets = _edges(transitions, distance)
    arrays: dict[str, Any] = {
        "class_of": together.astype(np.int32),
        "transitions": transitions,
        "distance": distance,
        "sources": sources,
        "targets": targets,
        "start": np.array([each.start for each in automata], np.int32),
        "representative": representative,
        "single": single,
        "end_class": np.int32(end_class),
    }
    return Grammar(**arrays, confidence=texts.constraints[0].confidence)


def _padded(count: int) -> int:
    return max(16, 1 << (count - 1).bit_length())


def placed_texts(
    texts: Texts,
    canvases: Sequence[Int[np.ndarray, " P"]],
    mask_id: int,
    gen_length: int,
    *,
    infill: bool,
) -> Placed:
    """Returns which pattern each canvas has, and where its text lies: canvases are prompts, behind
    which `gen_length` positions follow, or with `infill` whole ones.

    Raises ValueError for a canvas that no text fits, with the tokens that one needs.
    """
    count, given = len(canvases), len(texts.constraints)
    require(given in (1, count), f"{given} constraints were given; allowed: one, or {count}")
    number = {pattern: place for place, pattern in enumerate(texts.automata)}
    rows = []
    for row, canvas in enumerate(canvases):
        constraint = texts.constraints[row % given]
        begin = constraint.begins if infill else len(canvas)
        whole = canvas if infill else np.append(canvas, np.full(gen_length, mask_id, np.int32))
        where = f"canvas {row}" if infill else "gen_length"
        _require_room(texts.automata[constraint.texts], whole[begin:], mask_id, where)
        rows.append((number[constraint.texts], begin, len(whole)))
    found: Any = np.array(rows, np.int32).T
    return Placed(*found)


def _require_room(
    automaton: Automaton, tokens: Int[np.ndarray, " T"], mask_id: int, where: str
) -> None:
    """Raises ValueError unless a text agrees with tokens, of which masks are free."""
    shortest = automaton.shortest
    require(
        shortest <= len(tokens),
        f"the constraint's shortest text has {shortest} tokens and {where} leaves {len(tokens)}; "
        f"allowed: {shortest} or more",
    )
    require(
        bool(_finishing(automaton, tokens, mask_id)[automaton.start]),
        f"{where} has tokens with which no text of the constraint agrees; allowed: a text with "
        f"holes, whose shortest has {shortest} tokens, from position `begins` to the end",
    )


def _finishing(
    automaton: Automaton, tokens: Int[np.ndarray, " T"], mask_id: int
) -> Bool[np.ndarray, " S"]:
    """Returns the states from which a text agrees with all the tokens."""
    table, masked = automaton.transitions, tokens == mask_id
    (fixed,) = np.nonzero(~masked)
    last = int(fixed[-1]) + 1 if len(fixed) else 0
    finishing = automaton.distance <= len(tokens) - last
    for position in reversed(range(last)):
        chosen = slice(None) if masked[position] else [automaton.class_of[tokens[position]]]
        finishing = finishing[table[:, chosen]].any(axis=1)
    return finishing


def _edges(
    transitions: Int[np.ndarray, "P S G"], distances: Int[np.ndarray, "P S"]
) -> tuple[Int[np.ndarray, "P E"], Int[np.ndarray, "P E"]]:
    """Returns which states follow each other by any class, padded to a power of two."""
    pairs, size = [], transitions.shape[1]
    for table, distance in zip(transitions, distances, strict=True):
        (live,) = np.nonzero(distance < FAR)
        codes = np.unique(live[:, None] * size + table[live])
        both = np.stack([codes // size, codes % size])
        pairs.append(both[:, distance[both[1]] < FAR])
    most = _padded(max(each.shape[1] for each in pairs))
    padded = np.full((2, len(pairs), most), DEAD, np.int32)
    for pattern, each in enumerate(pairs):
        padded[:, pattern, : each.shape[1]] = each
    return padded[0], padded[1]
