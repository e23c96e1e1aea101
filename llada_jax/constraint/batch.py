"""Prepares the constraints of a batch for decoding.

`grammar_of` merges the automata of the patterns (`compiled.compile_constraints`) into one `Grammar`
of arrays that compiled programs take as an argument, and `locate_texts` finds the span of each
row's text on its canvas and checks that some text fits.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from llada_jax.config import require
from llada_jax.constraint.automaton import DEAD, FAR, Automaton
from llada_jax.constraint.patterns import Constraint
from llada_jax.constraint.reach import Grammar, TextSpans

Constraints = Constraint | Sequence[Constraint]


class CompiledConstraints(NamedTuple):
    """Constraints, one for each row or one for all rows, and the automata of the different ones,
    by `Constraint.texts`."""

    constraints: tuple[Constraint, ...]
    automata: Mapping[Any, Automaton]


def grammar_of(texts: CompiledConstraints, ends: Sequence[int]) -> Grammar:
    """Merges the automata of all patterns into tables over common classes of ids.

    Two ids share a class if they share one in every automaton; all ids that end a text share one.
    Sizes are padded to powers of two, and at least to `_LEAST`, so that patterns of similar size,
    and all small ones, share compiled programs.
    """
    automata = list(texts.automata.values())
    class_of = np.zeros(len(automata[0].class_of), np.int64)
    for automaton in automata:
        keys = class_of * automaton.transitions.shape[1] + automaton.class_of
        _, first, class_of = np.unique(keys, return_index=True, return_inverse=True)
    n_states = _padded(max(len(automaton.transitions) for automaton in automata), "states")
    n_classes, n_used = _padded(len(first), "classes"), len(first)
    transitions = np.full((len(automata), n_states, n_classes), DEAD, np.int32)
    distance = np.full((len(automata), n_states), FAR, np.int32)
    for pattern, automaton in enumerate(automata):
        size = len(automaton.transitions)
        transitions[pattern, :size, :n_used] = automaton.transitions[:, automaton.class_of[first]]
        distance[pattern, :size] = automaton.distance
    end_class = class_of[ends[0]]
    representative, single = np.zeros(n_classes, np.int32), np.zeros(n_classes, bool)
    representative[:n_used], single[:n_used] = first, np.bincount(class_of) == 1
    representative[end_class], single[end_class] = ends[0], True  # any end is as good as another
    sources, targets = _edges(transitions, distance)
    arrays: dict[str, Any] = {
        "class_of": class_of.astype(np.int32),
        "transitions": transitions,
        "distance": distance,
        "sources": sources,
        "targets": targets,
        "start": np.array([automaton.start for automaton in automata], np.int32),
        "representative": representative,
        "single": single,
        "end_class": np.int32(end_class),
    }
    return Grammar(**arrays, confidence=texts.constraints[0].confidence)


_LEAST = {"states": 256, "classes": 64, "edges": 1024}  # little work next to a forward pass


def _padded(count: int, kind: str) -> int:
    return max(_LEAST[kind], 1 << (count - 1).bit_length())


def locate_texts(
    texts: CompiledConstraints,
    canvases: Sequence[Int[np.ndarray, " P"]],
    mask_id: int,
    gen_length: int,
    *,
    infill: bool,
) -> TextSpans:
    """Returns each row's pattern and the span of its text: the `gen_length` positions after the
    prompt, or with `infill` the canvas from the constraint's `begins`.

    Raises ValueError if no text fits a canvas; the message has the number of tokens needed.
    """
    count, n_constraints = len(canvases), len(texts.constraints)
    require(
        n_constraints in (1, count),
        f"{n_constraints} constraints were given; allowed: one, or {count}",
    )
    number = {pattern: index for index, pattern in enumerate(texts.automata)}
    rows = []
    for row, canvas in enumerate(canvases):
        constraint = texts.constraints[row % n_constraints]
        begin = constraint.begins if infill else len(canvas)
        whole = canvas if infill else np.append(canvas, np.full(gen_length, mask_id, np.int32))
        where = f"canvas {row}" if infill else "gen_length"
        _require_room(texts.automata[constraint.texts], whole[begin:], mask_id, where)
        rows.append((number[constraint.texts], begin, len(whole)))
    columns: Any = np.array(rows, np.int32).T
    return TextSpans(*columns)


def _require_room(
    automaton: Automaton, tokens: Int[np.ndarray, " T"], mask_id: int, where: str
) -> None:
    """Raises ValueError unless some text agrees with the tokens, in which masks are free."""
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
    """Marks the states from which some text agrees with all tokens, by going backwards."""
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
    """Returns the pairs of successive live states, for any class, padded to a power of two."""
    pairs, size = [], transitions.shape[1]
    for table, distance in zip(transitions, distances, strict=True):
        (live,) = np.nonzero(distance < FAR)
        codes = np.unique(live[:, None] * size + table[live])
        both = np.stack([codes // size, codes % size])
        pairs.append(both[:, distance[both[1]] < FAR])
    size = _padded(max(edges.shape[1] for edges in pairs), "edges")
    padded = np.full((2, len(pairs), size), DEAD, np.int32)
    for pattern, edges in enumerate(pairs):
        padded[:, pattern, : edges.shape[1]] = edges
    return padded[0], padded[1]
