"""A fork of a process that uses JAX is refused, since it would hang; its tokenizer works."""

import subprocess
import sys
from multiprocessing import get_context

import pytest

import llada_jax as lj

pytestmark = pytest.mark.filterwarnings("ignore:.*fork")
LIMIT = 60
"""Seconds after which a process counts as hung."""
CONFIG = lj.SamplerConfig(gen_length=8, block_length=4, steps=4)
CHATS = [[{"role": "user", "content": f"<|eot_id|> {n}"}] for n in range(20)]
ENTRIES = {
    "load": lambda: lj.load("tiny"),
    "forward": lambda: lj.forward(MODELS[0], [[1, 2]]),
    "generate": lambda: lj.generate(MODELS[0], [[1, 2]], CONFIG),
    "generate_stream": lambda: lj.generate_stream(MODELS[0], [[1, 2]], CONFIG),
    "infill": lambda: lj.infill(MODELS[0], [[1, 3]], CONFIG),
    "evaluate": lambda: lj.evaluate(MODELS[0], "yes_no", items=1, progress=False),
}
MODELS: list[lj.Model] = []
"""Objects that forks inherit from their parent."""


@pytest.fixture(scope="module", autouse=True)
def model():
    MODELS.append(lj.load("tiny"))
    yield MODELS[0]
    MODELS.clear()


def call(name):
    ENTRIES[name]()


def tokens(chat):
    assert MODELS[0].tokenizer is not None
    return MODELS[0].tokenizer.encode_chat(chat)


def test_forks_may_not_use_jax():
    with get_context("fork").Pool(1) as pool:
        for name in ENTRIES:
            message = r"process \d+ was forked from process \d+, .* by spawn or forkserver"
            with pytest.raises(ValueError, match=message):
                pool.apply_async(call, [name]).get(LIMIT)


def test_forks_may_use_the_tokenizer():
    with get_context("fork").Pool(2) as pool:
        assert pool.map_async(tokens, CHATS).get(LIMIT) == [tokens(chat) for chat in CHATS]


def test_a_fork_may_use_jax_if_its_parent_does_not():
    code = (
        "import os, llada_jax as lj\n"
        "lj.describe('tiny')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    lj.forward(lj.load('tiny'), [[1, 2]])\n"
        "else:\n"
        "    assert os.waitpid(child, 0)[1] == 0"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=LIMIT)
