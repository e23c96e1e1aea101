"""The texts that a canvas may become equal an enumeration."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llada_jax.constraint.batch import CompiledConstraints, grammar_of, locate_texts
from llada_jax.constraint.patterns import Constraint
from llada_jax.constraint.reach import TextSpans, reach
from llada_jax.sampler.constrained import hold_to_text
from llada_jax.sampler.record import ClassScores, StepScores
from llada_jax.sampler.state import MASKED, STABLE, DecodeState
from llada_jax.types import Scores
from tests.constraint.tiny import LENGTH, accepts, drawn, texts

ROWS = 8
MASK = 6


class Case:
    """Decode states of random automata, each with some tokens of one of its texts."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = np.random.default_rng(seed)
        self.automata = [drawn(rng) for _ in range(ROWS)]
        self.texts = [texts(each) for each in self.automata]
        chosen = np.stack([each[rng.integers(len(each))] for each in self.texts])
        self.free = rng.random((ROWS, LENGTH)) < rng.random()
        self.tokens = np.where(self.free, MASK, chosen).astype(np.int32)
        constraints = tuple(Constraint(f"{i}") for i in range(ROWS))
        patterns = (each.texts for each in constraints)
        batch = CompiledConstraints(constraints, dict(zip(patterns, self.automata, strict=True)))
        whole = list(np.full((ROWS, LENGTH), MASK, np.int32))
        self.grammar = grammar_of(batch, (4, 5))
        self.placed = locate_texts(batch, whole, MASK, LENGTH, infill=True)
        shape = (ROWS, LENGTH, self.grammar.n_classes)
        self.values = rng.normal(size=shape).astype(np.float32)

    def agreeing(self, row: int, *, but: int | None = None) -> np.ndarray:
        """Returns the row's texts that agree with all fixed positions except one."""
        fixed = ~self.free[row]
        if but is not None:
            fixed = fixed & (np.arange(LENGTH) != but)
        same = (self.texts[row] == self.tokens[row]) | ~fixed
        return self.texts[row][same.all(axis=1)]


@partial(jax.jit, static_argnames="alternatives")
def reached(grammar, placed, tokens, free, values, alternatives):
    rows = jnp.ones(len(tokens), bool)
    return reach(grammar, placed, tokens, ~free, values, free, rows, alternatives=alternatives)


def check_reach(seed: int) -> None:
    case = Case(seed)
    found = reached(
        case.grammar, case.placed, case.tokens, case.free, case.values, alternatives=True
    )
    kinds = case.grammar.class_of
    for row in range(ROWS):
        agreeing = case.agreeing(row)
        if case.free[row].any():
            worth = case.values[row, np.arange(LENGTH), kinds[agreeing]]
            worth = (worth * case.free[row]).sum(axis=1)
            chosen = np.asarray(found.classes[row])
            best = agreeing[np.argmax(worth)]
            np.testing.assert_array_equal(
                np.where(case.free[row], chosen, 0), np.where(case.free[row], kinds[best], 0)
            )
        lowest, highest = _window(case)
        for position in range(lowest, highest):
            allowed = np.asarray(found.allowed[row, position])[kinds]
            wanted = np.isin(np.arange(7), case.agreeing(row, but=position)[:, position])
            np.testing.assert_array_equal(allowed & (np.arange(7) < 6), wanted)


def _window(case: Case) -> tuple[int, int]:
    """Positions from the first mask on, of any row."""
    return int(np.where(case.free.any(axis=0), np.arange(LENGTH), LENGTH).min()), LENGTH


def check_held(seed: int) -> None:
    case = Case(seed)
    rng, kinds = case.rng, case.grammar.class_of
    others = rng.integers(0, 6, (ROWS, LENGTH))
    others[kinds[others] == kinds[MASK]] = 4
    changed, masked = rng.random((2, ROWS, LENGTH)) < rng.random((2, 1, 1)) * 0.6
    after = np.where(masked, MASK, np.where(changed, others, case.tokens)).astype(np.int32)
    kept = np.asarray(_held(case, after))
    for row in range(ROWS):
        fits = (case.texts[row] == kept[row]) | (kept[row] == MASK)
        assert fits.all(axis=1).any()
        decided = (case.texts[row] == after[row]) | (after[row] == MASK)
        if decided.all(axis=1).any():
            np.testing.assert_array_equal(kept[row], after[row])
        remasked = (after[row] == MASK) & (case.tokens[row] != MASK)
        assert (kept[row][remasked] == MASK).all()


def board(tokens: np.ndarray, placed: TextSpans) -> DecodeState:
    """Returns the text of a canvas that is read when decisions are projected."""
    read = {
        "tokens": tokens,
        "status": np.where(tokens == MASK, MASKED, STABLE),
        "confidence": np.zeros(tokens.shape, np.float32),
        "filled": np.zeros(tokens.shape, bool),
        "end": np.full(ROWS, LENGTH),
        "done": np.zeros(ROWS, bool),
        "constraint": placed,
    }
    return DecodeState(**{**dict.fromkeys(DecodeState._fields), **read})


@jax.jit
def held_tokens(grammar, before, after, classes, scored):
    spec: Any = SimpleNamespace(grammar=grammar)  # all that is read of it
    here = Scores(jnp.where(scored, 0, -1), *[scored] * 3)
    return hold_to_text(spec, before, after, StepScores(here, scored, classes=classes)).tokens


def _held(case: Case, after: np.ndarray) -> np.ndarray:
    ids = np.broadcast_to(case.grammar.representative, case.values.shape)
    none = np.zeros((ROWS, LENGTH), np.float32)
    classes = ClassScores(ids, case.values, case.values, None, none)
    return held_tokens(
        case.grammar, board(case.tokens, case.placed), board(after, case.placed), classes, case.free
    )


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_allowed_classes_and_the_best_text_match_enumeration(seed):
    check_reach(seed)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30)
def test_decisions_are_projected_onto_a_text(seed):
    check_held(seed)


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1))
@settings(max_examples=1250)
def test_ten_thousand_canvases(seed):
    check_reach(seed)
    check_held(seed)


def test_enumerated_texts_are_accepted():
    automaton = drawn(np.random.default_rng(0))
    assert all(accepts(automaton, each) for each in texts(automaton))
