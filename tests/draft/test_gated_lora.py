"""A gated-LoRA drafter: the target's own rows, its masks, its training and its files."""

import functools
import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import llada_jax as lj
from llada_jax.checkpoint import fingerprint, save_huggingface
from llada_jax.config import LoraConfig
from llada_jax.draft.blocks import Blocks, greedy_cycles
from llada_jax.draft.gated_lora import (
    GatedLora,
    GatedLoraConfig,
    gated_lora_drafts,
    gated_lora_loss,
    init_gated_lora,
    mask_rows,
)
from llada_jax.draft.gated_lora_files import read_gated_lora, write_gated_lora
from llada_jax.model.forward import cache_for, forward_rows
from llada_jax.rows import make_rows
from llada_jax.sampler.drafters.drafter import DraftView
from llada_jax.sampler.rules.rule import Sizes
from tests.draft import test_dflash
from tests.drawn_params import drawn_params

K = 3
PROMPTS, TARGET = test_dflash.PROMPTS, test_dflash.TARGET.replace(n_layers=2)
CONFIG = GatedLoraConfig(shape=TARGET, lora=LoraConfig(rank=2, alpha=4.0), n_masks=K)
PLAIN = lj.SamplerConfig.preset("autoregressive", gen_length=11)


@functools.cache
def target(seed: int = 0) -> lj.Model:
    params = drawn_params(TARGET, seed)
    layers = jax.tree.map(lambda leaf: 3 * leaf, params.layers)
    return lj.Model(TARGET, params._replace(layers=layers), None)


def drawn(seed: int = 1):
    """Returns parameters of which none is zero."""
    params = init_gated_lora(CONFIG, target().params.embedding, jax.random.key(seed))
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: leaf + 0.3 * rng.standard_normal(leaf.shape).astype(np.float32), params
    )


def drafting(seed: int = 1, model: lj.Model | None = None) -> lj.Model:
    return (model or target()).with_drafter(GatedLora(CONFIG, drawn(seed)))


def preset(**changes):
    config = lj.SamplerConfig.preset("draft", gen_length=11, block_length=K + 1)
    return config.replace(**changes)


@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 99), of_target=st.integers(0, 99))
def test_output_equals_plain_decoding(seed, of_target):
    model = target(of_target)
    expected = lj.generate(model, PROMPTS, PLAIN)
    np.testing.assert_array_equal(
        lj.generate(drafting(seed, model), PROMPTS, preset()).tokens, expected.tokens
    )


def test_shorter_blocks_have_fewer_masks():
    expected = lj.generate(target(), PROMPTS, PLAIN)
    model = drafting()
    short = lj.generate(model, PROMPTS, preset(block_length=3), loop="host")
    np.testing.assert_array_equal(short.tokens, expected.tokens)
    assert [model.drafter.cut_to(n).block_length for n in (3, 4, 9)] == [3, 4, 4]


def test_another_backend_is_refused():
    with pytest.raises(ValueError, match=r"it runs inside the model's forward; allowed: .*'xla'"):
        lj.generate(drafting(), PROMPTS, preset(), backend="litert")


def test_a_mask_sees_what_its_token_sees_and_the_masks_before_it():
    cached, rows = jnp.array([[[1, 1, 0], [1, 0, 0]]]), jnp.array([[[1, 0], [1, 1]]])
    positions, sees_cache, sees_rows = mask_rows(2, jnp.array([[7, 8]]), cached > 0, rows > 0)
    assert positions.tolist() == [[8, 9, 9, 10]]
    assert sees_cache[0].astype(int).tolist() == [[1, 1, 0], [1, 1, 0], [1, 0, 0], [1, 0, 0]]
    assert sees_rows[0].astype(int).tolist() == [
        [1, 0, 1, 0, 0, 0],
        [1, 0, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 1, 1],
    ]


def rows_of(tokens, ends):
    """Returns the rows of a first forward, of which some are padding."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
    nothing = jnp.zeros((len(tokens), 0), bool)
    live = positions < jnp.asarray(ends)[:, None]
    return make_rows(tokens, positions, live, nothing, positions, positions[:, :0])


@jax.jit
def run(model: lj.Model, rows):
    cache = cache_for(model.params, TARGET, len(rows.tokens), 0)
    return model.drafter.forward_rows(model.params, TARGET, rows, cache)


def test_rows_of_the_target_do_not_depend_on_the_drafter():
    rows = rows_of(jnp.arange(12, dtype=jnp.int32).reshape(2, 6), [6, 5])
    one, other = run(drafting(1), rows), run(drafting(2), rows)
    assert (one.taps != other.taps).any(axis=-1).all()
    for mine, theirs in zip(*map(jax.tree.leaves, (one[:3], other[:3])), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    cache = cache_for(target().params, TARGET, 2, 0)
    plain = jax.jit(forward_rows, static_argnums=1)(target().params, TARGET, rows, cache)
    np.testing.assert_allclose(one.hidden[rows.live], plain.hidden[rows.live], atol=1e-5)


def example() -> Blocks:
    tokens = np.random.default_rng(0).integers(0, 38, (2, 12)).astype(np.int32)
    anchors = np.array([[3, 5, 9], [8, 2, -1]], np.int32)
    return Blocks(tokens, None, np.array([12, 10], np.int32), anchors)


drafts_of = jax.jit(gated_lora_drafts, static_argnums=1)


def test_training_computes_the_drafts_of_decoding():
    """In decoding, the anchor follows one of the last rows of a forward."""
    model, blocks = drafting(), example()
    expected = drafts_of(model.drafter.params, CONFIG, model.params, blocks)
    anchors, sizes = blocks.anchors[:, 0], Sizes(2, K + 1, 12, TARGET.vocab_size, TARGET.width)
    for surplus in range(K + 1):  # rows after the one whose masks are used
        rows = rows_of(jnp.asarray(blocks.tokens), anchors + surplus)
        memory = model.drafter.observe(model.drafter.init(sizes), rows, run(model, rows))
        view = DraftView(jnp.asarray(blocks.tokens), jnp.asarray(anchors), memory)
        drafts = model.drafter.draft(model.params, view, K)
        np.testing.assert_array_equal(drafts, expected[:, 0])
    late = view._replace(anchor=view.anchor + K + 1)
    assert (model.drafter.draft(model.params, late, K) == -1).all()


@pytest.mark.slow
def test_a_few_steps_of_training_raise_the_acceptance():
    model = target(5)
    prompts = [[i, i + 1] for i in range(16)]
    config = PLAIN.replace(gen_length=10, eos_early_stop=False)
    tokens = np.asarray(lj.generate(model, prompts, config).tokens)[:, -12:]
    anchors = np.tile(np.arange(2, 11, dtype=np.int32), (16, 1))
    blocks = Blocks(tokens, None, np.full(16, 12, np.int32), anchors)
    params = init_gated_lora(CONFIG, model.params.embedding, jax.random.key(0))

    def forwards(params) -> int:
        drafts = np.asarray(drafts_of(params, CONFIG, model.params, blocks))
        return sum(
            len(greedy_cycles(np.pad(of_row, ((0, 1), (0, 0))), answer[2:]))
            for of_row, answer in zip(drafts, tokens, strict=True)
        )

    @jax.jit
    def step(params):
        gradient, metrics = jax.grad(gated_lora_loss, has_aux=True)(
            params, CONFIG, model.params, blocks, 4.0
        )
        descend = lambda leaf, slope: leaf - 0.01 * jnp.sign(slope)  # noqa: E731
        return jax.tree.map(descend, params, gradient), metrics["loss"]

    before, losses = forwards(params), []
    for _ in range(40):
        params, loss = step(params)
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 2
    assert forwards(params) < 0.7 * before


@pytest.mark.parametrize("n_ids", [None, 7])
def test_a_written_drafter_is_read_again(tmp_path, n_ids):
    config = replace(CONFIG, target="ab12", n_ids=n_ids)
    ids = None if n_ids is None else jnp.array([2, 3, 5, 8, 13, 21, 39], jnp.int32)
    params = drawn()._replace(ids=ids)
    write_gated_lora(tmp_path / "drafter", config, params, "float32")
    read_config, read = read_gated_lora(tmp_path / "drafter")
    assert read_config == config
    jax.tree.map(np.testing.assert_array_equal, read, params)
    names = load_file(tmp_path / "drafter" / "adapter_model.safetensors")
    assert "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight" in names
    with pytest.raises(ValueError, match="n_ids is 9; allowed"):
        write_gated_lora(tmp_path / "not", replace(config, n_ids=9), params)
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("draft.json", {"more": 1}, "draft.json has .*, more; allowed: n_masks"),
        ("draft.json", {"n_masks": 0}, "n_masks is 0; allowed: 1 or more"),
        ("draft.json", {"n_masks": 4}, r"masks of .* is F32 \[3, 16\]; allowed: .* \[4, 16\]"),
        ("draft.json", {"draft_vocab_size": 5}, "draft.safetensors lacks ids"),
        ("adapter_config.json", {"use_rslora": True}, "use_rslora.*; allowed: plain LoRA"),
        ("adapter_config.json", {"target_modules": "all"}, "target_modules of .* is 'all'; allow"),
        ("adapter_config.json", {"target_modules": ["q_proj"]}, "adapter_model.* also has base_"),
        ("adapter_config.json", {"r": 3}, r"lora_A.weight of .* is F32 \[2, 16\]; allowed: .* \[3"),
    ],
)
def test_damaged_folders_are_refused(tmp_path, file, change, message):
    write_gated_lora(tmp_path / "drafter", CONFIG, drawn(), "float32")
    path = tmp_path / "drafter" / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=message) as error:
        read_gated_lora(tmp_path / "drafter")
    assert "\n" not in str(error.value)


def test_a_drafter_is_loaded_with_its_target_alone(tmp_path):
    save_huggingface(tmp_path / "target", TARGET, target().params, "float32")
    own = replace(CONFIG, target=fingerprint(tmp_path / "target"))
    write_gated_lora(tmp_path / "drafter", own, drawn(), "float32")
    model = lj.load(tmp_path / "target", drafter=tmp_path / "drafter")
    assert isinstance(model.drafter, GatedLora)
    np.testing.assert_array_equal(
        lj.generate(model, PROMPTS, preset()).tokens, lj.generate(target(), PROMPTS, PLAIN).tokens
    )
    with pytest.raises(ValueError, match="drafts and is not merged; allowed: load"):
        lj.load(tmp_path / "target", adapter=tmp_path / "drafter")
    tensors = load_file(tmp_path / "drafter" / "draft.safetensors")
    save_file(tensors | {"norm": np.full(16, np.nan, np.float32)},
              tmp_path / "drafter" / "draft.safetensors")  # fmt: skip
    with pytest.raises(ValueError, match="NaN"):
        lj.load(tmp_path / "target", drafter=tmp_path / "drafter")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 41}, "vocab_size of the model is 41; allowed: 40"),
        ({"ffn_width": 32}, "ffn_width of the model is 32; allowed: 24"),
        ({"family": "qwen2"}, "family of the model is 'qwen2'; allowed: 'llama'"),
        ({"causal": None}, "not autoregressive"),
        ({}, "fingerprint of the model is None; allowed: 'ab12'"),
    ],
)
def test_a_drafter_of_another_target_is_refused(change, message):
    drafter = GatedLora(replace(CONFIG, target="ab12"), drawn())
    with pytest.raises(ValueError, match=message):
        lj.Model(TARGET.replace(**change), target().params, None).with_drafter(drafter)
