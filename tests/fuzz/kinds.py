"""The kinds of files that users load: for each, a valid file, its damage, and its loader."""

import contextlib
import csv
import io
import json
import os
import re
import shutil
import sys
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, Protocol

import numpy as np
from safetensors import SafetensorError, safe_open

from llada_jax.checkpoint import load_params, read_tokenizer, save_huggingface
from llada_jax.checkpoint.config_json import config_from_hf
from llada_jax.evaluation.environment import environment
from llada_jax.evaluation.generations import Generation, GenerationBatch, GenerationStore
from llada_jax.evaluation.task import Item
from llada_jax.experts.routing import (
    RoutingTrace,
    experts_per_step,
    gate_accuracy,
    imbalance,
    row_reuse,
)
from llada_jax.io.archive import save_archive
from llada_jax.phones.calibration.calibrate import calibrate
from llada_jax.phones.calibration.measurements import read_measurements
from llada_jax.phones.profile import PROFILES, load_profile
from llada_jax.phones.workload import from_trace
from llada_jax.sampler.replay import replay
from llada_jax.sampler.trace import Trace
from llada_jax.testing import TOY
from llada_jax.text import Tokenizer
from llada_jax.training.sft import read_examples
from tests.backend.models import GQA, random_params
from tests.checkpoint.folders import write_shards
from tests.constraint.random_forms import pattern_and_text, schema_and_text
from tests.experts.traces import small_trace
from tests.fuzz.damage import (
    HOSTILE_NAMES,
    VALUES,
    Damage,
    damage_bytes,
    damage_json,
    damage_json_file,
    flip_bits,
)
from tests.fuzz.released_kinds import Adapter, HubCache, Mlx
from tests.phones.calibration.test_measurements import QNN_HEADER, field, real
from tests.phones.calibration.test_measurements import ROW as MEASURED
from tests.sampler.drawn_trace import drawn_trace
from tests.tokenizer_families import FAMILIES
from tests.tokenizer_files import (
    TEMPLATE,
    add_metadata,
    gguf_metadata,
    sentencepiece_metadata,
    write_folder,
)

MODEL = GQA.replace(n_layers=1)
TINY = Path(__file__).parents[2] / "llada_jax" / "assets" / "tiny"
RUN_CODE = "touch outside/ran"


class Kind(Protocol):
    """Makes a valid artifact, damages a copy, and loads it."""

    def build(self, folder: Path) -> None: ...

    def damage(self, rng: Random, folder: Path) -> Damage: ...

    def load(self, folder: Path) -> Any: ...


def _hostile_name(rng: Random, folder: Path, name: str) -> str:
    absolute = folder.parent.parent / "outside" / name
    return rng.choice(HOSTILE_NAMES).format(name=name, absolute=absolute)


class Safetensors:
    """Headers, data and the index of shards."""

    weights = ""

    def build(self, folder: Path) -> None:
        save_huggingface(folder, MODEL, random_params(MODEL), "float32")
        with safe_open(folder / "model.safetensors", "numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        (folder / "model.safetensors").unlink()
        write_shards(folder, json.loads((folder / "config.json").read_text()), tensors, 2)

    def damage(self, rng: Random, folder: Path) -> Damage:
        index = folder / "model.safetensors.index.json"
        file = rng.choice(sorted(folder.glob("*.safetensors")))
        kind = rng.choice(["header", "header", "header", "length", "bytes", "data", "index"])
        if kind == "index":
            content = json.loads(index.read_text())
            names = list(content["weight_map"])
            name = rng.choice(names)
            other = _hostile_name(rng, folder, content["weight_map"][name])
            other = rng.choice([other, other, content["weight_map"][rng.choice(names)]])
            same = content["weight_map"][name] == other
            content["weight_map"][name] = other
            index.write_text(json.dumps(content))
            return Damage(f"index: {name} in {other[:40]!r}", states_other=same)
        data = file.read_bytes()
        length = int.from_bytes(data[:8], "little")
        if kind == "bytes":
            label, now = damage_bytes(rng, file), file.read_bytes()
            same = len(now) == len(data) and now[: 8 + length] == data[: 8 + length]
            return Damage(label, raw_weights=same)
        if kind == "data":
            return Damage(flip_bits(rng, file, 8 + length), raw_weights=True)
        if kind == "length":
            other = rng.choice([0, 1, length - 1, length + 1, length + 8, 2**31, 2**63, 2**64 - 1])
            file.write_bytes(other.to_bytes(8, "little") + data[8:])
            return Damage(f"header of {other} bytes, not {length}")
        header, done = self._header(rng, json.loads(data[8 : 8 + length]))
        file.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
        return done

    def _header(self, rng: Random, header: dict[str, Any]) -> tuple[bytes, Damage]:
        name, other = rng.sample(sorted(set(header) - {"__metadata__"}), 2)
        entry = header[name]
        begin, end = entry["data_offsets"]
        kind = rng.choice(["alias", "shift", "negative", "duplicate", "hole", "value", "swap"])
        if kind == "alias":
            entry["data_offsets"] = [0, end - begin]
        elif kind == "shift":
            entry["data_offsets"] = [begin + 4, end + 4]
        elif kind == "negative":
            entry["data_offsets"] = [begin - end, 0]
        elif kind == "swap":
            entry["data_offsets"], entry["dtype"] = [end, begin], rng.choice(["F32", "I8", "F64"])
        elif kind == "hole":
            for each in header.values():
                if "data_offsets" in each and each["data_offsets"][0] >= begin:
                    each["data_offsets"] = [at + 4 for at in each["data_offsets"]]
        elif kind == "duplicate":
            text = json.dumps(header)
            twice = json.dumps({name: header[other]})[1:-1]
            return f"{text[:-1]}, {twice}}}".encode(), Damage(f"header: {name} twice")
        else:
            header, done = damage_json(rng, header, "header")
            return json.dumps(header).encode(errors="replace"), done._replace(states_other=False)
        return json.dumps(header).encode(), Damage(f"header: {kind} of {name}")

    def load(self, folder: Path) -> Any:
        return load_params(folder)[:2]

    def refuses(self, folder: Path) -> bool:
        """Whether the official library does not read it."""
        try:
            for path in folder.glob("*.safetensors"):
                with safe_open(path, "numpy") as file:
                    for name in file.keys():
                        file.get_tensor(name)
        except (SafetensorError, OSError, ValueError, TypeError, OverflowError, MemoryError):
            return True
        return False


_ADDED_KEYS = ("temperature", "_name_or_path", "rope_parameters", "rope_scaling", "quantization",
               "quantization_config", "auto_map", "layer_types", "vision_config", "new_key",
               "eos_token_id", "architectures", "expert_capacity")  # fmt: skip


class ConfigJson(Safetensors):
    """The configuration of a checkpoint."""

    def damage(self, rng: Random, folder: Path) -> Damage:
        if rng.random() < 0.3:
            hf = json.loads((folder / "config.json").read_text())
            key, value = rng.choice(_ADDED_KEYS), rng.choice([*VALUES, {"rope_type": "llama3"}])
            (folder / "config.json").write_text(json.dumps(hf | {key: value}))
            inert = (not value and key != "eos_token_id") or key in _ADDED_KEYS[:2]
            return Damage(f"{key} is {str(value)[:40]}", states_other=not inert)
        done = damage_json_file(rng, folder / "config.json")
        other = ": delete " in done.label or "eos_token_id" in done.label  # then another file's
        return done._replace(states_other=done.states_other or other)


class TokenizerFiles:
    """`tokenizer.json` and the files that belong to it."""

    def build(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        for path in TINY.glob("*token*"):
            shutil.copy(path, folder)

    def damage(self, rng: Random, folder: Path) -> Damage:
        done = damage_json_file(rng, rng.choice(sorted(folder.iterdir())))
        return done._replace(states_other=True)  # another tokenizer is also valid

    def load(self, folder: Path) -> Any:
        return self._used(Tokenizer.from_folder(folder))

    def _used(self, tokenizer: Tokenizer) -> Any:
        ids = tokenizer.encode("Tom had <|mask|> 12 pens.")
        chat = None
        if tokenizer.chat_template is not None:
            chat = tokenizer.encode_chat([{"role": "user", "content": "2 + 3"}])
        known = (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.mask_id)
        return ids, tokenizer.decode(ids), chat, known, tokenizer.vocab_size


class VocabularyFiles(TokenizerFiles):
    """`vocab.json` and `merges.txt` and the files that belong to them."""

    def build(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        write_folder(folder, "Qwen2Tokenizer", chat_template=TEMPLATE)

    def damage(self, rng: Random, folder: Path) -> Damage:
        path = rng.choice(sorted(folder.iterdir()))
        if path.suffix == ".json":
            return damage_json_file(rng, path)._replace(states_other=True)
        lines = ["a", "a b c", "Q Q", " ", "a  b", "\u2028 a", "he he", "t h"] * rng.choice(
            [1, 9999]
        )
        kind = rng.choice(["bytes", "bytes", "lines"])
        if kind == "bytes":
            return Damage(damage_bytes(rng, path), states_other=True)
        path.write_text("\n".join(rng.sample(lines, rng.randrange(1, len(lines)))))
        return Damage("other merges", states_other=True)


class GgufTokenizer(TokenizerFiles):
    """Tokenizers in the metadata of GGUF files: their bytes, and their values."""

    def build(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._write(folder, gguf_metadata("gpt-2"))

    def damage(self, rng: Random, folder: Path) -> Damage:
        if rng.random() < 0.3:
            return Damage(damage_bytes(rng, folder / "model.gguf"), states_other=True)
        metadata = rng.choice([gguf_metadata("gpt-2"), sentencepiece_metadata()])
        key = f"tokenizer.{rng.choice(['ggml.tokens', 'ggml.scores', 'ggml.token_type'])}"
        long = {"tokens": ["a" * 10**5, "", "a"], "scores": [1e38, -1e38], "token_type": [9, -1]}
        value = rng.choice([*long[key.rpartition(".")[2]], None])
        kind = rng.choice(["damage", "damage", "list"])
        if kind == "damage":
            metadata, done = damage_json(rng, metadata, "metadata")
            label = done.label
        else:
            items = metadata.get(key) or [value]
            items[rng.randrange(len(items))] = value
            metadata, label = {**metadata, key: items}, f"{key}: {str(value)[:20]}"
        (folder / "metadata.json").write_text(json.dumps(metadata))
        return Damage(label, states_other=True)

    def load(self, folder: Path) -> Any:
        if (folder / "metadata.json").exists():
            metadata = json.loads((folder / "metadata.json").read_text())
            tokenizer = Tokenizer.from_gguf(metadata, folder / "metadata.json")
        else:
            tokenizer = read_tokenizer(folder / "model.gguf")
        return tokenizer and self._used(tokenizer)

    def _write(self, folder: Path, metadata: dict[str, Any]) -> None:
        import gguf

        out = gguf.GGUFWriter(folder / "model.gguf", "llada")
        add_metadata(out, metadata)
        out.add_tensor("a", np.zeros(8, np.float32))
        out.write_header_to_file()
        out.write_kv_data_to_file()
        out.write_tensors_to_file()
        out.close()


class TrainingFile:
    """Examples to fine-tune on, one per line."""

    def build(self, folder: Path) -> None:
        TokenizerFiles().build(folder)
        chat = [{"role": "user", "content": "3+4"}, {"role": "assistant", "content": "7"}]
        lines = [{"messages": chat}, {"prompt": "1+1=", "completion": "2"}]
        (folder / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def damage(self, rng: Random, folder: Path) -> Damage:
        path = folder / "data.jsonl"
        kind = rng.choice(["bytes", "json", "json", "json", "text", "encoding"])
        if kind == "bytes":
            return Damage(damage_bytes(rng, path), states_other=True)
        lines = path.read_text().splitlines()
        if kind == "encoding":
            encoding = rng.choice(["utf-16", "utf-8-sig", "utf-32", "latin-1"])
            path.write_bytes("\n".join(lines).replace("=", "\xe9").encode(encoding))
            return Damage(encoding, states_other=True)
        if kind == "text":
            texts = ["<|mask|>", "\ud800", "a" * 10**7, "\u2028\x85", "<|eot_id|>" * 99, ""]
            line, label = {"prompt": rng.choice(texts), "completion": rng.choice(texts)}, "texts"
        else:
            line, done = damage_json(rng, json.loads(rng.choice(lines)), "line")
            label = done.label
        ending = rng.choice(["\n", "\r\n", "\n\n \n", ""])
        path.write_text(ending.join([lines[0], json.dumps(line), lines[1], ""]))
        return Damage(label, states_other=True)

    def load(self, folder: Path) -> Any:
        config = config_from_hf(json.loads((TINY / "config.json").read_text()))
        tokenizer = Tokenizer.from_folder(folder)
        examples = read_examples(folder / "data.jsonl", tokenizer, config, 32)
        if any({3, 6} & {*example.answer[:-1]} for example in examples):
            raise AssertionError("an answer has a control token")
        return examples


def _replaced(pattern: Mapping[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _split(pattern: str) -> dict[str, Any]:
    settings = {"pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Split", **settings}


_HOSTILE_PARTS: dict[str, list[dict[str, Any]]] = {
    "normalizer": [
        {"type": "Prepend", "prepend": "a" * 5_000_000},
        {"type": "BertNormalizer", "prepend": "a" * 5_000_000},
        _replaced({"String": "a"}, "a" * 64),
        _replaced({"String": ""}, "a"),
        _replaced({"Regex": "(?=.)"}, "a" * 40),
        {"type": "ByteLevel"},
        {"type": "Precompiled", "precompiled_charsmap": "////f2FhYWFhYWFh"},
        {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////9hYWFhYWFh"},
    ],
    "pre_tokenizer": [
        *map(_split, ["(a+)+b", "a*a*b", r"(a)(?=\1*\1*b)", "(?:(?:a?){999}){999}", "[", "("]),
        {"type": "FixedLength", "length": 0},
        {"type": "Metaspace", "replacement": "aa", "prepend_scheme": "always"},
    ],
    "decoder": [
        {"type": "Strip", "content": "a", "start": 0, "stop": 10**9},
        {"type": "Strip", "content": "a", "start": 0, "stop": 9},
        _replaced({"Regex": "a*"}, "a" * 64),
        {"type": "BPEDecoder", "suffix": ""},
    ],
    "model": [
        {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "b"},
        {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a"}
        | {"continuing_subword_prefix": "#", "max_input_chars_per_word": 10**9},
        {"type": "Unigram", "vocab": [["a" * n, 0.0] for n in range(1, 257)], "unk_id": None},
        {"type": "BPE", "vocab": {"a": 0, "aa": 0, "": 1}, "merges": [["a", "a"], ["aa", ""]]},
        {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "a"]]},
        {"type": "BPE", "vocab": {"a": 10**9, "b": 2**31, "c": 2**22 - 1}, "merges": []},
    ],
}


class HostileTokenizer:
    """A `tokenizer.json` with the parts of a family, damaged or replaced with hostile values."""

    def build(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "tokenizer.json").write_text(json.dumps(FAMILIES["qwen"]))

    def damage(self, rng: Random, folder: Path) -> Damage:
        family = rng.choice(sorted(FAMILIES))
        content: dict[str, Any] = json.loads(json.dumps(FAMILIES[family]))
        section = rng.choice([*_HOSTILE_PARTS, "damage", "damage", "damage", "damage"])
        if section == "damage":
            # Not in the vocabulary, where most of the values are.
            model = content["model"]
            large = {key: model.pop(key) for key in ("vocab", "merges") if key in model}
            content, done = damage_json(rng, content, family)
            if isinstance(content.get("model"), dict):
                content["model"] |= large
            label = done.label
        else:
            part, times = rng.choice(_HOSTILE_PARTS[section]), rng.choice([1, 1, 3, 40])
            label = f"{family}: {times} {section} {str(part)[:60]}"
            if section != "model" and times > 1:
                inner = {"normalizer": "normalizers", "decoder": "decoders"}
                part = {"type": "Sequence", inner.get(section, "pretokenizers"): [part] * times}
            content |= {section: part} | ({"added_tokens": []} if section == "model" else {})
        (folder / "tokenizer.json").write_text(json.dumps(content))
        return Damage(label, states_other=True)

    def load(self, folder: Path) -> Any:
        tokenizer = Tokenizer.from_folder(folder)
        found = []
        for text in (
            "Tom had <|im_end|> 12 pens.",
            "a" * 4000,
            " ab\n" * 1000,
            "\ufdfa\u4e2d" * 99,
        ):
            ids = tokenizer.encode(text, add_special_tokens=True)
            found += [ids, tokenizer.decode(ids, skip_special_tokens=False)]
        return found


class Texts:
    """Texts, chats and ids that a program or a file hands to a tokenizer, as Python reads them."""

    def build(self, folder: Path) -> None:
        TokenizerFiles().build(folder)
        (folder / "call.json").write_text(json.dumps(["encode", "a"]))

    def damage(self, rng: Random, folder: Path) -> Damage:
        name = rng.choice(["encode", "decode", "encode_chat", "encode_chat"])
        texts = ["\ud800", "a\udfffb", "\0", "a" * 10_000_000, "<|eot_id|>" * 999, "\U0010ffff"]
        value: Any = rng.choice([*texts, *VALUES])
        if name == "decode" and rng.random() < 0.7:
            value = [rng.choice([-1, 2**32 - 1, 2**32, 2**40, 1.5, None, "1", [1], 10**6, 3])]
        if name == "encode_chat":
            kind = rng.choice(["content", "deep", "cyclic", "other"])
            levels = {"deep": rng.choice([50, 70, 900])}.get(kind, 0)
            for _ in range(levels):
                value = [value]
            value = value if kind == "other" else [{"role": "user", "content": value}]
            name = "cyclic" if kind == "cyclic" else name
        (folder / "call.json").write_text(json.dumps([name, value]))
        return Damage(f"{name} {str(value)[:60]!r}", states_other=True)

    def load(self, folder: Path) -> Any:
        tokenizer = Tokenizer.from_folder(folder)
        name, value = json.loads((folder / "call.json").read_text())
        if name == "cyclic":
            value[0]["content"] = [value]
            name = "encode_chat"
        return getattr(tokenizer, name)(value)


class Gguf:
    """Files of llama.cpp."""

    weights = "model.gguf"

    def build(self, folder: Path) -> None:
        from tests.checkpoint.test_gguf import write_gguf

        folder.mkdir(parents=True)
        write_gguf(folder / "model.gguf", "llada-mha", "Q8_0")

    def damage(self, rng: Random, folder: Path) -> Damage:
        import gguf

        path = folder / "model.gguf"
        before, size = gguf.GGUFReader(path), path.stat().st_size
        header = path.read_bytes()[: before.data_offset]
        kind = rng.choice(["header", "header", "header", "bytes", "data"])
        if kind == "header":
            label = flip_bits(rng, path, 0, len(header))
            return Damage(label, states_other=_tensors(path) == _tensors(before))
        if kind == "data":
            return Damage(flip_bits(rng, path, len(header)), raw_weights=True)
        label, now = damage_bytes(rng, path), path.read_bytes()
        return Damage(label, raw_weights=len(now) == size and now.startswith(header))

    def load(self, folder: Path) -> Any:
        return load_params(folder / "model.gguf")[:2]


def _tensors(source: Any) -> Any:
    """A GGUF file's description of its tensors, read by the official library."""
    import gguf

    try:
        found = gguf.GGUFReader(source) if isinstance(source, Path) else source
    except Exception:
        return None
    return [
        (each.name, each.shape.tolist(), each.tensor_type, int(each.data_offset))
        for each in found.tensors
    ]


class Traces:
    """Traces: arrays in a zip. A trace that loads can be replayed and priced."""

    def build(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        drawn_trace(forwards=8, block_length=4).save(folder / "run.npz")

    def damage(self, rng: Random, folder: Path) -> Damage:
        path = folder / "run.npz"
        with zipfile.ZipFile(path) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        kinds = ["bytes", "bytes", "bomb", "shape", "pickle", "settings", "lack"]
        kind = rng.choice([*kinds, *["rehashed"] * 6])
        name = rng.choice(sorted(parts))
        if kind == "bytes":
            return Damage(damage_bytes(rng, path))
        if kind == "rehashed":
            return _rehashed(rng, path)
        if kind == "bomb":
            parts[name] = _npy((1 << 30,), "|u1", bytes(1 << 24))
        elif kind == "shape":
            parts[name] = _npy(rng.choice([(2**40,), (-1,), (2**62, 8), (0,), ()]), "<i4", b"")
        elif kind == "pickle":
            parts[name] = _npy((1,), "|O", _pickle())
        elif kind == "settings":
            settings, done = damage_json(
                rng, json.loads(str(np.load(path)["settings"])), "settings"
            )
            text = np.array(json.dumps(settings))
            parts["settings.npy"] = _npy((), text.dtype.str, text.tobytes())
            name = done.label
        else:
            del parts[name]
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for each, content in parts.items():
                archive.writestr(each, content)
        return Damage(f"{kind}: {name}")

    def load(self, folder: Path) -> Any:
        trace = Trace.load(folder / "run.npz")
        shown = replay(trace)
        json.dumps(shown, allow_nan=False)
        priced = from_trace(trace, TOY)
        if any(min(forward) < 0 for forward in priced.forwards):
            raise AssertionError("a negative count is priced")
        return vars(trace), shown, priced


class RoutingTraces(Traces):
    """Recorded routing of rows to experts."""

    def build(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        small_trace(blocks=1).save(folder / "run.npz")

    def load(self, folder: Path) -> Any:
        trace = RoutingTrace.load(folder / "run.npz")
        means = experts_per_step(trace), imbalance(trace), row_reuse(trace), gate_accuracy(trace)
        return trace.settings, trace.loads, trace.begins_block, len(trace.visits(0)), means


def _rehashed(rng: Random, path: Path) -> Damage:
    """Damages an array or the settings of a record; its checksum is right again."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    settings, _ = json.loads(str(arrays.pop("settings"))), arrays.pop("sha256")
    version, name = settings.pop("format"), rng.choice(sorted([*arrays, "settings"]))
    if name == "settings":
        settings, done = damage_json(rng, settings, "settings")
        label = done.label
    else:
        array = arrays[name]
        label, arrays[name] = _changed(rng, array)
    try:
        save_archive(path, arrays, settings, version)
    except (ValueError, TypeError):  # an array or settings that such a file cannot contain
        path.write_bytes(b"")
    return Damage(f"rehashed {name}: {label}", states_other=True)


def _changed(rng: Random, array: np.ndarray) -> tuple[str, np.ndarray]:
    """Returns an array with another shape, dtype or value, and a description."""
    kinds = ["value"] * 4 + ["dtype", "cut", "axis", "sum", "empty", "negative", "backwards"]
    kind = rng.choice(kinds)
    array = np.array(array)
    if kind == "value" and array.size:
        low, high = (-1, 1) if array.dtype == bool else (-(2**15), 2**15 - 1)
        if array.dtype.kind == "i":
            low, high = np.iinfo(array.dtype).min, np.iinfo(array.dtype).max
        value = rng.choice(
            [0, 1, -1, 2, 7, 99, low, high, *[np.nan, np.inf] * (array.dtype.kind == "f")]
        )
        for _ in range(rng.choice([1, 1, array.size])):
            array.flat[rng.randrange(array.size)] = value
        return f"value {value}", array
    if kind == "dtype":
        dtype = rng.choice(["i1", "i2", "i8", "u1", "u4", "f2", "f8", "?", "c8", "U9", "M8[s]"])
        return f"dtype {dtype}", array.astype(dtype)
    if kind == "axis":
        return kind, rng.choice(
            [array[None], array[..., None], array.ravel(), array.sum(keepdims=False)]
        )
    if kind == "cut" and array.ndim:
        axis = rng.randrange(array.ndim)
        return f"cut axis {axis}", array.take(range(array.shape[axis] // 2), axis)
    if kind == "sum":
        return kind, array + array
    if kind == "empty":
        return kind, array[:0]
    return kind, -array if kind == "negative" and array.dtype != bool else array[::-1]


def _npy(shape: tuple[int, ...], descr: str, data: bytes) -> bytes:
    out = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, header)  # type: ignore[arg-type]
    return out.getvalue() + data


def _pickle() -> bytes:
    import pickle

    class Runs:
        def __reduce__(self) -> Any:
            return os.system, (RUN_CODE,)

    return pickle.dumps([Runs()])


class Store:
    """Generations on disk."""

    def build(self, folder: Path) -> None:
        store = GenerationStore.begin(folder, {"task": "sums", "seed": 3})
        for first in (0, 4):
            items = [Item(f"{i} + 1?", f"#### {i + 1}", str(i + 1), ("a",)) for i in range(4)]
            generations = [
                Generation(first + i, item, item.answer, [i, 7], 2, 5)
                for i, item in enumerate(items)
            ]
            store.add(GenerationBatch(generations, seconds=0.5, compiled=False))

    def damage(self, rng: Random, folder: Path) -> Damage:
        path = rng.choice(sorted(folder.iterdir()))
        kind = rng.choice(["bytes", "bytes", "header", "settings", "remove", "copy"])
        batches = sorted(folder.glob("*.jsonl"))
        if kind == "settings":
            return damage_json_file(rng, folder / "settings.json")
        if kind == "header":
            first, rest = batches[0].read_text().split("\n", 1)
            content, done = damage_json(rng, json.loads(first), batches[0].name)
            batches[0].write_text(json.dumps(content) + "\n" + rest)
            return done
        if kind == "remove":
            batches[rng.randrange(2)].unlink()
        elif kind == "copy":
            shutil.copy(batches[0], folder / "000008.jsonl")
        else:
            return Damage(damage_bytes(rng, path))
        return Damage(f"{kind} a batch")

    def load(self, folder: Path) -> Any:
        store = GenerationStore.load(folder)
        return store.settings, store.batches()


class Export:
    """An exported folder for LiteRT: manifest and graphs."""

    def build(self, folder: Path) -> None:
        import llada_jax as lj
        from llada_jax.config import ExportConfig

        source = folder.with_name("export-source")
        save_huggingface(source, MODEL, random_params(MODEL), "float32")
        lj.export(source, folder, ExportConfig(rows=(4,), caches=(32,)), verify=False)

    def damage(self, rng: Random, folder: Path) -> Damage:
        path = folder / "manifest.json"
        manifest = json.loads(path.read_text())
        kind = rng.choice(["manifest", "manifest", "name", "file", "rehashed"])
        files = [manifest["shards"][0]["file"], manifest["head"], manifest["embedding"]]
        file = rng.choice([*files, *manifest["others"]])
        if kind == "manifest":
            done = damage_json_file(rng, path)
            return done._replace(states_other=done.states_other or ": delete " in done.label)
        if kind == "name":
            file["name"] = _hostile_name(rng, folder, file["name"])
            label = f"manifest: a file {file['name'][:40]!r}"
        else:
            label = damage_bytes(rng, folder / file["name"])
            if kind == "rehashed":
                from llada_jax.backend.exported.manifest import File

                file |= {**vars(File.of(folder / file["name"]))}
        path.write_text(json.dumps(manifest))
        return Damage(f"{kind}: {label}", states_other=kind == "rehashed")

    def load(self, folder: Path) -> Any:
        from llada_jax.backend.exported.opened import ExportedProgram

        opened = ExportedProgram(folder)
        bucket, shards = opened.body(4, 32)
        return opened.config, bucket, len(shards), opened.embedding[np.array([1, 2])]


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(12)
)


class Calibration:
    """Rows that were measured on a phone, and the files of the tools that timed them."""

    def build(self, folder: Path) -> None:
        (folder / "results").mkdir(parents=True)
        bare = {key: "" for key in ("median_ms", "p5_ms", "p95_ms", "runs")}
        row = MEASURED | {"median_ms": "4.0", "p5_ms": "3.9", "p95_ms": "4.2"}
        rows = [row, *(row | {"name": name} | bare for name in "bcd")]
        with (folder / "rows.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, MEASURED)
            table.writeheader()
            table.writerows(rows)
        latency = {"median_ms": 4.0, "p5_ms": 3.5, "p95_ms": 5.0, "num_runs": 50}
        (folder / "results" / "b.json").write_text(json.dumps({"latency": latency}))
        times = {"execution_summary": {"all_inference_times": [3000, 4000, 5000]}}
        (folder / "results" / "c.json").write_text(json.dumps(times))
        event = "UNKNOWN,BACKEND,3900,US,BACKEND,SUB-EVENT,RPC (execute) time"
        (folder / "results" / "d.csv").write_text(f"{QNN_HEADER}\n{event}\n{event}\n")

    def damage(self, rng: Random, folder: Path) -> Damage:
        path = rng.choice([folder / "rows.csv", *sorted((folder / "results").iterdir())])
        kind = rng.choice(["bytes", "cell", "cell", "cell", "text", "protobuf"])
        if kind == "protobuf":
            (folder / "results" / "b.json").unlink()
            fields = field(2, real(5, 4.0) + real(6, 3.5) + real(7, 5.0)) + field(4, b"\x10\x32")
            (folder / "results" / "b.pb").write_bytes(fields)
            return Damage(damage_bytes(rng, folder / "results" / "b.pb"), states_other=True)
        if kind == "bytes":
            return Damage(damage_bytes(rng, path), states_other=True)
        if path.suffix == ".json":
            done = damage_json_file(rng, path)
            return done._replace(states_other=True)
        text = path.read_text()
        if kind == "text":
            text, encoding = rng.choice(
                [
                    (text.replace(",", ";"), "utf-8"),
                    (text.replace(".", ","), "utf-8"),
                    (text.replace("npu", "größe"), "latin-1"),
                    (text, "utf-16"),
                    (text, "utf-8-sig"),
                    (text + "US\n", "utf-8"),
                    (text + "x" * 200_000, "utf-8"),
                    (text.replace("\n", "\n\n"), "utf-8"),
                    (text.replace("median_ms", "medain_ms"), "utf-8"),
                    (text.replace("rows,cache", "cache,rows"), "utf-8"),
                    (text.replace("4.0,3.9,4.2", "4000,3900,4200"), "utf-8"),
                    (text.replace("4.0,3.9,4.2", "0.004,0.0039,0.0042"), "utf-8"),
                    (text.replace("4.0,3.9,4.2", "8.0,7.8,8.4"), "utf-8"),
                    (text.splitlines()[0] + "\n" + text.splitlines()[1], "utf-8"),
                ]
            )
            path.write_bytes(text.encode(encoding))
            return Damage(f"{path.name} as {encoding}", states_other=True)
        lines = [line.split(",") for line in text.splitlines()]
        line = rng.choice(lines)
        others = [*map(str, VALUES), *HOSTILE_NAMES, "*", "?", "9" * 400, "2,5", '"', "=1+1"]
        at, value = rng.randrange(len(line)), rng.choice(others)
        line[at] = value
        path.write_text("\n".join(map(",".join, lines)) + "\n", errors="replace")
        return Damage(f"{path.name}: {value[:40]!r} in column {at}", states_other=True)

    def load(self, folder: Path) -> Any:
        rows = read_measurements(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # rows that contradict each other
            return rows, calibrate(rows, load_profile("SM8750"), "llada_8b").profile


class Results:
    """Results of a run, in a report."""

    def build(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "env.json").write_text(json.dumps(environment()))
        (folder / "config.yaml").write_text("seed: 3\n")
        row = {"name": "a/b", "value": 0.9, "unit": "share", "kind": "measured",
               "interval": [0.8, 0.95], "reference": 0.8, "source": "a | table"}  # fmt: skip
        (folder / "results.json").write_text(json.dumps([row, row | {"name": "c", "value": 3}]))

    def damage(self, rng: Random, folder: Path) -> Damage:
        path = folder / "results.json"
        kind = rng.choice(["json", "json", "names", "env.json", "yaml"])
        if kind == "yaml":
            text = rng.choice([BOMB, "seed: !!bool x", "seed: 1\nseed: 2", "[" * 999, "\0", "- a"])
            (folder / "config.yaml").write_text(text)
            return Damage(f"config.yaml: {text[:20]!r}")
        if kind == "names":
            rows = json.loads(path.read_text())
            key = rng.choice(["name", "unit", "kind", "source"])
            rows[0][key] = rng.choice(MARKUP)
            path.write_text(json.dumps(rows))
            return Damage(f"{key} {rows[0][key]!r}", states_other=True)
        done = damage_json_file(rng, path if kind == "json" else folder / kind)
        states = done.states_other or ": delete " in done.label or kind == "env.json"
        return done._replace(states_other=states)

    def load(self, folder: Path) -> Any:
        from omegaconf import OmegaConf

        from experiments.harness.run import Run
        from experiments.report.__main__ import ReportConfig, report

        config = ReportConfig(title="Report", runs=(str(folder),), baseline=None)
        report(config, Run(folder / "page", OmegaConf.create({})))
        page = (folder / "page" / "report.md").read_text()
        if any(
            re.search(rf"(^|[^\\]){re.escape(text)}", page) for text in ("<img", "*bold", "\n# a")
        ):
            raise AssertionError("a name is markup")
        return page


MARKUP = [
    "<img src=x onerror=y>",
    "*bold*",
    "a\n\n# a",
    "|||",
    "`code",
    "[x](y)",
    "\ud800",
    "$\\frac{",
]


class ProfileYaml:
    """A phone as data."""

    def build(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        shutil.copy(PROFILES / "SM8750.yaml", folder / "mine.yaml")

    def damage(self, rng: Random, folder: Path) -> Damage:
        import yaml

        path = folder / "mine.yaml"
        texts = {
            "bomb": BOMB,
            "bomb inside": path.read_text() + BOMB,
            "cycle": path.read_text() + "x: &x {y: *x}\n",
            "depth": "[" * 50_000,
            "mapping": "{a: " * 5000,
            "python": f"soc: !!python/object/apply:os.system ['{RUN_CODE}']",
            "sixty": f"soc: 1{':59' * 200_000}",
            "long": "a" * (1 << 22),
            "timestamp": path.read_text().replace("soc: ", "soc: !!timestamp ", 1),
            "bool": path.read_text() + "x: !!bool maybe\n",
            "float": path.read_text().replace("value: ", "value: !!float ", 1),
            "map": path.read_text().replace("memory:", "memory: !!omap", 1),
            "repeated": path.read_text() + "soc: OTHER\n",
        }
        kind = rng.choice([*texts, *["values"] * 9, *["bytes"] * 4])
        if kind == "bytes":
            return Damage(damage_bytes(rng, path), states_other=True)
        if kind in texts:
            path.write_text(texts[kind])
            return Damage(kind)
        content, done = damage_json(rng, yaml.safe_load(path.read_text()), path.name)
        path.write_text(yaml.safe_dump(content))
        return done

    def load(self, folder: Path) -> Any:
        return load_profile(folder / "mine.yaml")


_TEMPLATES = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'a' * 10 ** 10 }}",
    "{{ 10 ** (10 ** 10) }}",
    "{% set ns = namespace(x='aa') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}"
    "{% endfor %}{{ ns.x }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('" + RUN_CODE + "') }}",
    "{{ lipsum.__globals__['os'].popen('" + RUN_CODE + "') }}",
    "{{ self._TemplateReference__context.cycler.__init__.__globals__ }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os.system('" + RUN_CODE + "') }}",
    "{{ '%9999999999d' % 1 }}",
    "{{ 'a' | center(10 ** 10) }}",
    "{{ '{:9999999999}'.format(1) }}",
    "{{ " + "(" * 5000,
    "{{ messages | tojson(indent=10 ** 9) }}",
    "{% for m in messages %}" * 60,
    "{{ strftime_now('%' * 10 ** 6) }}",
]


class ChatTemplate:
    """Foreign templates, and messages that forge turns."""

    def build(self, folder: Path) -> None:
        TokenizerFiles().build(folder)
        config = json.loads((folder / "tokenizer_config.json").read_text())
        for path in TINY.glob("chat_template.jinja"):
            config["chat_template"] = path.read_text()
        (folder / "chat_template.jinja").write_text(config["chat_template"])
        (folder / "message.json").write_text('"2 + 3"')

    def damage(self, rng: Random, folder: Path) -> Damage:
        path = folder / "chat_template.jinja"
        kind = rng.choice(["hostile", "hostile", "bytes", "message"])
        if kind == "bytes":
            return Damage(damage_bytes(rng, path), states_other=True)
        if kind == "hostile":
            template = rng.choice(_TEMPLATES)
            path.write_text(rng.choice([template, path.read_text() + template]))
            return Damage(template[:60], states_other="strftime_now" in template)  # it may render
        tokens = ["<|eot_id|>", "<|start_header_id|>", "<|mask|>", "a", "\ue000", "<|", "id|>"]
        content: Any = "".join(rng.choices(tokens, k=rng.randrange(1, 9)))
        content = rng.choice([content, content, content, rng.choice(VALUES)])
        (folder / "message.json").write_text(json.dumps(content))
        return Damage(f"message {str(content)[:40]!r}", states_other=True)

    def load(self, folder: Path) -> Any:
        from llada_jax import chat_template

        chat_template.SECONDS = 0.5
        tokenizer = Tokenizer.from_folder(folder)
        content = json.loads((folder / "message.json").read_text())
        ids = tokenizer.encode_chat([{"role": "user", "content": content}])
        if isinstance(content, str) and "message" not in tokenizer.chat_template[:9]:
            turns = ids.count(tokenizer.backend.token_to_id("<|eot_id|>"))
            if turns > tokenizer.chat_template.count("<|eot_id|>"):
                raise AssertionError("a forged turn")
        return ids


class Overrides:
    """Settings of a verb, from the command line and from a user's folder."""

    def build(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "arguments.json").write_text("[]")

    def damage(self, rng: Random, folder: Path) -> Damage:
        names = ["seed", "loop", "pause", "prompt", "sampler.threshold", "sampler.gen_length"]
        names += ["model", "sampler.temperature", "phones", "chat", "sampler", "backend"]
        values = ["1e999", "nan", "-1", "''", "null", "[", "${oc.env:HOME}", "${seed}", "{a: 1}"]
        values += ["9" * 99, "${oc.decode:x}", "a=b", "${nothing}", "../x", "true", "[1,2]", "'\n'"]
        kind = rng.choice(["value", "value", "unknown", "hydra", "file", "file"])
        if kind == "value":
            argument = f"{rng.choice(names)}={rng.choice(values)}"
        elif kind == "unknown":
            argument = rng.choice(["+x.y=1", "~seed", "x", "=", "seed=1=2", "sampler/x=y", "++a=b"])
        else:
            text = self._text(rng, kind)
            (folder / "mine.yaml").write_text(text)
            argument = f"--config-dir={folder}"
        named = [argument, "--config-name=mine"] if kind in ("hydra", "file") else [argument]
        (folder / "arguments.json").write_text(json.dumps(named))
        return Damage(f"{kind}: {argument[:60]!r}", states_other=True)

    def _text(self, rng: Random, kind: str) -> str:
        call = {"_target_": "os.system", "command": RUN_CODE}
        runs: list[Mapping[str, Any]] = [
            {"hydra": {"callbacks": {"own": call}}},
            {"hydra": {"job_logging": {"version": 1, "handlers": {"a": {"()": "os.getcwd"}}}}},
            {"hydra": {"launcher": call}},
            {"hydra": {"sweeper": call}},
            {"hydra": {"output_subdir": "../../outside"}},
            {"defaults": ["mine"]},
        ]
        others = [
            {"_target_": "os.system"},
            {"seed": "x"},
            {"defaults": ["/../x"]},
            {"a": VALUES[5]},
        ]
        content = rng.choice(runs if kind == "hydra" else others)
        base = {"defaults": ["generate", "_self_"]}
        text = json.dumps(base | dict(content))
        return rng.choice([text, text, text, text, BOMB, "[" * 5000, "\0", "- a"])

    def load(self, folder: Path) -> Any:
        from experiments.generate.__main__ import GenerateConfig
        from experiments.harness.run import entry_point

        found: list[Any] = []

        def keep(settings: Any, run: Any) -> None:
            found.append(repr(settings))

        arguments = json.loads((folder / "arguments.json").read_text())
        sys.argv = ["generate", *arguments, f"hydra.run.dir={folder}/run"]
        told = io.StringIO()
        try:
            with contextlib.redirect_stderr(told):
                entry_point("generate", keep, GenerateConfig)()
        except SystemExit as end:
            if isinstance(end.code, str) or "Traceback" in told.getvalue():
                raise
            raise SystemExit(f"error: {told.getvalue()}") from end  # Hydra has printed it
        return found


_HARD_PATTERNS = [
    *("[^a]*a[^b]{30}", "(a|b)*a(a|b){30}", "a{1000000000}", r"\w{1000}", "(a{999}){999}", "a)|(b"),
    *("(" * 5000, "(?:" * 300 + ")" * 300, "a|" * 9999, "[" * 999, r"\u{110000}", "^a$", "(?x)a #"),
]
_HARD_SCHEMAS = [
    '{"items":' * 9999,
    '{"type":"array","items":' * 200 + '{"type":"null"}' + "}" * 200,
    '{"anyOf":[{"$ref":"#"},{"$ref":"#"}]}',
    '{"type":"string","maxLength":16384}',
    '{"$ref":"#/$ref"}',
    json.dumps({"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(999)}}),
]


class Constraints:
    """A JSON schema or a regular expression, with a text that fits it, or without one."""

    def build(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._write(folder, "regex", "a+", "aa")

    def _write(self, folder: Path, maker: str, source: str, text: str | None) -> None:
        (folder / "constraint.json").write_text(json.dumps([maker, source, text]))

    def damage(self, rng: Random, folder: Path) -> Damage:
        maker, text = rng.choice(["regex", "json_schema"]), None
        kind = rng.choice(["valid", "valid", "value", "value", "value", "characters", "hard"])
        if kind == "hard":
            source = rng.choice(_HARD_PATTERNS if maker == "regex" else _HARD_SCHEMAS)
        elif maker == "regex":
            source, text = pattern_and_text(rng)
        else:
            schema, text = schema_and_text(rng)
            if kind == "value":
                schema, _ = damage_json(rng, schema, "schema")
            source = json.dumps(schema)
        if kind == "characters" or (kind == "value" and maker == "regex"):
            for _ in range(rng.randint(1, 4)):
                at = rng.randrange(len(source) + 1)
                source = source[:at] + rng.choice('()[]{}|*+?\\^$",:0-9\0\ud800') + source[at + 1 :]
        text = text if kind == "valid" else None
        self._write(folder, maker, source, text)
        return Damage(f"{kind} {maker} {source[:60]!r}")

    def load(self, folder: Path) -> Any:
        from llada_jax.constraint import patterns
        from llada_jax.constraint.byte_automaton import byte_automaton, matches

        maker, source, text = json.loads((folder / "constraint.json").read_text())
        automaton = byte_automaton(getattr(patterns, maker)(source).node)
        if text is not None and not matches(automaton, text.encode()):
            raise AssertionError(f"{text[:60]!r} is not accepted")


KINDS: dict[str, tuple[Kind, int]] = {
    "safetensors": (Safetensors(), 30),
    "config.json": (ConfigJson(), 30),
    "adapter": (Adapter(), 8),
    "mlx": (Mlx(), 8),
    "hub cache": (HubCache(), 8),
    "tokenizer": (TokenizerFiles(), 20),
    "hostile tokenizer": (HostileTokenizer(), 16),
    "text": (Texts(), 16),
    "vocabulary files": (VocabularyFiles(), 8),
    "gguf tokenizer": (GgufTokenizer(), 8),
    "training file": (TrainingFile(), 8),
    "gguf": (Gguf(), 26),
    "trace": (Traces(), 20),
    "routing trace": (RoutingTraces(), 6),
    "calibration": (Calibration(), 12),
    "results": (Results(), 4),
    "store": (Store(), 20),
    "export": (Export(), 8),
    "profile": (ProfileYaml(), 16),
    "chat template": (ChatTemplate(), 10),
    "overrides": (Overrides(), 10),
    "constraint": (Constraints(), 10),
}
"""Kinds by name, each with its number of cases in a quick run (`--cases 200`)."""
"""Kinds by name, each with its number of cases in about 200."""
