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
    """Cases by family, sampler and window: those that share compiled programs."""
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


def first_of_each_kind(cases):
    """A case of every combination of settings that it names."""
    return list({tuple(case["setting"]): case for case in reversed(cases)}.values())


def of_one_program(cases):
    """All cases that differ in a threshold and a prompt alone, from those with the widest batch."""
    chosen = max(cases, key=lambda case: ("threshold" in case["setting"], len(case["prompt"])))
    names = [name for name in chosen["setting"] if name != "threshold"]
    return [
        case
        for case in cases
        if tuple(case["setting"]) == tuple(chosen["setting"])
        and all(case["setting"][name] == chosen["setting"][name] for name in names)
        and len(case["prompt"]) == len(chosen["prompt"])
    ]


def quick_cases(family, cases, loop):
    """Every kind where the host decodes one family; thresholds where the compiled loop does; of
    the other family, whose heads alone differ, the original sampler and one of Fast-dLLM's."""
    if family == FAMILIES[0]:
        quick = of_one_program(cases)
        return quick if loop == "compiled" else [*quick, *first_of_each_kind(cases)]
    chosen = loop == "host" and group_name(cases[0]) in ("llada", "fast-dual")
    return of_one_program(cases) if chosen else []


def parity_cases():
    """All of everything where there is time: that compiles hundreds of programs."""
    for group in golden_groups():
        family, cases = group.values
        for loop in ("host", "compiled"):
            if quick := quick_cases(family, cases, loop):
                yield pytest.param(family, quick, loop, id=f"{group.id}-{loop}")
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
    """Fast-dLLM's cached modes run, and count, one more forward where the first of a block has
    already completed it; nothing is left to decide in it. We count useful forwards only."""
    if config.cache == "none":
        return []
    blocks = [list(group) for _, group in groupby(trace.block[:, 0])]
    done = np.cumsum([len(block) for block in blocks])
    return [
        end + before
        for before, end in enumerate(
            end for end, block in zip(done, blocks, strict=True) if len(block) == 1
        )
    ]
