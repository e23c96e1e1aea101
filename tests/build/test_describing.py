"""What `describe` says of checkpoints, without reading a weight."""

import pytest

import llada_jax as lj
from llada_jax.checkpoint.sources import StoredTensor
from tests.checkpoint.folders import GOLDENS, golden_tensors


@pytest.fixture(autouse=True)
def no_weight_is_read(monkeypatch):
    monkeypatch.setattr(StoredTensor, "pieces", lambda *_: pytest.fail("a tensor was read"))


def test_a_folder_is_described():
    found = lj.describe(GOLDENS / "sdar-b4")
    tensors = golden_tensors("sdar-b4").values()
    assert found.parameters == sum(tensor.size for tensor in tensors)
    assert found.bytes == sum(tensor.nbytes for tensor in tensors)
    assert found.kinds == {"F32": len(tensors)}
    assert found.presets == ("sdar",)
    assert found.missing == ("tokenizer.json", "a chat template")
    told = str(found)
    for line in (
        "family      sdar",
        "ids         mask 319, eos 317, stop 318",
        "causal between blocks of 4",
    ):
        assert line in told


def test_what_is_missing_is_named():
    missing = lj.describe(GOLDENS / "fast-dllm-v2").missing
    assert missing[0] == "a mask id (SamplerConfig(mask_id=...))"
    assert lj.describe("tiny_moe").missing == ()
    assert "8 experts, 2 a token" in str(lj.describe("tiny_moe"))
    assert "predict the next position" in str(lj.describe(GOLDENS / "dream"))


def test_what_does_not_load_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no model at"):
        lj.describe(tmp_path / "absent")
    with pytest.raises(ValueError, match="family is 'lama'; allowed"):
        lj.describe("tiny", family="lama")
