"""Batches are pure, and their canvases look like a sampler's."""

from itertools import islice

import numpy as np
import pytest

from llada_jax.config import TrainConfig
from llada_jax.training.data import Example, TrainingBatch, batches
from tests.training.echo import batch_at

EOS = 1
BLOCK = 8


def source(index: int) -> Example:
    """Prompts and answers with tokens that encode the example's index and the position."""
    rng = np.random.default_rng(index)
    prompt, answer = rng.integers(3, 12), rng.integers(1, 33)
    return Example([2] * prompt, [10 + index % 90] * answer)


def make_config(**changes) -> TrainConfig:
    fields = {
        "seed": 3,
        "steps": 100,
        "warmup_steps": 0,
        "decay_steps": 0,
        "batch_size": 6,
        "block_length": BLOCK,
        "max_gen_length": 40,
        "length_multiple": 8,
        "group_steps": 4,
    }
    return TrainConfig(**{**fields, **changes})


def canvases(config: TrainConfig, steps: int = 40):
    for batch in islice(batches(source, config, EOS), steps):
        yield from zip(*map(np.asarray, batch), strict=True)


def equal(a: TrainingBatch, b: TrainingBatch) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("step", [0, 1, 3, 4, 11])
def test_a_batch_depends_only_on_seed_and_step(step):
    config = make_config()
    batch = batch_at(source, config, EOS, step)
    assert equal(batch, list(islice(batches(source, config, EOS), step + 1))[step])
    assert equal(batch, next(batches(source, config, EOS, first_step=step)))
    assert not equal(batch, batch_at(source, config, EOS, step + 1))
    assert not equal(batch, batch_at(source, config.replace(seed=4), EOS, step))


def test_every_example_of_a_group_is_used_once():
    asked = []

    def listening(index: int) -> Example:
        asked.append(index)
        return source(index)

    config = make_config()
    list(islice(batches(listening, config, EOS), 2 * config.group_steps))
    assert asked == list(range(2 * config.group_steps * config.batch_size))


def test_shapes_are_few_and_padding_is_dead():
    config = make_config()
    for batch in islice(batches(source, config, EOS), 20):
        length = batch.tokens.shape[1]
        assert length % config.length_multiple == 0
        assert length - batch.live.sum(axis=1).max() < config.length_multiple
        # Live positions come first, without gaps.
        np.testing.assert_array_equal(batch.live, -np.sort(-batch.live.astype(int), axis=1) > 0)
        assert not ((batch.target | batch.hidden) & ~batch.live).any()


def test_answers_are_padded_with_eos_to_the_canvas_end():
    for tokens, live, _, _ in canvases(make_config(block_share=0.0)):
        answer = tokens[live][tokens[live] != 2]
        content = answer[answer != EOS]
        assert len(content) > 0
        assert (answer[len(content) :] == EOS).all()


def test_fine_tuning_never_masks_a_prompt():
    for tokens, live, target, hidden in canvases(make_config()):
        prompt = live & (tokens == 2)
        assert prompt.any()
        assert not (prompt & (target | hidden)).any()


def test_whole_canvases_may_mask_all_of_the_answer_region():
    lengths = set()
    for tokens, live, target, hidden in canvases(make_config(block_share=0.0)):
        np.testing.assert_array_equal(target, live & (tokens != 2))
        assert not hidden.any()
        lengths.add(int(target.sum()))
    assert len(lengths) > 10


@pytest.mark.parametrize("cut_share", [0.0, 1.0])
def test_block_canvases_look_like_a_block_wise_decoders(cut_share):
    blocks = set()
    suffixes = 0
    for tokens, live, target, hidden in canvases(make_config(block_share=1.0, cut_share=cut_share)):
        start = int((tokens == 2).sum())
        block = np.flatnonzero(target)
        assert len(block) == BLOCK
        assert block[-1] - block[0] == BLOCK - 1
        assert (block[0] - start) % BLOCK == 0
        np.testing.assert_array_equal(
            np.flatnonzero(hidden), np.arange(block[-1] + 1, int(live.sum()))
        )
        blocks.add((block[0] - start) // BLOCK)
        suffixes += bool(hidden.any())
    assert blocks == {0, 1, 2, 3, 4}
    assert suffixes == 0 if cut_share else suffixes > 50


def test_pretraining_may_mask_every_token():
    for _, live, target, hidden in canvases(make_config(objective="pretrain")):
        np.testing.assert_array_equal(target, live)
        assert not hidden.any()


@pytest.mark.parametrize("block_share", [0.0, 1.0])
def test_an_example_may_ask_for_a_shorter_region(block_share):
    def short(index: int) -> Example:
        return source(index)._replace(answer=[9] * (1 + index % 16), gen_length=16)

    lengths = set()
    for batch in islice(batches(short, make_config(block_share=block_share), EOS), 40):
        for tokens, live in zip(batch.tokens, batch.live, strict=True):
            lengths.add(int(live.sum() - (tokens[live] == 2).sum()))
    assert max(lengths) == 16


@pytest.mark.parametrize(("gen_length", "longest"), [(None, 40), (16, 16), (64, 40)])
def test_an_answer_that_does_not_fit_is_an_error(gen_length, longest):
    with pytest.raises(ValueError, match=f"an answer has 41 tokens; allowed: up to {longest}"):
        batch_at(lambda _: Example([2], [3] * 41, gen_length), make_config(), EOS, 0)
