"""The suite `constraint`: what a constraint adds to a step, beside the step itself.

The vocabulary has the size of the shape's, and made-up spellings: words with and without a space
before them, numbers, and every byte. The pattern is words in brackets, as long as the automaton has
states. A step is one layer of the shape, scaled to its depth, and the head.
"""

import string
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import llada_jax as lj
from experiments.harness.results import ResultRow
from experiments.harness.timers import best_of, best_times
from llada_jax.config import ModelConfig, SamplerConfig
from llada_jax.constraint.automaton import Automaton
from llada_jax.constraint.batch import Texts, grammar_of, placed_texts
from llada_jax.constraint.canvas import Grammar, Placed
from llada_jax.constraint.compiled import automaton_of, read_automaton, write_automaton
from llada_jax.constraint.patterns import Constraint
from llada_jax.model.forward import cache_for, forward_rows
from llada_jax.model.head import score_rows
from llada_jax.model.measures import measure_rows
from llada_jax.model.params import init_params
from llada_jax.model.score_rules import ScoreRules
from llada_jax.rows import make_rows
from llada_jax.sampler.canvas import new_canvas
from llada_jax.sampler.constrained import class_scores, constrained
from llada_jax.sampler.record import spread
from llada_jax.types import Asked, HeadOut, RowsOut

PROMPT, ROWS, GEN_LENGTH = 64, 32, 128
"""Rows of a forward are a block; behind it the canvas goes on to its end."""
EOS, MASK = 0, 1
SPECIAL = 2  # ids that spell nothing


def time_constraints(
    shape: ModelConfig, repeats: int, seed: int, states: Sequence[int] = (10, 100, 1000)
) -> Iterator[ResultRow]:
    """Yields all rows of the suite."""
    special = {"mask_id": MASK, "eos_id": EOS, "eot_id": None, "pad_id": EOS, "stop_ids": ()}
    one = shape.replace(n_layers=1, tied_embeddings=True, **special)
    params = init_params(one, jax.random.key(seed), jnp.bfloat16)
    model = lj.Model(one, params, None)
    layer = _forward_of(model)
    hidden = layer().hidden
    score = jax.jit(partial(score_rows, rules=ScoreRules()))
    plain = best_times({"layer": layer, "head": partial(score, params, hidden, None)}, repeats)
    step = plain["layer"] * shape.n_layers + plain["head"]
    yield ResultRow("constraint/step", step * 1e3, "ms")
    spelled = spellings(one.vocab_size, seed)
    for count in states:
        name, pattern = f"constraint/{count}", rf"\[[a-zA-Z ]{{0,{count - 5}}}\]"
        make = partial(automaton_of, pattern, spelled, (EOS,), one.vocab_size)
        automaton, seconds = best_of(make)
        yield ResultRow(f"{name}/states", len(automaton.transitions), "states")
        yield ResultRow(f"{name}/classes", automaton.transitions.shape[1], "classes")
        yield ResultRow(f"{name}/build", seconds, "s")
        yield ResultRow(f"{name}/load", _load_seconds(automaton), "s")
        yield from _of_a_step(name, model, automaton, hidden, score, step, repeats)


def _forward_of(model: lj.Model) -> Callable[[], RowsOut]:
    """Returns a forward of the rows behind the prompt, all of which see the whole canvas."""
    positions, length = (
        jnp.arange(PROMPT, PROMPT + ROWS, dtype=jnp.int32)[None],
        PROMPT + GEN_LENGTH,
    )
    every, cached = jnp.ones_like(positions, bool), jnp.ones((1, length), bool)
    rows = make_rows(jnp.ones_like(positions), positions, every, cached)
    cache = cache_for(model.params, model.config, 1, length)
    return partial(jax.jit(forward_rows, static_argnums=1), model.params, model.config, rows, cache)


def spellings(vocab: int, seed: int) -> dict[int, bytes]:
    """Returns bytes for every id but the special ones."""
    random, found = np.random.default_rng(seed), [bytes([byte]) for byte in range(256)]
    found += [str(number).encode() for number in range(10, 1000)]
    letters = np.frombuffer(string.ascii_letters.encode(), np.uint8)
    while len(found) < vocab:
        word = random.choice(letters, random.integers(2, 11)).tobytes()
        found.append(b" " * int(random.integers(2)) + word)
    return dict(enumerate(found[: vocab - SPECIAL], SPECIAL))


def _load_seconds(automaton: Automaton) -> float:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "automaton.npz"
        write_automaton(path, automaton)
        return best_of(partial(read_automaton, path), 3)[1]


def _of_a_step(
    name: str,
    model: lj.Model,
    automaton: Automaton,
    hidden: Any,
    score: Any,
    step: float,
    repeats: int,
) -> Iterator[ResultRow]:
    """Yields what the head and the automaton add to the step."""
    texts = Texts((Constraint(name),), (automaton,))
    sampler = SamplerConfig(gen_length=GEN_LENGTH, block_length=ROWS)
    prompt = np.full(PROMPT, SPECIAL, np.int32)
    placed = placed_texts(texts, [prompt], MASK, GEN_LENGTH, infill=False)
    grammar = jax.tree.map(jnp.asarray, grammar_of(texts, (EOS,)))
    cache, length = cache_for(model.params, model.config, 1, 0), PROMPT + GEN_LENGTH
    sampler = sampler.replace(mask_id=MASK)
    keys = jax.random.split(jax.random.key(0), 1)
    canvas = new_canvas([prompt], sampler, model.config, keys, cache, length, infill=False)
    canvas = canvas._replace(text=Placed(*map(jnp.asarray, placed)))
    asked = Asked(n_classes=grammar.n_classes, class_of=grammar.class_of)
    measure = jax.jit(partial(measure_rows, rules=ScoreRules()))
    measured = partial(measure, model.params, hidden, None, asked)

    @jax.jit
    def automaton_step(grammar: Grammar, canvas: Any, head: HeadOut) -> Any:
        at = PROMPT + jnp.arange(ROWS, dtype=jnp.int32)[None]
        classes = class_scores(at, head, length)
        return constrained(grammar, canvas, spread(at, head.scores, length), classes)[0]

    work = partial(automaton_step, grammar, canvas, measured())
    _, first = best_of(work)
    yield ResultRow(f"{name}/compile", first, "s")
    calls = {
        "plain": partial(score, model.params, hidden, None),
        "head": lambda: measured().scores,  # classes without ids have no finite logits
        "automaton": work,
    }
    times = best_times(calls, repeats)
    head = max(0.0, times["head"] - times["plain"])
    yield ResultRow(f"{name}/head", head * 1e3, "ms")
    yield ResultRow(f"{name}/automaton", times["automaton"] * 1e3, "ms")
    yield ResultRow(f"{name}/share", (head + times["automaton"]) / step, "of a step")
