"""Token parity with the published decoders of the families' authors."""

import json
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

import llada_jax as lj

GOLDENS = Path(__file__).parents[1] / "goldens"


def sdar(setting):
    blocks = setting["gen_length"] // setting["block_length"]
    preset, flat = {
        "low_confidence_dynamic": ("sdar", {"threshold": setting["confidence_threshold"]}),
        "low_confidence_static": ("sdar_static", {}),
        "sequential": ("sdar_sequential", {}),
        "entropy_bounded": ("sdar_entropy", {"entropy_bound": setting.get("eb_threshold")}),
    }[setting["remasking_strategy"]]
    return lj.SamplerConfig.preset(
        preset,
        gen_length=setting["gen_length"],
        steps=blocks * setting["denoising_steps"],
        eos_early_stop=setting["stopping_criteria_idx"] is not None,
        **flat,
    )


def fast_dllm_v2(setting):
    return lj.SamplerConfig.preset(
        "fast_dllm_v2",
        gen_length=setting["max_new_tokens"],
        block_length=setting["small_block_size"],
        threshold=float(setting["threshold"]),
        mask_id=setting["mask_id"],
    )


def stable_diffcoder(setting):
    names = ("steps", "gen_length", "block_length", "threshold")
    return lj.SamplerConfig.preset(
        "stable_diffcoder",
        **{name: setting[name] for name in names},
        eos_early_stop=setting["eos_id"] is not None,
    )


def mdlm(setting):
    return lj.SamplerConfig.preset(
        {"mdlm": "llada", "bd3lm": "bd3lm"}[setting["sampler"]],
        gen_length=setting["max_new_tokens"],
        block_length=setting["block_size"],
        steps=setting["steps"],
        mask_id=setting["mask_id"],
    )


def llada(setting):
    return lj.SamplerConfig.preset("llada", **setting)


def dream(setting):
    orders = {"entropy": "entropy", "maskgit_plus": "low_confidence", "topk_margin": "margin"}
    order = orders.get(setting["alg"])
    return lj.SamplerConfig.preset(
        "dream" if order else "p2",
        gen_length=setting["max_new_tokens"],
        block_length=setting["max_new_tokens"],
        steps=setting["steps"],
        remasking=order or "low_confidence",
    )


def rnd1(setting):
    return lj.SamplerConfig.preset(
        "rnd1",
        gen_length=setting["gen_length"],
        block_length=setting["gen_length"],
        steps=setting["num_steps"],
    )


def llada2(setting):
    shared = {"gen_length": setting["gen_length"], "block_length": setting["block_length"]}
    if setting["sampler"] == "llada21":
        return lj.SamplerConfig.preset(
            "token_edit",
            edit_unmask=setting["threshold"],
            edit_replace=setting["editing_threshold"],
            edit_steps=setting["max_post_steps"],
            mask_id=setting["mask_id"],
            **shared,
        )
    blocks = setting["gen_length"] // setting["block_length"]
    return lj.SamplerConfig.preset(
        "llada2",
        steps=blocks * setting["steps"],
        threshold=setting["threshold"],
        mask_id=setting["mask_id"],
        **shared,
    )


def low_confidence(setting):
    names = ("gen_length", "block_length", "threshold")
    return lj.SamplerConfig.preset(
        "sdar",
        **{name: setting[name] for name in names},
        forced_progress="top1",
        eos_early_stop=setting["eos_id"] is not None,
    )


def nemotron(setting):
    modes = {"ar": "autoregressive", "diffusion": "nemotron", "speculation": "self_speculation"}
    return lj.SamplerConfig.preset(
        modes[setting["mode"]],
        eos_early_stop=setting["eos_id"] is not None,
        **{name: setting[name] for name in ("gen_length", "block_length", "threshold")
           if name in setting},
    )  # fmt: skip


def wedlm(setting):
    if setting["decoder"] == "blocks":
        return lj.SamplerConfig.preset(
            "blockwise",
            gen_length=setting["max_tokens"],
            block_length=setting["block_size"],
            threshold=setting["confidence"] or 1.0,
            predict_mask=True,
            last_block="cut",
            eos_early_stop=False,
        )
    window = setting["window"]
    return lj.SamplerConfig.preset(
        "wedlm",
        gen_length=setting["max_tokens"] + 16,  # its window reaches beyond the end
        block_length=window,
        max_entropy=setting["entropy"] or 0.0,
        distance_penalty=setting["penalty"],
        eos_early_stop=setting["eos_id"] is not None,
    )


DECODERS = {
    "sdar-b4": sdar,
    "fast-dllm-v2": fast_dllm_v2,
    "stable-diffcoder": stable_diffcoder,
    "a2d-qwen3-mdlm": mdlm,
    "llada-moe-released": llada,
    "nemotron": nemotron,
    "wedlm": wedlm,
    "dream": dream,
    "open-dcoder": dream,
    "rnd1": rnd1,
    "llada2-moe": llada2,
    "sdar-moe-b4": sdar,
    "dream-reasoner": low_confidence,
    "a2d-qwen2-mdlm": mdlm,
}


def shape(case):
    numbers = (
        "threshold", "confidence_threshold", "eb_threshold", "confidence", "entropy", "penalty",
    )  # fmt: skip
    kept = {k: v for k, v in case["setting"].items() if k not in numbers}
    return len(case["prompt"][0]), json.dumps(kept)


SAME_DECODERS = ("sdar-moe-b4", "dream-reasoner", "a2d-qwen3-mdlm", "llada-moe-released", "rnd1")
"""Families with the preset of another one, or of `test_goldens.py`."""


def groups():
    """Cases grouped by shared programs; the quick tests run the largest group of most families."""
    for family in DECODERS:
        cases = json.loads((GOLDENS / family / "generate.json").read_text())
        found = [list(group) for _, group in groupby(sorted(cases, key=shape), key=shape)]
        found.sort(key=len, reverse=True)
        for index, group in enumerate(found):
            marks = [pytest.mark.slow] if index or family in SAME_DECODERS else []
            yield pytest.param(family, group, id=f"{family}-{index}", marks=marks)


def model_of(family, setting):
    """The golden's model with the EOS ids of the setting."""
    model = lj.load(GOLDENS / family, family="open_dcoder" if family == "open-dcoder" else None)
    names = ("block_length", "block_size")
    if setting.get("sampler") in ("bd3lm", "llada2", "llada21", "stable_diffcoder"):
        block = next(setting[name] for name in names if name in setting)
        model = model.replace(config=model.config.replace(block_length=block))
    if "stop_token" in setting:
        model = model.replace(config=model.config.replace(stop_ids=()))
    return model


@pytest.mark.parametrize(("family", "cases"), list(groups()))
def test_tokens_match_the_authors_decoder(family, cases):
    for case in cases:
        setting, prompt = case["setting"], case["prompt"]
        config = DECODERS[family](setting)
        result = lj.generate(model_of(family, setting), prompt, config)
        expected = np.array(case["tokens"][0][len(prompt[0]) :])
        found = result.generated[0]
        if config.eos_early_stop:  # tokens after the end differ
            (ends,) = np.isin(expected, result.ends).nonzero()
            expected = expected[: ends[0] + 1] if len(ends) else expected
        length = min(len(expected), len(found))
        assert length > 0
        np.testing.assert_array_equal(found[:length], expected[:length], err_msg=str(setting))


def test_every_case_is_here():
    counts = {family: 0 for family in DECODERS}
    for group in groups():
        counts[group.values[0]] += len(group.values[1])
    assert list(counts.values()) == [24, 20, 11, 12, 8, 96, 63, 10, 7, 6, 17, 6, 6, 18]
