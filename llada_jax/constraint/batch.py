"""The constraints of a batch: their automata as one record, and whether canvases hold a text."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from llada_jax.config import require
from llada_jax.constraint.automaton import DEAD, FAR, Automaton, Joint, joint
from llada_jax.constraint.canvas import Grammar
from llada_jax.constraint.compiled import compiled
from llada_jax.constraint.patterns import Constraint
from llada_jax.text import Tokenizer

Constraints = Constraint | Sequence[Constraint]


class Texts(NamedTuple):
    """Constraints, one for each row or one for all, and their automata over a model's ids."""

    constraints: tuple[Constraint, ...]
    automata: tuple[Automaton, ...]


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
    require(tokenizer is not None, "the model has no tokenizer; allowed: a constraint with one")
    require(
        len(ends) > 0, "neither the model nor the sampler names an EOS; allowed: one, as eos_id"
    )
    assert tokenizer is not None
    made = {
        each.pattern: compiled(each, tokenizer, ends, vocab_size) for each in dict.fromkeys(given)
    }
    return Texts(tuple(given), tuple(made[each.pattern] for each in given))


def grammar_of(
    texts: Texts,
    canvases: Sequence[Int[np.ndarray, " P"]],
    mask_id: int,
    ends: Sequence[int],
    gen_length: int,
    *,
    infill: bool,
) -> Grammar:
    """Returns the texts of a batch as arrays.

    Args:
      canvases: prompts, behind which `gen_length` positions follow; or with `infill` whole ones.
      ends: ids that end a text.

    Raises ValueError for a canvas that no text fits, with the tokens that one needs.
    """
    count = len(canvases)
    require(
        len(texts.constraints) in (1, count),
        f"{len(texts.constraints)} constraints were given; allowed: one, or {count}",
    )
    own = [texts.constraints[row % len(texts.constraints)] for row in range(count)]
    many = len({each.pattern for each in own}) > 1
    all_ = joint(texts.automata if many else texts.automata[:1])
    begins = [0] * count
    for row, canvas in enumerate(canvases):
        begins[row] = own[row].begins if infill else len(canvas)
        left = canvas[begins[row] :] if infill else np.full(gen_length, mask_id, np.int32)
        _require_room(all_, row * many, left, mask_id, f"canvas {row}" if infill else "gen_length")
    stops = [len(canvas) + (0 if infill else gen_length) for canvas in canvases]
    sources, targets = _edges(all_)
    arrays: dict[str, Any] = {
        "class_of": all_.class_of,
        "transitions": all_.transitions,
        "distance": all_.distance,
        "sources": sources,
        "targets": targets,
        "start": all_.start,
        "representative": all_.representative,
        "end_class": all_.class_of[ends[0]],
        "begin": np.array(begins, np.int32),
        "stop": np.array(stops, np.int32),
    }
    return Grammar(**arrays, confidence=texts.constraints[0].confidence)


def _require_room(
    all_: Joint, pattern: int, tokens: Int[np.ndarray, " T"], mask_id: int, where: str
) -> None:
    """Raises ValueError unless a text agrees with tokens, of which masks are free."""
    shortest = int(all_.distance[pattern, all_.start[pattern]])
    require(
        shortest <= len(tokens),
        f"the constraint's shortest text has {shortest} tokens and {where} leaves {len(tokens)}; "
        f"allowed: {shortest} or more",
    )
    ends = _finishing(all_, pattern, tokens, mask_id)
    require(
        bool(ends[all_.start[pattern]]),
        f"{where} has tokens with which no text of the constraint agrees; allowed: a text with "
        f"holes, whose shortest has {shortest} tokens, from position `begins` to the end",
    )


def _finishing(
    all_: Joint, pattern: int, tokens: Int[np.ndarray, " T"], mask_id: int
) -> Bool[np.ndarray, " S"]:
    """Returns the states from which a text agrees with all the tokens."""
    table, masked = all_.transitions[pattern], tokens == mask_id
    (fixed,) = np.nonzero(~masked)
    last = int(fixed[-1]) + 1 if len(fixed) else 0
    finishing = all_.distance[pattern] <= len(tokens) - last
    for position in reversed(range(last)):
        chosen = slice(None) if masked[position] else [all_.class_of[tokens[position]]]
        finishing = finishing[table[:, chosen]].any(axis=1)
    return finishing


def _edges(all_: Joint) -> tuple[Int[np.ndarray, "P E"], Int[np.ndarray, "P E"]]:
    """Returns which states follow each other by any class, padded to a power of two."""
    pairs, size = [], all_.transitions.shape[1]
    for table, distance in zip(all_.transitions, all_.distance, strict=True):
        (live,) = np.nonzero(distance < FAR)
        codes = np.unique(live[:, None] * size + table[live])
        both = np.stack([codes // size, codes % size])
        pairs.append(both[:, distance[both[1]] < FAR])
    most = max(16, 1 << (max(each.shape[1] for each in pairs) - 1).bit_length())
    padded = np.full((2, len(pairs), most), DEAD, np.int32)
    for pattern, each in enumerate(pairs):
        padded[:, pattern, : each.shape[1]] = each
    return padded[0], padded[1]
