"""Heads that copy: a model that was never trained finds what its context says."""

import jax
import jax.numpy as jnp
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


def share_copied(params, seed):
    """Of masks in two repeated pieces of a text of random tokens."""
    rng = np.random.default_rng(seed)
    text = rng.permutation(np.arange(20, 600))[:40]
    canvas = np.concatenate([text, text[25:35], text[10:20]])
    masked = np.array([42, 47, 53, 58])
    shown = canvas.copy()
    shown[masked] = CONFIG.mask_id
    logits = forward(params, CONFIG, jnp.asarray(shown, jnp.int32)[None], jnp.ones((1, 60), bool))
    return (np.asarray(logits)[0, masked].argmax(-1) == canvas[masked]).mean()


def test_an_untrained_model_copies_what_stands_between_the_same_neighbours():
    plain = init_params(CONFIG, jax.random.key(0))
    copying = with_copying_heads(plain, CONFIG, seed=0)
    assert np.mean([share_copied(copying, seed) for seed in range(8)]) > 0.9
    assert np.mean([share_copied(plain, seed) for seed in range(8)]) < 0.1


def share_of_letters(params, seed):
    """Of four, found by what is listed after them and a bracket: `A ) x y z`."""
    rng = np.random.default_rng(seed)
    letters, bracket, line = np.arange(10, 14), 14, 15
    listed = rng.permutation(np.arange(20, 600))[: 4 * 3].reshape(4, 3)
    lines = [[line, letter, bracket, *words] for letter, words in zip(letters, listed, strict=True)]
    found = []
    for chosen in lines:
        canvas = np.array([*np.concatenate(lines), line, 16, 17, *chosen, line])
        masked = len(canvas) - 6
        shown = np.where(np.arange(len(canvas)) == masked, CONFIG.mask_id, canvas)
        live = jnp.ones((1, len(canvas)), bool)
        logits = forward(params, CONFIG, jnp.asarray(shown, jnp.int32)[None], live)
        best = letters[np.asarray(logits)[0, masked, letters].argmax()]
        found.append(best == canvas[masked])
    return np.mean(found)


def test_an_untrained_model_finds_the_letter_of_a_choice():
    plain = init_params(CONFIG, jax.random.key(0))
    copying = with_copying_heads(plain, CONFIG, seed=0)
    assert np.mean([share_of_letters(copying, seed) for seed in range(8)]) > 0.8
    assert np.mean([share_of_letters(plain, seed) for seed in range(8)]) < 0.5


def test_a_run_may_start_so():
    config = TrainConfig(steps=2, warmup_steps=1, decay_steps=1, start="copying", seed=3)
    params = create_state(CONFIG, config).params
    expected = with_copying_heads(init_params(CONFIG, jax.random.key(3)), CONFIG, seed=3)
    jax.tree.map(np.testing.assert_array_equal, params, expected)


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
def test_shapes_without_room_are_refused(changes, message):
    config = CONFIG.replace(**changes)
    with pytest.raises(ValueError, match=message):
        with_copying_heads(init_params(config, jax.random.key(0)), config, seed=0)
