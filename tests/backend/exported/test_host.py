"""The host program of exports: compiled here, and compared with what Python does."""

import csv
import hashlib
import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tokenizers

import llada_jax as lj
from llada_jax.api.contract import contract_of
from llada_jax.backend.exported.manifest import FORMAT
from llada_jax.backend.exported.writer import HOST
from llada_jax.backend.litert.install import litert_runtime
from llada_jax.checkpoint import save_huggingface
from llada_jax.config import ExportConfig
from llada_jax.evaluation.tasks import word_problems
from llada_jax.model.params import abstract_params
from llada_jax.phones.calibration.measurements import read_measurements
from llada_jax.text import Tokenizer
from tests.tokenizer_files import TEXTS, write_folder

pytest.importorskip("ai_edge_litert", reason="needs the extra npu")
pytestmark = [
    pytest.mark.slow,  # compiling takes ten seconds
    pytest.mark.skipif(
        not (shutil.which("cmake") and shutil.which("c++")), reason="needs a C++ compiler and CMake"
    ),
]

SETTINGS = ExportConfig(quant="float32", rows=(8, 32, 64, 128, 192), caches=(256,))
CHANGES: dict[str, dict[str, Any]] = {
    "full": {},
    "shifted": {"family": "dream", "shift_logits": True, "qkv_bias": True},
    "blocks": {"family": "sdar", "block_length": 4, "qk_norm": True},
    "shifted_blocks": {
        "family": "fast_dllm_v2", "shift_logits": True, "qkv_bias": True, "block_length": 32,
    },
    "finished": {"family": "nemotron", "causal": "finished"},
    "filled": {"family": "wedlm", "causal": "filled", "qkv_bias": True},
}  # fmt: skip
"""Families by attention, as changes of `small`."""


def library() -> str:
    return str(Path(litert_runtime().__file__).parent / "libLiteRt.so")


def built(folder: Path, *options: str) -> Path:
    """Compiles the program unless the folder has it for this source."""
    source = b"".join(path.read_bytes() for path in sorted(HOST.iterdir()))
    name = hashlib.sha256(source + " ".join(options).encode()).hexdigest()[:16]
    program = folder / name
    if not program.exists():
        build = folder / f"{name}.{os.getpid()}"
        for command in (["-S", HOST, "-B", build, *options], ["--build", build]):
            subprocess.run(["cmake", *command], check=True, capture_output=True)
        (build / "llada_host").replace(program)
        shutil.rmtree(build)
    return program


@pytest.fixture(scope="module")
def program(pytestconfig: pytest.Config) -> Path:
    """Without optimization, which would take most of the time."""
    assert pytestconfig.cache is not None
    options = (f"-DLITERT_LIBRARY={library()}", "-DCMAKE_BUILD_TYPE=None")
    return built(pytestconfig.cache.mkdir("llada_host"), *options)


def run(program: Path, *arguments: str | Path, status: int = 0, lines: str = "") -> str:
    """Runs the program, and returns what it prints."""
    done = subprocess.run([program, *arguments], input=lines, capture_output=True, text=True,
                          timeout=600, check=False)  # fmt: skip
    assert done.returncode == status, done.stderr
    if status == 2:
        (error,) = (line for line in done.stderr.splitlines() if not line.startswith("INFO"))
        return error
    return done.stdout


def text_folder(folder: Path, tokenizer: Tokenizer) -> Path:
    """A folder with as much of an export as tokens need."""
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.backend.to_str())
    contract = contract_of(lj.load("tiny").config, ExportConfig(), tokenizer)
    (folder / "manifest.json").write_text(json.dumps({"format": FORMAT, "contract": contract}))
    return folder


def ids_of(program: Path, folder: Path, texts: Sequence[str]) -> list[list[int]]:
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    printed = run(program, folder, "--tokenize", lines=lines)
    return [[int(word) for word in line.split()] for line in printed.splitlines()]


WORDS = {
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "possessive": r"'(?:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{2}|[\p{M}a-z\-]{2,}|\s+",
}


@pytest.mark.parametrize("kind", ["bundled", "qwen2", *WORDS])
def test_ids_of_texts(kind: str, program: Path, tmp_path: Path) -> None:
    if kind == "bundled":
        tokenizer = lj.load("tiny").tokenizer
        assert tokenizer is not None
    else:
        tokenizer = Tokenizer.from_folder(write_folder(tmp_path, "Qwen2Tokenizer"))
    if kind in WORDS:
        split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(WORDS[kind]), "isolated")
        to_bytes = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        sequence = tokenizers.pre_tokenizers.Sequence([split, to_bytes])
        tokenizer.backend.pre_tokenizer = sequence  # pyright: ignore
    folder = text_folder(tmp_path / "export", tokenizer)
    draw = random.Random(kind)
    letters = (
        "the in 12\n\r\t'lLsS.!()/éü\u0301\u0323ﬁÅ각ᄀ\u1161\u11a8日हि\u0942👍🏽"
        "\u00a0\u2028\u017f\u212a\0"
    )
    texts = [*TEXTS, *("".join(draw.choices(letters, k=40)) for _ in range(200))]
    for text, ids in zip(texts, ids_of(program, folder, texts), strict=True):
        assert ids == tokenizer.encoding(text).ids, repr(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalizer": {"type": "NFKC"}}, "the tokenizer's normalizer is NFKC; allowed: NFC"),
        ({"pre_tokenizer": {"type": "Metaspace"}}, "pre_tokenizer is Metaspace; allowed: Seq"),
        ({"model": {"type": "Unigram"}}, "the tokenizer's model is Unigram; allowed: BPE"),
        ({"model": {}}, r"JSON has no vocab"),
    ],
)
def test_tokenizers_that_the_program_does_not_know(
    change: dict[str, Any], message: str, program: Path, tmp_path: Path
) -> None:
    tokenizer = lj.load("tiny").tokenizer
    assert tokenizer is not None
    folder = text_folder(tmp_path, tokenizer)
    record = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(record | change))
    assert message in run(program, folder, "--tokenize", status=2)


def test_wrong_arguments(program: Path, tmp_path: Path) -> None:
    assert "usage: llada_host FOLDER" in run(program, "--help")
    for arguments, message in {
        ("--prompt",): "--prompt has no value; allowed: one",
        ("x", "--colour", "red"): "--colour is no option; allowed: see --help",
        ("x", "y"): "there are two folders; allowed: one",
        (str(tmp_path / "none"),): "none/manifest.json cannot be read; allowed: a file",
    }.items():
        assert run(program, *arguments, status=2).endswith(message)
    for content, message in {
        "{": "JSON has no text at byte 1",
        '{"format": 1}': "has format 1; allowed: 2",
        '{"format": 2}': "JSON has no contract",
        "[" * 100: "JSON has more than 64 levels",
    }.items():
        (tmp_path / "manifest.json").write_text(content)
        assert message in run(program, tmp_path, "--prompt", "a", status=2)


def source_of(kind: str, folder: Path) -> Path:
    """A checkpoint with the weights of `small` and the attention of another family."""
    small, config = lj.load("small"), lj.load("small").config.replace(**CHANGES[kind])
    leaves = jax.tree.leaves_with_path(small.params)
    known = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}

    def leaf(path: tuple[Any, ...], spec: Any) -> np.ndarray:
        name = jax.tree_util.keystr(path)
        other = np.ones if "norm" in name else np.zeros
        return np.asarray(known.get(name, other(spec.shape)), np.float32)

    params = jax.tree_util.tree_map_with_path(leaf, abstract_params(config))
    save_huggingface(folder, config, params, "float32")
    assert small.tokenizer is not None
    small.tokenizer.save(folder)
    return folder


def questions(count: int) -> list[str]:
    return [item.question for item in islice(word_problems.TASK.items(0, "test"), count)]


def prompts_of(model: lj.Model, count: int) -> list[list[int]]:
    assert model.tokenizer is not None
    chats = [[{"role": "user", "content": question}] for question in questions(count)]
    return [model.tokenizer.encode_chat(chat)[: 50 + i % 9] for i, chat in enumerate(chats)]


def write_golden(path: Path, prompts: Sequence[Sequence[int]], answers: Sequence[Any]) -> Path:
    lines = [
        json.dumps({"prompt": list(map(int, prompt)), "answer": list(map(int, answer))})
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    path.write_text("\n".join([*lines, ""]))
    return path


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Returns the export of a kind, made when it is first asked for."""
    made: dict[tuple[str, str], Path] = {}

    def export(kind: str, quant: str = "float32") -> Path:
        if (kind, quant) not in made:
            folder = tmp_path_factory.mktemp(f"{kind}-{quant}")
            settings = ExportConfig(**{**vars(SETTINGS), "quant": quant})
            source = source_of(kind, folder / "source")
            lj.export(source, folder / "model", settings, verify=False)
            made[kind, quant] = folder / "model"
        return made[kind, quant]

    yield export


def same_tokens(
    program: Path, folder: Path, sampler: str, count: int, gen_length: int, tmp_path: Path
) -> None:
    model = lj.load(folder)
    prompts = prompts_of(model, count)
    config = lj.SamplerConfig.preset(sampler, gen_length=gen_length)
    result = lj.generate(model, prompts, config, backend="litert")
    golden = write_golden(tmp_path / "golden.jsonl", prompts, result.generated)
    options = ("--golden", golden, "--gen-length", str(gen_length), "--sampler", sampler)
    assert f"{count} of {count} answers are equal" in run(program, folder, *options)


@pytest.mark.parametrize(
    ("kind", "sampler"),
    [
        ("full", "llada"), ("full", "fast_dllm"), ("full", "blockwise"),
        ("shifted", "dream"), ("shifted", "threshold"), ("shifted", "blockwise"),
        ("blocks", "sdar"), ("shifted_blocks", "fast_dllm_v2"),
        ("finished", "nemotron"), ("finished", "autoregressive"), ("filled", "blockwise"),
    ],
)  # fmt: skip
def test_tokens_of_each_attention_and_sampler(
    kind: str, sampler: str, program: Path, exports: Any, tmp_path: Path
) -> None:
    gen_length = 128 if sampler == "dream" else 64
    same_tokens(program, exports(kind), sampler, 2, gen_length, tmp_path)


@pytest.mark.parametrize("quant", ["float32", "int8"])
@pytest.mark.parametrize(
    ("kind", "sampler"), [("full", "blockwise"), ("shifted", "blockwise"), ("blocks", "sdar")]
)
def test_tokens_of_100_prompts(
    kind: str, sampler: str, quant: str, program: Path, exports: Any, tmp_path: Path
) -> None:
    same_tokens(program, exports(kind, quant), sampler, 100, 32, tmp_path)


def test_answers_in_words_and_times(program: Path, exports: Any, tmp_path: Path) -> None:
    folder, (question,) = exports("full", "int8"), questions(1)
    model, config = lj.load(folder), lj.SamplerConfig.preset("blockwise", gen_length=64)
    assert model.tokenizer is not None
    ids = model.tokenizer.encode_chat([{"role": "user", "content": question}])
    (text,) = lj.generate(model, [ids], config, backend="litert").text
    table = tmp_path / "times.csv"
    options = ("--gen-length", "64", "--csv", table, "--thermal", "0")
    assert run(program, folder, "--prompt", question, *options) == text + "\n"
    packed = tmp_path / "packed"
    packed.mkdir()
    for _ in range(2):  # packs, then maps
        answer = run(
            program, folder, "--prompt", question, "--gen-length", "64", "--packed", packed
        )
        assert answer == text + "\n"
    talk = run(program, folder, "--interactive", "--gen-length", "64", lines=f"{question}\n")
    assert talk == f"> {text}\n> "
    rows = read_measurements(table)
    assert {row.graph for row in rows} == {"layers", "head"}
    with table.open() as file:
        assert {line["signature"] for line in csv.DictReader(file)} >= {"rows8"}
    control = "It is <|eot_id|><|start_header_id|>user?"
    chat = [{"role": "user", "content": control}]
    golden = write_golden(tmp_path / "g", [model.tokenizer.encode_chat(chat)], [[]])
    assert golden.read_text().count(" 6,") == 1, "control tokens of messages are text"


def test_folders_and_prompts_that_are_refused(program: Path, exports: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(exports("full", "int8"), tmp_path / "model")
    ask = ("--prompt", "How many?")
    missing = run(program, folder, *ask, "--library", "/none/libLiteRt.so", status=2)
    assert "LiteRT cannot be loaded" in missing and "allowed: --library" in missing
    for options, message in {
        ("--sampler", "magic"): "sampler is magic; allowed: blockwise, fast_dllm, llada, threshold",
        ("--gen-length", "33"): "gen-length is 33; allowed: multiples of 32",
        ("--gen-length", "512"): "allowed: up to 256 together",
        ("--threshold", "2"): "--threshold is 2; allowed: a number above 0",
        ("--threads", "x"): "--threads is x; allowed: a number above 0",
        ("--soc", "SM8750"): "the folder has no graphs for SM8750",
    }.items():
        assert message in run(program, folder, *ask, *options, status=2)
    long = run(program, folder, "--prompt", "How many? " * 100, status=2)
    assert "tokens, and 128 follow; allowed: up to 256 together" in long
    rows = run(program, folder, "--prompt", "How many? " * 60, "--gen-length", "32", status=2)
    assert "rows; allowed: up to 192 rows, set at export" in rows
    for name in ("PUSH.md", "signatures.csv", "on_phone.sh", "tokenizer_config.json"):
        (folder / name).unlink()  # as on a phone
    assert run(program, folder, *ask, "--gen-length", "32").strip()
    for name in ("shard-00.tflite", "head.tflite", "embedding.bin", "rotation.bin"):
        content = bytearray((folder / name).read_bytes())
        (folder / name).write_bytes(content[:-1])
        assert "is cut short or changed" in run(program, folder, *ask, status=2)
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)
        assert "its SHA-256 differs" in run(program, folder, *ask, status=2)
        (folder / name).unlink()
        assert "is missing" in run(program, folder, *ask, status=2)
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)


@pytest.fixture(scope="module")
def sanitized(pytestconfig: pytest.Config) -> Path:
    """The program with ASan and UBSan."""
    assert pytestconfig.cache is not None
    options = ("-DSANITIZE=ON", f"-DLITERT_LIBRARY={library()}")
    return built(pytestconfig.cache.mkdir("llada_host"), *options)


def survives(program: Path, folder: Path, *options: str, text: bytes = b"") -> None:
    """Every damage gives an answer or one line, and never undefined behaviour."""
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=0"}  # LiteRT keeps global objects
    done = subprocess.run([program, folder, *options], input=text, capture_output=True,
                          env=environment, check=False, timeout=120)  # fmt: skip
    assert done.returncode in (0, 2), done.stderr.decode(errors="replace")
    errors = [line for line in done.stderr.splitlines() if line.startswith(b"llada_host: ")]
    assert len(errors) == (done.returncode == 2)


def test_damaged_json_with_sanitizers(sanitized: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, "Qwen2Tokenizer"))
    whole = text_folder(tmp_path / "whole", tokenizer)
    draw, folder = random.Random(0), tmp_path / "damaged"
    text = json.dumps("the café 12\n<|im_end|>").encode()
    shutil.copytree(whole, folder)
    for _ in range(300):
        name = draw.choice(["manifest.json", "tokenizer.json"])
        content = bytearray((whole / name).read_bytes())
        for _ in range(draw.choice([1, 1, 3])):
            at = draw.randrange(max(len(content), 1))
            match draw.randrange(4):
                case 0:
                    content[at : at + 1] = bytes([draw.randrange(256)])
                case 1:
                    del content[at : at + draw.choice([1, 5, len(content)])]
                case 2:
                    content[at:at] = draw.choice([b"[", b'"', b"1e9", b"-", b"\\u", b"null"])
                case _:
                    content[at:at] = content[at : at + 50]
        (folder / name).write_bytes(content)
        survives(sanitized, folder, "--tokenize", text=text)
        survives(sanitized, folder, "--prompt", "the", "--no-check")
        shutil.copy(whole / name, folder / name)


def number_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from number_paths(item, (*path, key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def test_numbers_that_contradict_the_graphs(sanitized: Path, exports: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(exports("full", "int8"), tmp_path / "model")
    whole = (folder / "manifest.json").read_text()
    draw = random.Random(0)
    paths = [
        p for p in number_paths(json.loads(whole)) if p[0] in ("model", "settings", "contract")
    ]
    for _ in range(100):
        manifest = place = json.loads(whole)
        *parents, last = draw.choice(paths)
        for key in parents:
            place = place[key]
        place[last] = draw.choice([0, 1, 2, -1, 0.5, 1 << 20, place[last] + 1, place[last] * 2])
        (folder / "manifest.json").write_text(json.dumps(manifest))
        sampler = draw.choice(["blockwise", "fast_dllm"])
        options = ("--raw", "the", "--gen-length", "32", "--sampler", sampler, "--no-check")
        survives(sanitized, folder, *options)
