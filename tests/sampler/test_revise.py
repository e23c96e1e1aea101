"""WINO and token editing, and the numbers of all revise rules."""

import jax
import pytest

from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.generate import decode
from llada_jax.sampler.prompts import with_ids
from llada_jax.sampler.trace import Event
from tests.sampler.rows_alone import assert_row_is
from tests.sampler.rules.test_staged import events
from tests.sampler.scripted import Scripted
from tests.sampler.toy import CONFIG, MASK, toy_decode

WINO = SamplerConfig.from_flat(gen_length=16, block_length=8, steps=16, accept="wino")
EDIT = SamplerConfig.from_flat(
    gen_length=16, block_length=8, steps=16, accept="token_edit", cache="blockwise",
    rescore="token", edit_steps=3,
)  # fmt: skip
PROMPTS = [[3, 1, 4, 1, 5], [9, 2]]


def story(script, config):
    scripted = Scripted(script)
    config = with_ids(config, CONFIG)
    result = decode(scripted.denoiser(), None, CONFIG, [[1]], config, loop="host", trace=True)
    return result.trace, scripted.fed


def test_wino_masks_doubted_tokens_again():
    config = WINO.replace(gen_length=8, steps=8)

    def script(forward, position, masked):
        if position == 2 and forward == 1:
            return 2, 0.8  # the committed token, but below wino_verify
        if position == 3 and forward == 1:
            return 7, 0.95  # another token
        return position, 0.95 if position < 5 or forward > 0 else 0.3

    trace, _ = story(script, config)
    assert events(trace, Event.COMMIT)[:8] == [(0, p, p) for p in (1, 2, 3, 4)] + [
        (1, p, p) for p in (5, 6, 7, 8)
    ]
    assert events(trace, Event.REMASK) == [(1, 2, MASK), (1, 3, MASK)]
    assert events(trace, Event.COMMIT)[8:] == [(2, 2, 2), (2, 3, 3)]
    assert trace.shadow_rows[:, 0].tolist() == [0, 4, 6]
    assert trace.tokens[0].tolist() == [1, *range(1, 9)]


def test_wino_masks_fewer_tokens_than_the_previous_step_committed():
    """Two were committed, so only the less probable of the two failing tokens is masked again."""

    def script(forward, position, masked):
        if position in (1, 2):
            return position, {0: 0.95, 1: 0.95}.get(forward, 0.5 + position / 10)
        return position, 0.95 if forward >= 2 or (forward, position) in ((1, 3), (1, 4)) else 0.1

    trace, _ = story(script, WINO.replace(gen_length=8, steps=8))
    assert events(trace, Event.REMASK)[0] == (2, 1, MASK)
    assert [step for step, _, _ in events(trace, Event.REMASK)].count(2) == 1


def test_wino_accepts_at_most_its_share():
    trace, _ = story(lambda f, position, masked: (position, 0.95), WINO)
    assert trace.count(Event.COMMIT)[:, 0].tolist()[:2] == [5, 3], "70 % of 8, and the rest"


def test_token_editing_goes_on_until_nothing_changes():
    """All tokens of the first block are confident; one changes twice afterwards."""
    said = {0: 4, 1: 5, 2: 6}

    def script(forward, position, masked):
        return (said.get(forward, 6) if position == 3 else position), 0.9

    trace, fed = story(script, EDIT.replace(gen_length=8, steps=8))
    assert events(trace, Event.REPLACE) == [(1, 3, 5), (2, 3, 6)]
    assert trace.nfe.tolist() == [4], "the fourth forward finds nothing to edit"
    assert fed[2][3] == [5] and not trace.shadow_rows.any()
    restless, _ = story(lambda f, position, masked: (f, 0.9), EDIT.replace(gen_length=8, steps=8))
    assert restless.nfe.tolist() == [1 + 3], "edit_steps is the limit"


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(
            WINO.replace(wino_accept=0.2, wino_verify=0.6), id="wino", marks=pytest.mark.slow
        ),
        pytest.param(
            WINO.replace(wino_accept=0.2, wino_verify=0.6, cache="blockwise", window="multi_block"),
            id="wino_sliding",
            marks=pytest.mark.slow,
        ),
        pytest.param(EDIT.replace(edit_unmask=0.2, edit_replace=0.3), id="token_edit"),
        pytest.param(
            EDIT.replace(edit_unmask=0.2, edit_replace=0.3, rescore="shadow", window="multi_block"),
            id="token_edit_sliding",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_both_loops_and_any_batch_decode_alike_and_finish(config):
    together = toy_decode(PROMPTS, config, salt=7, loop="compiled")
    trace = together.trace
    assert not (together.tokens == MASK).any()
    assert (trace.count(Event.REPLACE) + trace.count(Event.REMASK)).sum() > 0
    kept = trace.count(Event.COMMIT).sum() - trace.count(Event.REMASK).sum()
    assert kept == 32 and together.tpf == kept / together.nfe.sum()
    for row, prompt in enumerate(PROMPTS):
        assert_row_is(together, row, toy_decode([prompt], config, salt=7, loop="host"))


@pytest.mark.parametrize(
    ("accept", "names"),
    [
        ("staged", ("theta_visible", "theta_stable")),
        ("wino", ("wino_accept", "wino_verify")),
        ("token_edit", ("edit_unmask", "edit_replace")),
    ],
)
def test_sweeps_over_both_numbers_compile_once(accept, names):
    low = SamplerConfig.from_flat(accept=accept, **dict(zip(names, (0.55, 0.75), strict=True)))
    high = SamplerConfig.from_flat(accept=accept, **dict(zip(names, (0.65, 0.85), strict=True)))
    assert jax.tree.structure(low) == jax.tree.structure(high)
    assert jax.tree.leaves(low) == [0.55, 0.75] and jax.tree.leaves(high) == [0.65, 0.85]
