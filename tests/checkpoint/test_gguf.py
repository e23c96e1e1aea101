"""GGUF files, written here with the `gguf` package as llama.cpp's converter lays them out."""

import builtins
from pathlib import Path
from typing import Any

import gguf
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import llada_jax as lj
from llada_jax.checkpoint import load_params
from llada_jax.checkpoint.config_json import config_from_hf
from llada_jax.checkpoint.gguf_metadata import config_from_gguf, gguf_names
from llada_jax.checkpoint.sources import StoredTensor
from llada_jax.model.families.family import families
from llada_jax.model.layers import rope_stretch
from llada_jax.model.quantize import QuantArray, dequantize
from tests.checkpoint.folders import (
    TOLERANCE,
    golden_config,
    golden_forward,
    golden_tensors,
    loaded,
    logits,
    same_bits,
    write_folder,
)

AUTOREGRESSIVE = ("ar-llama", "ar-llama3", "ar-qwen2", "ar-qwen3")
MODELS = ("llada-mha", "llada-gqa", "llada-moe", "dream", "rnd1", *AUTOREGRESSIVE)
EVERY_PAIR = [
    pytest.param(
        model, kind, marks=[] if kind == "Q8_0" or model == "llada-gqa" else pytest.mark.slow
    )
    for model in MODELS
    for kind in ("F32", "F16", "BF16", "Q8_0", "Q4_0")
]
"""All models in one kind and one model in all kinds; the others are slow."""
ARCHITECTURES = {"llada_moe": "llada-moe"}
DREAM = {
    "general.architecture": "dream",
    "dream.block_count": 28,
    "dream.embedding_length": 3584,
    "dream.feed_forward_length": 18944,
    "dream.attention.head_count": 28,
    "dream.attention.head_count_kv": 4,
    "dream.rope.freq_base": 1e6,
    "dream.attention.layer_norm_rms_epsilon": 1e-6,
}
Tensors = dict[str, np.ndarray]


def interleave(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows as the converter orders them: the two halves of a head, in turns."""
    size = len(weight) // n_heads
    order = []
    for head in range(n_heads):
        for index in range(size // 2):
            order += [head * size + index, head * size + size // 2 + index]
    return weight[order]


def gguf_tensors(model: str, tensors: Tensors, permuted: bool = True) -> Tensors:
    """A golden's tensors under GGUF's names, with the converter's order of rows."""
    config = config_from_hf(golden_config(model))
    renamed = {}
    for path, template in families()[config.family].names.items():
        for layer in range(config.n_layers):
            if "{e}" in template and config.moe is not None:
                experts = [template.format(i=layer, e=e) for e in range(config.moe.n_experts)]
                if experts[0] in tensors:
                    stacked = np.stack([tensors[name] for name in experts])
                    renamed[gguf_names()[f"routed:{path}"].format(i=layer)] = stacked
                continue
            name = template.format(i=layer)
            if name not in tensors:
                continue
            tensor = tensors[name]
            if (
                permuted
                and config.family in ("llada", "llama")
                and path.endswith((".query", ".key"))
            ):
                heads = config.n_heads if path.endswith(".query") else config.n_kv_heads
                tensor = interleave(tensor, heads)
            renamed[gguf_names()[path.removeprefix("dense:")].format(i=layer)] = tensor
    assert sum(tensor.size for tensor in renamed.values()) == sum(map(np.size, tensors.values()))
    if config.rope_scaling == "llama3":
        renamed["rope_freqs.weight"] = np.float32(1 / rope_stretch(config))
    return renamed


def writer(path: Path, model: str, architecture: str | None = None) -> gguf.GGUFWriter:
    config = config_from_hf(golden_config(model))
    out = gguf.GGUFWriter(path, architecture or ARCHITECTURES.get(config.family, config.family))
    if config.moe is not None:
        out.add_expert_count(config.moe.n_experts)
        out.add_expert_used_count(config.moe.experts_per_token)
        out.add_expert_feed_forward_length(config.moe.expert_width)
    out.add_block_count(config.n_layers)
    out.add_embedding_length(config.width)
    out.add_feed_forward_length(config.ffn_width)
    out.add_head_count(config.n_heads)
    out.add_head_count_kv(config.n_kv_heads)
    out.add_rope_freq_base(config.rope_theta)
    out.add_layer_norm_rms_eps(config.norm_eps)
    out.add_context_length(config.max_length)
    if config.mask_id is not None:
        out.add_mask_token_id(config.mask_id)
    out.add_key_length(config.head_dim)
    out.add_eos_token_id(config.eos_id)
    if config.pad_id is not None:
        out.add_pad_token_id(config.pad_id)
    out.add_token_list(["a", "b"])
    if config.family == "llada":
        out.add_vocab_size(config.vocab_size)
        out.add_rope_dimension_count(config.head_dim)
        out.add_diffusion_shift_logits(False)
    return out


def finish(out: gguf.GGUFWriter) -> None:
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def write_gguf(path: Path, model: str, kind: str, tensors: Tensors | None = None) -> Path:
    """A GGUF file with matrices of `kind`; as in llama.cpp, vectors are always F32."""
    out = writer(path, model)
    qtype = gguf.GGMLQuantizationType[kind]
    for name, tensor in gguf_tensors(model, tensors or golden_tensors(model)).items():
        if tensor.ndim == 1 or not fits(tensor, kind):
            out.add_tensor(name, tensor)
        else:
            out.add_tensor(name, gguf.quants.quantize(tensor, qtype), raw_dtype=qtype)
    finish(out)
    return path


def fits(tensor: np.ndarray, kind: str) -> bool:
    """As in llama.cpp, rows that do not divide into blocks have another kind: here F32."""
    in_block, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    return kind != "F32" and tensor.shape[-1] % in_block == 0


def through(kind: str, tensors: Tensors) -> Tensors:
    """The tensors with the matrices rounded to values of `kind`."""
    if kind == "F32":
        return tensors
    qtype = gguf.GGMLQuantizationType[kind]
    return {
        name: tensor
        if tensor.ndim == 1 or not fits(tensor, kind)
        else gguf.quants.dequantize(gguf.quants.quantize(tensor, qtype), qtype)
        for name, tensor in tensors.items()
    }


@pytest.mark.parametrize("model", MODELS)
def test_f32_agrees_with_pytorch(model: str, tmp_path: Path) -> None:
    config, params = loaded(write_gguf(tmp_path / "model.gguf", model, "F32"))
    assert config == config_from_hf(golden_config(model))
    tokens, expected, _ = golden_forward(model)
    np.testing.assert_allclose(logits(config, params, tokens), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(("model", "kind"), EVERY_PAIR)
def test_every_kind_loads_as_its_dequantized_weights(model: str, kind: str, tmp_path: Path) -> None:
    tensors = through(kind, golden_tensors(model))
    folder = write_folder(tmp_path / "hf", golden_config(model), tensors)
    path = write_gguf(tmp_path / "model.gguf", model, kind)
    config, params = loaded(path, "float32")
    expected_config, expected = loaded(folder)
    assert config == expected_config
    assert same_bits(params, expected)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("F32", np.float32), ("F16", np.float16), ("BF16", ml_dtypes.bfloat16),
     ("Q8_0", ml_dtypes.bfloat16), ("Q4_0", ml_dtypes.bfloat16)],
)  # fmt: skip
def test_the_dtype_of_the_file(kind: str, dtype: Any, tmp_path: Path) -> None:
    _, params = loaded(write_gguf(tmp_path / "model.gguf", "llada-gqa", kind))
    assert params.embedding.dtype == dtype
    assert params.final_norm.dtype == dtype


@pytest.mark.parametrize("model", ["llada-gqa", "dream"])
def test_files_of_diffuse_cpp(model: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", golden_config(model), golden_tensors(model))
    expected_config, expected = loaded(folder)
    for kind in (expected_config.family, "llada2_moe"):
        out = writer(tmp_path / f"{kind}.gguf", model, "diffuse")
        out.add_string("diffuse.model_type", kind)
        out.add_uint32("diffuse.mask_token_id", 7)
        for name, tensor in gguf_tensors(model, golden_tensors(model), permuted=False).items():
            out.add_tensor(name, tensor)
        finish(out)
    config, params = loaded(tmp_path / f"{expected_config.family}.gguf")
    assert config == expected_config.replace(mask_id=7)
    assert same_bits(params, expected)
    with pytest.raises(ValueError, match="model_type is 'llada2_moe'; allowed: 'llada', 'dream'"):
        loaded(tmp_path / "llada2_moe.gguf")


def test_q4_0_keeps_its_integers(tmp_path: Path) -> None:
    tensors = golden_tensors("llada-gqa")
    _, params = loaded(write_gguf(tmp_path / "model.gguf", "llada-gqa", "Q4_0"), "int4")
    attention = params.layers[1].attention
    for leaf, letter in ((attention.query, "q"), (attention.key, "k"), (attention.value, "v")):
        assert isinstance(leaf, QuantArray)
        name = f"model.transformer.blocks.1.{letter}_proj.weight"
        expected = through("Q4_0", {name: tensors[name]})[name]
        np.testing.assert_array_equal(dequantize(leaf, jnp.float32), expected)


@pytest.mark.parametrize(("kind", "dtype"), [("F32", "int8"), ("F16", "int4"), ("Q8_0", "int8")])
def test_other_kinds_are_quantized_again(kind: str, dtype: str, tmp_path: Path) -> None:
    tensors = through(kind, golden_tensors("llada-gqa"))
    folder = write_folder(tmp_path / "hf", golden_config("llada-gqa"), tensors)
    _, expected = loaded(folder, dtype)
    _, params = loaded(write_gguf(tmp_path / "model.gguf", "llada-gqa", kind), dtype)
    assert same_bits(params, expected)


def test_without_an_output_matrix_the_embedding_is_the_head(tmp_path: Path) -> None:
    tensors = golden_tensors("llada-mha")
    del tensors["model.transformer.ff_out.weight"]
    config, params = loaded(write_gguf(tmp_path / "model.gguf", "llada-mha", "F32", tensors))
    assert config.tied_embeddings
    assert params.head is None


def test_the_released_mask_is_used_if_the_file_names_none() -> None:
    config = config_from_gguf(DREAM, 152064)
    assert config.mask_id == 151666
    assert config.shift_logits
    assert config.head_dim == 128
    with pytest.raises(ValueError, match=r"rope\.scaling\.type is 'yarn'; allowed: 'none'"):
        config_from_gguf({**DREAM, "dream.rope.scaling.type": "yarn"}, 152064)


@pytest.mark.parametrize(
    ("value", "allowed"), [("28", "a number"), (float("nan"), "a number"), (0, "1 or more")]
)
def test_metadata_is_numbers(value: object, allowed: str) -> None:
    with pytest.raises(ValueError, match=f"is {value!r}; allowed: {allowed}"):
        config_from_gguf({**DREAM, "dream.attention.head_count": value}, 152064)


@pytest.fixture
def no_tensor_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*arguments: Any) -> None:
        pytest.fail("a tensor was read")

    monkeypatch.setattr(StoredTensor, "pieces", read)


@pytest.mark.usefixtures("no_tensor_is_read")
class TestErrors:
    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=r"no file .*absent\.gguf"):
            loaded(tmp_path / "absent.gguf")

    @pytest.mark.parametrize("content", [b"", b"GGUF", b"no GGUF at all" * 40])
    def test_a_file_in_another_format_is_refused(self, content: bytes, tmp_path: Path) -> None:
        (tmp_path / "model.gguf").write_bytes(content)
        with pytest.raises(ValueError, match=r"model\.gguf is no GGUF file, or is cut short: "):
            loaded(tmp_path / "model.gguf")

    @pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
    def test_cut_short(self, share: float, tmp_path: Path) -> None:
        path = write_gguf(tmp_path / "model.gguf", "llada-gqa", "Q8_0")
        whole = path.read_bytes()
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(ValueError, match=r"model\.gguf is no GGUF file, or is cut short: "):
            loaded(path)

    def test_an_unknown_architecture(self, tmp_path: Path) -> None:
        out = gguf.GGUFWriter(tmp_path / "model.gguf", "gpt2")
        out.add_tensor("token_embd.weight", np.zeros((8, 32), np.float32))
        finish(out)
        with pytest.raises(ValueError, match=r"is 'gpt2'; allowed: 'llada', 'llada-moe', 'dream'"):
            loaded(tmp_path / "model.gguf")

    def test_a_missing_key(self, tmp_path: Path) -> None:
        out = gguf.GGUFWriter(tmp_path / "model.gguf", "llada")
        out.add_tensor("token_embd.weight", np.zeros((8, 32), np.float32))
        finish(out)
        with pytest.raises(ValueError, match=r"metadata lacks 'llada\.embedding_length'"):
            loaded(tmp_path / "model.gguf")

    def test_missing_and_misshapen_tensors(self, tmp_path: Path) -> None:
        path = tmp_path / "model.gguf"
        out = writer(path, "llada-gqa")
        out.add_tensor("token_embd.weight", np.zeros((320, 64), np.float32))
        finish(out)
        with pytest.raises(ValueError, match=r"lacks blk\.0\.attn_norm\.weight, .* and 15 more"):
            loaded(path)
        tensors = golden_tensors("llada-gqa")
        tensors["model.transformer.blocks.1.ff_norm.weight"] = np.zeros(63, np.float32)
        write_gguf(path, "llada-gqa", "F32", tensors)
        with pytest.raises(
            ValueError, match=r"blk\.1\.ffn_norm\.weight is \[63\], expected \[64\]"
        ):
            loaded(path)

    def test_the_extra_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write_gguf(tmp_path / "model.gguf", "llada-gqa", "F32")
        real_import = builtins.__import__

        def without_gguf(name: str, *arguments: Any) -> Any:
            if name == "gguf":
                raise ModuleNotFoundError(name)
            return real_import(name, *arguments)

        monkeypatch.setattr(builtins, "__import__", without_gguf)
        with pytest.raises(ImportError, match=r"GGUF files need the extra 'gguf' of llada_jax"):
            loaded(path)


class TestFamiliesThatTheFileDoesNotName:
    def test_a_diffusion_model_converted_as_llama(self, tmp_path: Path) -> None:
        golden = "stable-diffcoder"
        tensors = gguf_tensors(golden, golden_tensors(golden), permuted=False)
        config = config_from_hf(golden_config(golden))
        for name in tensors:
            if "attn_q." in name or "attn_k." in name:
                heads = config.n_heads if "attn_q." in name else config.n_kv_heads
                tensors[name] = interleave(tensors[name], heads)
        out = writer(tmp_path / "model.gguf", golden, "llama")
        for name, tensor in tensors.items():
            out.add_tensor(name, tensor)
        finish(out)
        with pytest.raises(ValueError, match="architecture of an autoregressive model, 'llama'"):
            loaded(tmp_path / "model.gguf")
        found, params, _ = load_params(tmp_path / "model.gguf", family="stable_diffcoder")
        assert (found.family, found.block_length) == ("stable_diffcoder", 4)
        tokens, expected, _ = golden_forward(golden)
        np.testing.assert_allclose(logits(found, params, tokens), expected, rtol=0, atol=TOLERANCE)

    def test_a_block_that_only_the_caller_knows(self, tmp_path: Path) -> None:
        out = writer(tmp_path / "model.gguf", "sdar-b4", "qwen3")
        for name, tensor in gguf_tensors("sdar-b4", golden_tensors("sdar-b4")).items():
            out.add_tensor(name, tensor)
        finish(out)
        with pytest.raises(ValueError, match=r"block_length is in no file of .*; allowed: block_l"):
            lj.load(tmp_path / "model.gguf", family="sdar")
        model = lj.load(tmp_path / "model.gguf", family="sdar", block_length=4)
        assert model.config.block_length == 4 and model.config.qk_norm


def test_other_divisors_of_rope_are_refused(tmp_path: Path) -> None:
    out = writer(tmp_path / "model.gguf", "ar-llama")
    out.add_tensor("rope_freqs.weight", np.linspace(1, 9, 8, dtype=np.float32))
    for name, tensor in gguf_tensors("ar-llama", golden_tensors("ar-llama")).items():
        out.add_tensor(name, tensor)
    finish(out)
    with pytest.raises(
        ValueError, match=r"rope_freqs\.weight is .*; allowed: the divisors of Llama"
    ):
        loaded(tmp_path / "model.gguf")


def test_biases_that_the_family_lacks_are_refused(tmp_path: Path) -> None:
    out = writer(tmp_path / "model.gguf", "ar-llama")
    for name, tensor in gguf_tensors("ar-llama", golden_tensors("ar-llama")).items():
        out.add_tensor(name, tensor)
    out.add_tensor("blk.0.attn_q.bias", np.zeros(64, np.float32))
    finish(out)
    with pytest.raises(ValueError, match=r"holds blk\.0\.attn_q\.bias, which family 'llama' lacks"):
        loaded(tmp_path / "model.gguf")
