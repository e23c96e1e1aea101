"""A child process answers on a separate stream and imports none of our packages."""

import json
import subprocess
import sys

import pytest

from experiments.harness.run import REPOSITORY

CHILD = """
import time
from experiments.bench.rivals.answers import LayerClock, answer_lines
clock = LayerClock()
def work(number):
    print("what a library prints")
    clock.start()
    time.sleep(0.01 * number)
    clock.stop()
    time.sleep(0.01)
answer_lines("ready", clock, {"work": work})
"""
FOREIGN = {
    "answers": "",
    "llama_cpp_forward": "No module named 'llama_cpp'",
    "torch_forward": "No module named 'torch'",
    "onnx_forward": "No module named 'onnx'",
    "torch_gpu": "No module named 'torch'",
    "torch_training": "No module named 'torch'",
}


def run(code: str, lines: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, input=lines, capture_output=True, text=True, cwd=REPOSITORY)


def test_each_line_has_an_answer():
    done = run(CHILD, '["work", 2]\n["work", 1]\n')
    about, *answers = map(json.loads, done.stdout.splitlines())
    assert about == "ready" and done.stderr.count("what a library prints") == 2
    for number, (seconds, layers) in zip((2, 1), answers, strict=True):
        assert 0.01 * number <= layers < seconds


@pytest.mark.parametrize("module", FOREIGN)
def test_a_rival_needs_none_of_our_packages(module):
    forbidden = "import sys; sys.modules.update(jax=None, llada_jax=None);"
    done = run(f"{forbidden} import experiments.bench.rivals.{module}")
    assert done.returncode == 0 or FOREIGN[module] in done.stderr.splitlines()[-1]
