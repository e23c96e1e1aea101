"""The suite `constraint`: the time that a constraint adds to a decoding step.

The vocabulary has the shape's size and synthetic spellings: words with and without a leading space,
numbers, and every byte. The pattern is words in brackets, with a length that gives the wanted
number of automaton states. The time of a step is one layer, times the number of layers, plus the
head. The layer, both heads and the automaton are timed in alternation; the share is the median of
the rounds.
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
from experiments.bench.hot_paths import forward_of
from experiments.harness.results import ResultRow
from experiments.harness.timers import best_of, times_in_turns
from llada_jax.config import ModelConfig
from llada_jax.constraint.automaton import Automaton
from llada_jax.constraint.batch import CompiledConstraints, grammar_of, locate_texts
from llada_jax.constraint.compiled import node_automaton, read_automaton, write_automaton
from llada_jax.constraint.expression import parse_regex
from llada_jax.constraint.patterns import Constraint
from llada_jax.constraint.reach import TextSpans
from llada_jax.model.forward import cache_for
from llada_jax.model.head import ScoreRules, score_rows
from llada_jax.model.measures import measure_rows
from llada_jax.model.params import init_params
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.constrained import (
    class_scores,
    commit_forced,
    constrain_scores,
    with_classes,
)
from llada_jax.sampler.record import StepScores, spread
from llada_jax.sampler.spec import StepSpec, new_state
from llada_jax.types import HeadOut

PROMPT, ROWS, GEN_LENGTH = 64, 32, 128
"""Lengths of the prompt, of the block that a forward computes, and of the answer."""
EOS, MASK = 0, 1
SPECIAL = 2  # ids that spell nothing


def time_constraints(
    shape: ModelConfig, repeats: int, seed: int, states: Sequence[int] = (10, 100, 1000)
) -> Iterator[ResultRow]:
    """Yields the rows of the suite."""
    special = {"mask_id": MASK, "eos_id": EOS, "eot_id": None, "pad_id": EOS, "stop_ids": ()}
    one = shape.replace(n_layers=1, tied_embeddings=True, **special)
    params = init_params(one, jax.random.key(seed), jnp.bfloat16)
    model = lj.Model(one, params, None)
    positions = np.arange(PROMPT, PROMPT + ROWS)
    layer = forward_of(model, positions, PROMPT + GEN_LENGTH)
    hidden = layer().hidden
    score = jax.jit(partial(score_rows, rules=ScoreRules()))
    plain = {"layer": layer, "plain": partial(score, params, hidden, None)}
    spelled = spellings(one.vocab_size, seed)
    for count in states:
        name, pattern = f"constraint/{count}", rf"\[[a-zA-Z ]{{0,{count - 5}}}\]"
        node = parse_regex(pattern)
        make = partial(node_automaton, node, spelled, (EOS,), one.vocab_size)
        automaton, seconds = best_of(make)
        yield ResultRow(f"{name}/states", len(automaton.transitions), "states")
        yield ResultRow(f"{name}/classes", automaton.transitions.shape[1], "classes")
        yield ResultRow(f"{name}/build", seconds, "s")
        yield ResultRow(f"{name}/load", _load_seconds(automaton), "s")
        calls = plain | _work(model, automaton, hidden)
        _, seconds = best_of(calls["automaton"])
        yield ResultRow(f"{name}/compile", seconds, "s")
        times = {
            name: np.array(seconds) for name, seconds in times_in_turns(calls, repeats).items()
        }
        step = times["layer"] * shape.n_layers + times["plain"]
        head = times["classes"] - times["plain"]
        for what, seconds in {"step": step, "head": head, "automaton": times["automaton"]}.items():
            yield ResultRow(f"{name}/{what}", float(np.median(seconds)) * 1e3, "ms")
        share = np.median((head + times["automaton"]) / step)
        yield ResultRow(f"{name}/share", float(share), "of a step")


def spellings(vocab: int, seed: int) -> dict[int, bytes]:
    """Returns the bytes of every token id except the special ones."""
    random, pieces = np.random.default_rng(seed), [bytes([byte]) for byte in range(256)]
    pieces += [str(number).encode() for number in range(10, 1000)]
    letters = np.frombuffer(string.ascii_letters.encode(), np.uint8)
    while len(pieces) < vocab:
        word = random.choice(letters, random.integers(2, 11)).tobytes()
        pieces.append(b" " * int(random.integers(2)) + word)
    return dict(enumerate(pieces[: vocab - SPECIAL], SPECIAL))


def _load_seconds(automaton: Automaton) -> float:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "automaton.npz"
        write_automaton(path, automaton)
        return best_of(partial(read_automaton, path), 3)[1]


def _work(model: lj.Model, automaton: Automaton, hidden: Any) -> dict[str, Callable[[], Any]]:
    """Returns the candidates: heads with and without token classes, and a step of the automaton."""
    words = Constraint("words")
    texts = CompiledConstraints((words,), {words.texts: automaton})
    sampler = SamplerConfig.from_flat(gen_length=GEN_LENGTH, block_length=ROWS, mask_id=MASK)
    prompt = np.full(PROMPT, SPECIAL, np.int32)
    placed = locate_texts(texts, [prompt], MASK, GEN_LENGTH, infill=False)
    grammar = jax.tree.map(jnp.asarray, grammar_of(texts, (EOS,)))
    cache, length = cache_for(model.params, model.config, 1, 0), PROMPT + GEN_LENGTH
    keys = jax.random.split(jax.random.key(0), 1)
    spec = StepSpec(model.config, sampler, grammar=grammar)
    canvas = new_state(spec, [prompt], keys, cache, length)
    canvas = canvas._replace(constraint=TextSpans(*map(jnp.asarray, placed)))
    request = with_classes(spec, None)
    measure = jax.jit(partial(measure_rows, rules=ScoreRules()))
    measure_classes = partial(measure, model.params, hidden, None, request)

    @jax.jit
    def automaton_step(spec: StepSpec, canvas: Any, head: HeadOut) -> Any:
        at = PROMPT + jnp.arange(ROWS, dtype=jnp.int32)[None]
        classes = class_scores(at, head, length)
        scores = StepScores(
            spread(at, head.scores, length), jnp.zeros((1, length), bool), classes=classes
        )
        return constrain_scores(spec, canvas, scores).here, commit_forced(spec, canvas).tokens

    return {
        "automaton": partial(automaton_step, spec, canvas, measure_classes()),
        "classes": lambda: measure_classes().scores,  # classes without ids have no finite logits
    }
