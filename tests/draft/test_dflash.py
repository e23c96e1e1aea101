"""A DFlash drafter in the decoding loop: context, taps and tokens."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import llada_jax as lj
from llada_jax.backend.exported.manifest import MANIFEST
from llada_jax.config import ModelConfig
from llada_jax.draft.dflash import DFlash
from llada_jax.draft.network import DFlashConfig, context_rows, init_drafter, tapped
from llada_jax.model.forward import forward
from llada_jax.sampler.drafters.drafter import DraftView
from llada_jax.sampler.drafters.own import Own
from tests.drawn_params import drawn_params

GOLDEN = Path(__file__).parents[1] / "goldens" / "dflash"
TARGET = ModelConfig(
    family="llama", vocab_size=40, width=16, n_layers=4, n_heads=2, n_kv_heads=1, head_dim=8,
    ffn_width=24, rope_theta=1e4, norm_eps=1e-5, max_length=64, causal="finished", eos_id=39,
)  # fmt: skip
SHAPE = TARGET.replace(family="qwen3", n_layers=1, qk_norm=True, eos_id=None)
PROMPTS = [[5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 8]]


@functools.cache
def pair() -> lj.Model:
    """Returns a random target with a random drafter."""
    config = DFlashConfig(shape=SHAPE, taps=(2, 0), block_length=4, mask_id=38, target_layers=4)
    params = drawn_params(TARGET)
    params = params._replace(layers=jax.tree.map(lambda leaf: 3 * leaf, params.layers))
    drafter = DFlash(config, init_drafter(config, jax.random.key(1)))
    return lj.Model(TARGET, params, None).with_drafter(drafter)


def preset(**changes):
    return lj.SamplerConfig.preset("draft", gen_length=10, block_length=4, **changes)


def test_the_context_has_the_targets_states_of_the_certain_tokens():
    model = pair()
    decoding, state = lj.start(model, PROMPTS, preset(eos_early_stop=False))
    step = jax.jit(lj.step)
    for _ in range(4):
        state, record = step(decoding, state)
    assert (record.counts.draft_rows == 3).all()
    drafter, positions = model.drafter, jnp.arange(state.tokens.shape[1])[None]
    tokens = jnp.minimum(state.tokens, TARGET.vocab_size - 1)  # masks are no tokens here
    taps = jax.jit(tapped, static_argnums=(1, 3))(model.params, TARGET, tokens, drafter.taps)
    expected = context_rows(drafter.params, drafter.config, taps, jnp.tile(positions, (2, 1)))
    for row, end in enumerate(state.n_cached.tolist()):
        assert len(PROMPTS[row]) < end < len(PROMPTS[row]) + 10
        for kept, wanted in zip(*map(jax.tree.leaves, (state.draft, expected)), strict=True):
            np.testing.assert_allclose(kept[row, :, :end], wanted[row, :, :end], rtol=0, atol=1e-4)
    while not state.done.all():
        state, record = step(decoding, state)
    tokens = jnp.minimum(state.tokens, 39)
    best = jax.jit(forward, static_argnums=1)(model.params, TARGET, tokens).argmax(-1)
    for row, prompt in enumerate(PROMPTS):
        generated = slice(len(prompt), len(prompt) + 10)
        before = slice(len(prompt) - 1, len(prompt) + 9)
        np.testing.assert_array_equal(state.tokens[row, generated], best[row, before])


def test_a_backend_without_states_is_refused():
    with pytest.raises(ValueError, match="it reads states inside the model; allowed: "):
        lj.generate(pair(), PROMPTS, preset(), backend="native")


def test_litert_returns_the_states_that_a_drafter_reads():
    pytest.importorskip("litert_converter")
    on_xla, on_litert = (
        lj.generate(pair(), PROMPTS, preset(), backend=backend, loop="host", trace=True)
        for backend in ("xla", "litert")
    )
    np.testing.assert_array_equal(on_litert.tokens, on_xla.tokens)
    np.testing.assert_array_equal(on_litert.trace.draft_rows, on_xla.trace.draft_rows)
    drafted = [result.trace.count(lj.testing.Event.AHEAD) for result in (on_xla, on_litert)]
    np.testing.assert_array_equal(*drafted)


def test_look_up_goes_before_the_network():
    """The second text repeats itself, so its drafts are copied, as many as there is room for."""
    model = pair()
    texts = jnp.array([[5, 6, 7, 8, 9, 0, 0], [5, 6, 7, 5, 6, 0, 0]], jnp.int32)
    anchors = jnp.array([4, 4], jnp.int32)
    taps = jnp.ones((2, 7, 2, TARGET.width))
    positions = jnp.tile(jnp.arange(7), (2, 1))
    memory = context_rows(model.drafter.params, model.drafter.config, taps, positions)
    params = model.params._replace(drafter=model.drafter)
    draft = jax.jit(lambda view: Own().draft(params, view, 5))
    drafts = draft(DraftView(texts, anchors, memory))
    assert drafts[1].tolist() == [7, 5, 6, 7, 5]
    assert (drafts[0, :3] >= 0).all() and drafts[0, 3:].tolist() == [-1, -1]
    network = model.drafter.draft(model.params, DraftView(texts, anchors, memory), 3)
    assert drafts[0, :3].tolist() == network[0].tolist()
    both_repeat = draft(DraftView(texts[1:].repeat(2, axis=0), anchors, memory))
    assert both_repeat.tolist() == [[7, 5, 6, 7, 5]] * 2


def test_a_model_without_a_drafter_is_named():
    with pytest.raises(ValueError, match="drafter is 'own' and the model has none; allowed: "):
        lj.generate(pair().replace(drafter=None), PROMPTS, preset())


def test_a_drafter_is_loaded_with_its_target(tmp_path):
    model = lj.load(GOLDEN / "target", "float32", drafter=GOLDEN / "drafter")
    embedding = model.params.embedding if model.params.head is None else model.params.head
    assert model.drafter.head.shape[1:] == embedding.shape[1:]
    with pytest.raises(FileNotFoundError):
        lj.load(GOLDEN / "target", drafter=tmp_path)
    with pytest.raises(ValueError, match="is an export; allowed with a drafter: a checkpoint"):
        (tmp_path / MANIFEST).touch()
        lj.load(tmp_path, drafter=GOLDEN / "drafter")


@pytest.mark.parametrize("change", [{"n_layers": 5}, {"vocab_size": 41}, {"causal": None}])
def test_a_drafter_of_another_target_is_refused(change):
    with pytest.raises(ValueError, match="allowed: "):
        lj.Model(TARGET.replace(**change), None, None).with_drafter(pair().drafter)
