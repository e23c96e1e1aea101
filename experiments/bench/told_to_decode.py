"""Decodes with the `llada_jax` that is on the path, whenever a line on standard input says how.

Suites run it as processes that decode in turns, or at once. It prints milliseconds a forward.
"""

import json
import sys

import llada_jax as lj

PROMPT = [list(range(40, 104))]


def answer_lines(model: str) -> None:
    """Decodes once for each line, which has the settings of a sampler and a loop."""
    loaded = lj.load(model)
    for line in sys.stdin:
        told = json.loads(line)
        loop = told.pop("loop")
        result = lj.generate(loaded, PROMPT, lj.SamplerConfig(**told), loop=loop)
        print(result.seconds * 1e3 / int(result.nfe[0]), flush=True)


if __name__ == "__main__":
    answer_lines(sys.argv[1])
