"""The sampler on real models of every family, and windows against full forwards."""

from pathlib import Path

import numpy as np
import pytest

import llada_jax as lj
from tests.sampler.in_order import in_order

GOLDENS = Path(__file__).parents[1] / "goldens"
FAMILIES = ("llada-gqa", "llada-moe", "llada2-moe", "dream")
PROMPTS = [[5, 6, 7, 8, 9], [10, 11, 12]]
CONFIG = lj.SamplerConfig.from_flat(
    gen_length=16, block_length=8, steps=16, mask_id=319, eos_id=318, eot_id=317
)
LONGEST = 32
"""The length of every canvas that is run in full, so that all share a program."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[] if name == "llada2-moe" else pytest.mark.slow)
        for name in FAMILIES
    ],
)
def model(request):
    return lj.load(GOLDENS / request.param)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cache", "loop"),
    [("blockwise", "host"), *[(c, "compiled") for c in ("none", "dual", "blockwise")]],
)
def test_a_batch_decodes_each_row_as_alone(model, cache, loop):
    config = CONFIG.replace(cache=cache, threshold=0.2)
    together = lj.generate(model, PROMPTS, config, loop=loop)
    for row, prompt in enumerate(PROMPTS):
        alone = lj.generate(model, [prompt], config, loop=loop)
        np.testing.assert_array_equal(together.generated[row], alone.generated[0])
        assert together.nfe[row] == alone.nfe[0]


def test_a_batch_equals_full_forwards_of_each_row(model):
    """Repeats every step as one forward over the canvas up to the block's end, in which no block
    sees a later block: without cache, selected rows, padding or batch."""
    result = lj.generate(model, PROMPTS, CONFIG.replace(cache="blockwise"))
    for row, prompt in enumerate(PROMPTS):
        slow = slow_blockwise(model, prompt, CONFIG)
        np.testing.assert_array_equal(result.generated[row], slow[len(prompt) :])


def slow_blockwise(model, prompt, config):
    """Compares decoding blocks with attention blocks: the model's attention blocks are complete
    and begin at position 0."""
    end, own = len(prompt) + config.gen_length, model.config.block_length
    end += -end % (own or 1)
    canvas = np.zeros(LONGEST, np.int32)
    canvas[:end] = [*prompt, *[config.mask_id] * (end - len(prompt))]
    origin = 0 if own else len(prompt)
    decides = np.maximum((np.arange(LONGEST) - origin) // config.block_length, -1)
    order = np.arange(LONGEST) // own if own else decides
    for block in np.unique(decides[canvas == config.mask_id]):
        while (inside := np.flatnonzero((canvas == config.mask_id) & (decides == block))).size:
            live = ((order <= order[inside[0]]) & (np.arange(LONGEST) < end))[None]
            ordered = np.int32(order)[None]
            found = in_order(model.params, model.config, canvas[None], ordered, live)
            logits = np.array(found[0], np.float64)
            if model.config.shift_logits:
                logits = np.concatenate([logits[:1], logits[:-1]])
            logits[:, config.mask_id] = -np.inf
            share = np.exp(logits - logits.max(-1, keepdims=True))
            confidence = (share / share.sum(-1, keepdims=True)).max(-1)
            best = max(inside, key=lambda i: (confidence[i], -i))
            canvas[best] = logits[best].argmax()
    return canvas[: len(prompt) + config.gen_length]


@pytest.mark.slow
def test_guidance_equals_guided_logits():
    """Guiding the head's input against guiding its output, as LLaDA does."""
    model = lj.load(GOLDENS / "llada-gqa")
    config = CONFIG.replace(cfg_scale=2.0, gen_length=8, steps=8)
    result = lj.generate(model, [PROMPTS[0]], config)
    canvas = np.array([*PROMPTS[0], *[319] * 8], np.int32)
    for _ in range(8):
        blank = np.where(np.arange(len(canvas)) < len(PROMPTS[0]), 319, canvas)
        both = np.asarray(lj.forward(model, np.stack([canvas, blank])), np.float64)
        logits = both[1] + 3.0 * (both[0] - both[1])
        logits[:, 319] = -np.inf
        share = np.exp(logits - logits.max(-1, keepdims=True))
        confidence = (share / share.sum(-1, keepdims=True)).max(-1)
        best = max(np.flatnonzero(canvas == 319), key=lambda i: (confidence[i], -i))
        canvas[best] = logits[best].argmax()
    np.testing.assert_array_equal(result.tokens[0], canvas)
