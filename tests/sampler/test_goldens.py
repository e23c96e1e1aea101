"""Token parity with the PyTorch samplers: original LLaDA and Fast-dLLM v1 (June 2025)."""

import json
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

import llada_jax as lj

GOLDENS = Path(__file__).parents[1] / "goldens"
FAMILIES = ("llada-mha", "llada-gqa")


def group_name(case):
    setting = case["setting"]
    return f"fast-{setting['cache']}" if "alg" in setting else "llada"


def golden_groups():
    """Cases by family, sampler and window; the cases of a group share compiled programs."""
    for family in FAMILIES:
        cases = json.loads((GOLDENS / family / "generate.json").read_text())
        for name, group in groupby(sorted(cases, key=group_name), key=group_name):
            yield pytest.param(family, list(group), id=f"{family}-{name}")


def sampler_of(setting):
    setting = dict(setting)
    if setting.pop("alg", "llada") == "llada":
        return lj.SamplerConfig.preset("llada", **setting)
    return lj.SamplerConfig.preset("fast_dllm", **{"threshold": None, **setting})


def test_every_case_is_here():
    counts = [len(p.values[1]) for p in golden_groups()]
    assert sum(counts) == 124 and len(counts) == 8


QUICK = {
    (FAMILIES[0], "host"): ("fast-dual",),
    (FAMILIES[0], "compiled"): ("llada",),
}
"""Groups that quick tests decode in part: cases that share a program, with all thresholds."""


def of_one_program(cases, loop):
    """Returns the cases like the most special one (like the plainest one for the compiled loop),
    with all thresholds and prompts."""

    def shape(case):
        others = {k: v for k, v in case["setting"].items() if k != "threshold"}
        return tuple(case["setting"]), others, len(case["prompt"])

    pick = max if loop == "host" else min
    chosen = shape(pick(cases, key=lambda case: (len(case["setting"]), len(case["prompt"]))))
    return [case for case in cases if shape(case) == chosen]


def parity_cases():
    """Decodes all cases in slow runs, which compiles hundreds of programs."""
    for group in golden_groups():
        family, cases = group.values
        for loop in ("host", "compiled"):
            if any(group.id == f"{family}-{name}" for name in QUICK.get((family, loop), ())):
                yield pytest.param(
                    family, of_one_program(cases, loop), loop, id=f"{group.id}-{loop}"
                )
            yield pytest.param(
                family, cases, loop, id=f"{group.id}-{loop}-all", marks=pytest.mark.slow
            )


@pytest.mark.parametrize(("family", "cases", "loop"), list(parity_cases()))
def test_parity(family, cases, loop):
    model = lj.load(GOLDENS / family)
    for case in cases:
        assert_case(model, case, loop)


def assert_case(model, case, loop):
    config = sampler_of(case["setting"])
    result = lj.generate(model, case["prompt"], config, loop=loop, trace=True)
    trace = result.trace
    np.testing.assert_array_equal(result.tokens, case["tokens"], err_msg=str(case["setting"]))
    if "commit_step" in case:
        prompt_length = len(case["prompt"][0])
        np.testing.assert_array_equal(trace.commit_steps()[:, prompt_length:], case["commit_step"])
    wasted = wasted_forwards(trace, config)
    assert case["nfe"] == result.nfe.max() + len(wasted)
    query_lengths = np.delete(case["query_lengths"], wasted)
    np.testing.assert_array_equal(trace.live_rows.max(axis=1), query_lengths)


def wasted_forwards(trace, config):
    """Fast-dLLM's cached modes run and count one more forward if the first forward of a block has
    already completed it. We only count forwards that decide something."""
    if config.window.cache == "none":
        return []
    blocks = [list(group) for _, group in groupby(trace.block[:, 0])]
    done = np.cumsum([len(block) for block in blocks])
    return [
        end + before
        for before, end in enumerate(
            end for end, block in zip(done, blocks, strict=True) if len(block) == 1
        )
    ]
