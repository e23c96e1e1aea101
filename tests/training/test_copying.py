"""Heads that copy: an untrained model finds values in its context."""

from functools import partial

import jax
import numpy as np
import pytest

from llada_jax.config import ModelConfig, TrainConfig
from llada_jax.model.forward import forward
from llada_jax.model.params import init_params
from llada_jax.training.copying import with_copying_heads
from llada_jax.training.state import create_state

CONFIG = ModelConfig(
    family="llada", vocab_size=600, width=160, n_layers=4, n_heads=5, n_kv_heads=5, head_dim=32,
    ffn_width=256, rope_theta=5e5, norm_eps=1e-5, max_length=256, mask_id=5, eos_id=3,
)  # fmt: skip


run_forward = jax.jit(forward, static_argnums=1)


@pytest.fixture(scope="module")
def plain():
    return jax.jit(init_params, static_argnums=0)(CONFIG, jax.random.key(0))


@pytest.fixture(scope="module")
def copying(plain):
    return with_copying_heads(plain, CONFIG, seed=0)


def logits_of(params, canvases, masked):
    """Logits [canvases, masked, V] of canvases that hide the tokens at the masked positions."""
    shown = np.array(canvases, np.int32)
    np.put_along_axis(shown, masked, CONFIG.mask_id, axis=1)
    logits = run_forward(params, CONFIG, shown, np.ones(shown.shape, bool))
    return np.take_along_axis(np.asarray(logits), masked[..., None], axis=1)


def share_copied(params):
    """Accuracy at masks in two repeated pieces of random tokens."""
    texts = [np.random.default_rng(s).permutation(np.arange(20, 600))[:40] for s in range(8)]
    canvases = np.array([[*text, *text[25:35], *text[10:20]] for text in texts])
    masked = np.tile([42, 47, 53, 58], (8, 1))
    best = logits_of(params, canvases, masked).argmax(-1)
    return (best == np.take_along_axis(canvases, masked, axis=1)).mean()


def test_an_untrained_model_copies_tokens_with_the_same_neighbours(plain, copying):
    assert share_copied(copying) > 0.9
    assert share_copied(plain) < 0.1


def share_of_letters(params):
    """Four items, each found by the tokens listed after it and a bracket: `A ) x y z`."""
    letters, bracket, line = np.arange(10, 14), 14, 15
    canvases = []
    for seed in range(8):
        listed = np.random.default_rng(seed).permutation(np.arange(20, 600))[:12].reshape(4, 3)
        lines = [
            [line, letter, bracket, *words] for letter, words in zip(letters, listed, strict=True)
        ]
        canvases += [[*np.concatenate(lines), line, 16, 17, *chosen, line] for chosen in lines]
    canvases = np.array(canvases)
    masked = np.full((len(canvases), 1), canvases.shape[1] - 6)
    best = letters[logits_of(params, canvases, masked)[..., letters].argmax(-1)]
    return (best == np.take_along_axis(canvases, masked, axis=1)).mean()


def test_an_untrained_model_finds_the_letter_of_a_choice(plain, copying):
    assert share_of_letters(copying) > 0.8
    assert share_of_letters(plain) < 0.5


def test_a_run_can_start_with_copying_heads(copying):
    config = TrainConfig(steps=2, warmup_steps=1, decay_steps=1, start="copying", seed=0)
    params = create_state(CONFIG, config).params
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), params, copying)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_heads": 4, "n_kv_heads": 4}, "n_heads is 4 and n_kv_heads 4; allowed here: the same"),
        ({"n_kv_heads": 1}, "n_heads is 5 and n_kv_heads 1; allowed here: the same"),
        ({"width": 96}, "width is 96; allowed here: 128 or more"),
        ({"n_layers": 2}, "n_layers is 2; allowed here: 3 or more"),
        (
            {"head_dim": 16, "rotary_dims": 16},
            "head_dim is 16, of which 16 turn; allowed here: 32",
        ),
        ({"tied_embeddings": True}, "tied_embeddings is True; allowed here: False"),
        ({"mask_id": None}, "mask_id is None; allowed with copying heads: a token id"),
    ],
)
def test_shapes_too_small_for_copying_heads_are_refused(changes, message):
    config = CONFIG.replace(**changes)
    with pytest.raises(ValueError, match=message):
        with_copying_heads(None, config, seed=0)
