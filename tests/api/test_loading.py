"""A loaded model: its `repr`, its logits, and the description of a checkpoint by `describe`."""

import json
import operator
import pickle
import shutil
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import jax
import numpy as np
import pytest

import llada_jax as lj
from llada_jax.checkpoint import model_path
from llada_jax.checkpoint.sources import StoredTensor
from tests.checkpoint.folders import GOLDENS, golden_tensors


@pytest.fixture(scope="module")
def model():
    return lj.load(GOLDENS / "llada-gqa")


def test_forward_gives_float32_logits(model):
    logits = lj.forward(model, [[1, 2, 3], [4, 5, 6]])
    assert logits.shape == (2, 3, 320) and logits.dtype == np.float32


def test_forward_with_a_block_length_is_block_causal(model):
    tokens = np.arange(1, 13)[None]
    changed = np.where(np.arange(12) < 8, tokens, 300)
    for block_length, sees_changes in ((4, False), (8, False), (12, True), (None, True)):
        one, other = (lj.forward(model, t, block_length=block_length) for t in (tokens, changed))
        assert bool((one[:, :8] != other[:, :8]).any()) == sees_changes


@pytest.mark.parametrize(
    ("tokens", "options", "message"),
    [
        ([[1, 320]], {}, "tokens span 1 to 320; allowed: 0 to 319"),
        ([[-1]], {}, "tokens span -1 to -1; allowed"),
        ([1, 2], {}, r"tokens are int64 of shape \(2,\); allowed: integers \[B, L\]"),
        ([[]], {}, r"tokens are float64 of shape \(1, 0\); allowed"),
        ([[0.5]], {}, r"tokens are float64 of shape \(1, 1\); allowed: integers"),
        ([[1]], {"block_length": 0}, "block_length is 0; allowed: 1 or more"),
    ],
)
def test_forward_refuses(model, tokens, options, message):
    with pytest.raises(ValueError, match=message):
        lj.forward(model, tokens, **options)


class TestForwardIsPure:
    TOKENS = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])

    def test_jit(self, model):
        jitted = jax.jit(lj.forward, static_argnames="block_length")
        for options in ({}, {"block_length": 2}):
            expected = lj.forward(model, self.TOKENS, **options)
            np.testing.assert_array_equal(jitted(model, self.TOKENS, **options), expected)

    def test_vmap(self, model):
        batches = np.stack([self.TOKENS, self.TOKENS + 100, self.TOKENS[::-1]])
        found = jax.vmap(lj.forward, (None, 0))(model, batches)
        each = np.stack([lj.forward(model, batch) for batch in batches])
        np.testing.assert_allclose(found, each, rtol=1e-5, atol=1e-5)

    def test_the_gradient_with_respect_to_a_model_is_a_model(self, model):
        def loss(model, tokens):
            return jax.nn.logsumexp(lj.forward(model, tokens), axis=-1).mean()

        gradient = jax.jit(jax.grad(loss))(model, self.TOKENS)
        assert isinstance(gradient, lj.Model) and gradient.config == model.config
        step = 1e-2
        along = jax.tree.map(lambda leaf: leaf / _norm(gradient), gradient)
        moved = jax.tree.map(lambda leaf, slope: leaf + step * slope, model, along)
        slope = (loss(moved, self.TOKENS) - loss(model, self.TOKENS)) / step
        np.testing.assert_allclose(slope, _norm(gradient), rtol=0.05)

    def test_ids_are_checked_where_they_are_known(self, model):
        outside = np.array([[320]])
        with pytest.raises(ValueError, match="tokens span 320 to 320"):
            jax.jit(lambda model: lj.forward(model, outside))(model)
        last = lj.forward(model, [[319]])
        np.testing.assert_array_equal(jax.jit(lj.forward)(model, outside), last)

    def test_shapes_are_checked_in_a_trace(self, model):
        with pytest.raises(ValueError, match=r"tokens are int32 of shape \(3,\); allowed"):
            jax.vmap(lj.forward, (None, 0))(model, np.ones((2, 3), np.int32))
        with pytest.raises(ValueError, match="each row of tokens has 4097 tokens; allowed: up to"):
            jax.jit(lj.forward)(model, np.ones((1, 4097), np.int32))


def _norm(tree):
    return np.sqrt(sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(tree)))


def test_forward_refuses_too_long_input_like_generate():
    """Beyond the length that RoPE was trained for, YaRN's queries would grow with their position,
    which nothing here computes."""
    model = lj.load(GOLDENS / "nemotron")
    assert model.config.rope_factor > 1 and model.config.max_length == model.config.rope_length
    model = model.replace(config=model.config.replace(max_length=64, rope_length=64))
    assert lj.forward(model, np.ones((1, 64), int)).shape[1] == 64
    with pytest.raises(ValueError, match=r"has 65 tokens; allowed: up to 64 \(the model's max_le"):
        lj.forward(model, np.ones((1, 65), int))
    with pytest.raises(ValueError, match=r"has 65 tokens; allowed: up to 32 \(the model's 64, le"):
        lj.generate(
            model, np.ones((1, 65), int), lj.SamplerConfig.preset("nemotron", gen_length=32)
        )


def test_forward_refuses_tiles():
    with pytest.raises(ValueError, match="the model has tiles; allowed: the model they are made"):
        lj.forward(lj.tiled(lj.load("tiny")), [[1]])


class TestPytree:
    def test_the_leaves_are_the_arrays(self, model):
        leaves = jax.tree.leaves(model)
        assert all(map(operator.is_, leaves, jax.tree.leaves(model.params)))
        shapes = jax.eval_shape(lambda model: model, model)
        assert jax.tree.leaves(shapes.params)[0].shape == leaves[0].shape

    def test_jit_compiles_once_for_models_of_the_same_files(self):
        counted = []

        @jax.jit
        def first(model):
            counted.append(model.config)
            return model.params.final_norm.sum()

        one, other = lj.load("tiny"), lj.load("tiny")
        assert one.tokenizer is not other.tokenizer and one.tokenizer == other.tokenizer
        assert first(one) == first(other) == first(one.replace(fingerprint=None))
        assert len(counted) == 1
        changed = replace(other.tokenizer, variables={"enable_thinking": False})
        first(one.replace(tokenizer=changed))
        first(one.replace(config=one.config.replace(norm_eps=1e-3)))
        assert len(counted) == 3

    def test_changed_arrays_have_no_fingerprint(self, model):
        doubled = jax.tree.map(lambda leaf: 2 * leaf, model)
        assert doubled.fingerprint is None and doubled.source == model.source
        np.testing.assert_array_equal(doubled.params.final_norm, 2 * model.params.final_norm)

    def test_pickle(self):
        tiny = lj.load("tiny")
        back = pickle.loads(pickle.dumps(tiny))
        assert jax.tree.structure(back) == jax.tree.structure(tiny)
        assert back.fingerprint == tiny.fingerprint
        jax.tree.map(np.testing.assert_array_equal, back, tiny)

    def test_fields_cannot_be_set(self, model):
        with pytest.raises(FrozenInstanceError):
            model.params = None


def test_a_model_is_shown_in_one_line(model):
    parts = f"Model({str(GOLDENS / 'llada-gqa')!r}, family llada, ", " parameters, float32)"
    assert repr(model).startswith(parts[0]) and repr(model).endswith(parts[1])
    tiny = lj.load("tiny")
    assert repr(tiny) == "Model('tiny', family llada, 984,192 parameters, float32)"
    assert repr(tiny.replace(source=None)).startswith("Model(family llada, 984,192 ")


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int4"])
def test_the_repr_of_a_model_names_its_storage(dtype):
    assert repr(lj.load("tiny", dtype)).endswith(f", {dtype})")


def test_the_repr_names_tiles_and_exports():
    tiny = lj.load("tiny")
    assert repr(lj.tiled(tiny)).endswith(", q4_0 tiles)")
    assert repr(tiny.replace(params=None, artifact=Path("folder"))).endswith(", exported)")


def test_a_familys_template_gets_its_variables(tmp_path):
    """dllm's small models do not think, so Qwen3's template needs a flag against thinking."""
    folder = tmp_path / "model"
    shutil.copytree(GOLDENS / "a2d-qwen3-mdlm", folder)
    shutil.copy(model_path("tiny") / "tokenizer.json", folder)
    (folder / "chat_template.jinja").write_text(
        "{% if enable_thinking is false %}at once{% endif %}"
    )
    tokenizer = lj.load(folder).tokenizer
    assert (
        tokenizer is not None
        and tokenizer.apply_chat_template([{"role": "user", "content": ""}]) == "at once"
    )


@pytest.fixture
def no_weight_is_read(monkeypatch):
    monkeypatch.setattr(StoredTensor, "pieces", lambda *_: pytest.fail("a tensor was read"))


@pytest.mark.usefixtures("no_weight_is_read")
def test_a_folder_is_described():
    found = lj.describe(GOLDENS / "sdar-b4")
    tensors = golden_tensors("sdar-b4").values()
    assert found.parameters == sum(tensor.size for tensor in tensors)
    assert found.bytes == sum(tensor.nbytes for tensor in tensors)
    assert found.kinds == {"F32": len(tensors)}
    assert found.presets == ("sdar",)
    assert found.missing == ("tokenizer.json, or vocab.json with merges.txt", "a chat template")
    told = str(found)
    for line in (
        "family      sdar",
        "ids         mask 319, eos 317, stop 318",
        "causal between blocks of 4",
    ):
        assert line in told


@pytest.mark.usefixtures("no_weight_is_read")
def test_missing_files_are_named():
    missing = lj.describe(GOLDENS / "fast-dllm-v2").missing
    assert missing[0] == "a mask id (SamplerConfig.from_flat(mask_id=...))"
    assert lj.describe("tiny_moe").missing == ()
    assert "8 experts, 2 a token" in str(lj.describe("tiny_moe"))
    assert "predict the next position" in str(lj.describe(GOLDENS / "dream"))


@pytest.mark.usefixtures("no_weight_is_read")
def test_unloadable_folders_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no model at"):
        lj.describe(tmp_path / "absent")
    with pytest.raises(ValueError, match="family is 'lama'; allowed"):
        lj.describe("tiny", family="lama")


class TestDescribedFromTheConfigurationAlone:
    @pytest.fixture
    def folder(self, tmp_path):
        for name in ("config.json", "generation_config.json"):
            shutil.copy(GOLDENS / "sdar-b4" / name, tmp_path)
        return tmp_path

    def _index(self, folder, names, metadata):
        index = {"metadata": metadata, "weight_map": dict.fromkeys(names, "model-1.safetensors")}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    def test_without_weights(self, folder):
        whole, found = lj.describe(GOLDENS / "sdar-b4"), lj.describe(folder)
        assert (found.config, found.parameters) == (whole.config, whole.parameters)
        assert found.bytes is None and found.missing[0] == "the weights"
        assert "bytes       unknown" in str(found)
        with pytest.raises(FileNotFoundError, match=r"no model\.safetensors and no "):
            lj.load(folder)

    def test_with_the_index(self, folder):
        self._index(folder, golden_tensors("sdar-b4"), {"total_size": 12345})
        assert "bytes       12,345 (by the index)" in str(lj.describe(folder))
        (folder / "model-1.safetensors.part").touch()  # a download goes on
        assert lj.describe(folder).missing[0] == "the weights"

    def test_an_index_that_lacks_tensors(self, folder):
        self._index(folder, [*golden_tensors("sdar-b4")][1:], None)
        with pytest.raises(ValueError, match=r"index\.json lacks "):
            lj.describe(folder)

    def test_ignored_keys_are_reported(self, folder):
        config = json.loads((folder / "config.json").read_text()) | {"new": 1}
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match="'new': 1}, which nothing here reads"):
            lj.describe(folder)
        assert "ignored     new" in str(lj.describe(folder, ignore_keys=["new"]))


def test_the_tokenizers_eos_id_is_the_models_if_no_other_file_names_one(tmp_path):
    shutil.copytree(model_path("tiny"), tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    expected = config.pop("eos_token_id")
    (tmp_path / "config.json").write_text(json.dumps(config | {"new": 1}))
    assert lj.load(tmp_path, ignore_keys=("new",)).config.eos_id == expected


def test_an_autoregressive_model_is_described():
    found = lj.describe(GOLDENS / "ar-llama")
    assert "a mask id" not in str(found.missing) and found.presets == ("autoregressive", "lookup")
    assert "attention   causal\noutputs     predict the next position" in str(found)


def test_a_mask_token_of_an_autoregressive_models_tokenizer_is_doubted(tmp_path):
    """Open-dCoder has Qwen2's configuration; only its tokenizer identifies it."""
    shutil.copytree(GOLDENS / "ar-qwen2", tmp_path, dirs_exist_ok=True)
    for path in model_path("tiny").glob("*token*"):
        shutil.copy(path, tmp_path)
    for look in (lj.load, lj.describe):
        with pytest.raises(ValueError, match=r"tokenizer has \[MASK\].*family='dream' if it"):
            look(tmp_path)
    assert lj.load(tmp_path, family="qwen2").config.mask_id is None
    assert lj.load(tmp_path, family="dream").config.shift_logits
