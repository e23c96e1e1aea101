"""The suite `schemas`: the time to compile JSON schemas as people write them.

Each schema of `schemas.yaml` is compiled for the first 50,000 tokens of the tokenizer of `model`:
from the schema to the automaton over tokens, as before the first request with it. Times are of the
processor, which other programs disturb less. The tests check the same schemas.
"""

import time
from collections.abc import Iterator
from pathlib import Path

from experiments.harness.results import ResultRow
from llada_jax.checkpoint import model_path, read_tokenizer
from llada_jax.config import require
from llada_jax.config_files import read_yaml
from llada_jax.constraint.compiled import node_automaton
from llada_jax.constraint.patterns import json_schema
from llada_jax.constraint.spelling import spelled_tokens

VOCABULARY = 50_000
SCHEMAS = dict(read_yaml(Path(__file__).with_name("schemas.yaml")))


def time_schemas(model: str, repeats: int) -> Iterator[ResultRow]:
    """Yields the rows of the suite."""
    tokenizer = read_tokenizer(model_path(model, weights=False))
    require(tokenizer is not None, f"{model} has no tokenizer; allowed: a model with one")
    assert tokenizer is not None
    spelled = {i: text for i, text in spelled_tokens(tokenizer).items() if i < VOCABULARY}
    end = max(spelled) + 1
    for name, schema in SCHEMAS.items():
        seconds = []
        for _ in range(repeats):
            began = time.process_time()
            node = json_schema(schema).node
            assert node is not None
            automaton = node_automaton(node, spelled, [end], end + 1, tokenizer)
            seconds.append(time.process_time() - began)
        yield ResultRow(f"schemas/{name}/states", automaton.transitions.shape[0], "states")
        yield ResultRow(f"schemas/{name}/classes", automaton.transitions.shape[1], "classes")
        yield ResultRow(f"schemas/{name}/seconds", min(seconds), "s")
