"""A model as a folder of `.tflite` files that phones and this machine run.

    shard-00.tflite ...   layers, some hundred megabytes to 2 GB each, every bucket a signature
    head.tflite           scores, streamed over the vocabulary
    embedding.bin         [V, D], read row by row
    context-....bin       the layers for one phone's NPU, where phones are asked for
    manifest.json         what the host passes and does, hashes, versions
    PUSH.md               how it all gets to a phone

Weights come tensor by tensor, so the peak of memory is that of the largest one. The folder has its
name only once it is complete. Until then an interrupted export goes on where it stopped: each file
that is finished is recorded with the settings it was made with.
"""

import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from llada_jax import atomic
from llada_jax.backend import steps
from llada_jax.backend.exported import verify
from llada_jax.backend.exported.manifest import BodyShard, File, Manifest
from llada_jax.backend.exported.phone_contexts import (
    Job,
    check_job,
    compile_for_phones,
    float32_shards,
)
from llada_jax.backend.exported.push import PUSH, push_page
from llada_jax.backend.litert import tflite
from llada_jax.backend.litert.install import require_npu
from llada_jax.backend.lower import check, lower
from llada_jax.backend.protocol import Bucket, Weights
from llada_jax.backend.recorded_inputs import Inputs
from llada_jax.backend.resources import require_disk
from llada_jax.backend.steps import body_step, head_step, head_steps
from llada_jax.backend.weights import stored_as
from llada_jax.config import ExportConfig, ModelConfig, require
from llada_jax.lowered import Lowered
from llada_jax.model.params import named_specs
from llada_jax.model.quantize import QuantArray, dequantize

PROGRESS = "progress.json"
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
)  # fmt: skip
PACKAGES = ("jax", "litert-converter", "ai-edge-litert", "llada_jax")


@dataclass(frozen=True)
class Export:
    """What is exported, from where, and how."""

    model: ModelConfig
    weights: Weights
    settings: ExportConfig
    source: str
    """Names the weights: an export that was interrupted goes on only with the same."""
    tokenizer: Path | None = None
    """Folder of the tokenizer's files."""
    verify: bool = True
    """Run every signature of every file against JAX before the folder gets its name."""
    samples: Sequence[Inputs] = ()
    """Recorded forwards, where phones need static quantization."""


def export(folder: Path, what: Export) -> Manifest:
    """Write the folder; show progress; go on where an interrupted export stopped.

    Raises ValueError, before anything is written: for a model that the target cannot take, where
    the folder exists, where the disk is too small, or where an interrupted export had other
    settings.
    """
    require_npu()
    require(not folder.exists(), f"{folder} exists already; allowed: a new folder")
    _check_operations(what)
    phones = _phone_job(what)
    if phones is not None:
        check_job(phones, float32_shards(what.model))
    shards = shard_layers(what.model, what.settings)
    size = sum(_layer_bytes(what.model, what.settings)) + _outer_bytes(what.model, what.settings)
    done = _Done(folder.with_name(f".{folder.name}.partial"), what)
    require_disk(folder.parent, size - done.bytes, f"the export of {what.source}")
    done.begin()
    with tqdm(total=size, initial=done.bytes, unit="B", unit_scale=True, desc=folder.name) as bar:
        bodies = []
        for index, layers in enumerate(shards):
            file = done.file(f"shard-{index:02}.tflite", partial(_write_body, what, layers, bar))
            bodies.append(BodyShard(file, layers.start, layers.stop))
        head = done.file("head.tflite", partial(_write_head, what, bar))
        embedding = done.file("embedding.bin", partial(_write_embedding, what, bar))
    contexts = done.contexts(phones) if phones else []
    checks = list(_check_files(done.folder, what, bodies)) if what.verify else []
    manifest = Manifest(
        model=what.model,
        settings=what.settings,
        source=what.source,
        shards=tuple(bodies),
        head=head,
        head_chunk=steps.HEAD_CHUNK,
        embedding=embedding,
        embedding_dtype=_embedding_dtype(what),
        others=(
            *_copy_tokenizer(done.folder, what.tokenizer),
            *(File.of(done.folder / entry["file"]) for entry in contexts),
        ),
        contexts=tuple(contexts),
        checks=tuple(checks),
        versions={package: version(package) for package in PACKAGES},
    )
    push = done.folder / PUSH
    push.write_text(push_page(manifest, folder.name))
    manifest = replace(manifest, others=(*manifest.others, File.of(push)))
    manifest.save(done.folder)
    done.finish(folder)
    return manifest


def _phone_job(what: Export) -> Job | None:
    phones = what.settings.phones
    if not phones.socs:
        return None
    shapes = buckets(what.settings)
    return Job(what.model, what.weights, phones, shapes, what.samples, what.verify)


def shard_layers(model: ModelConfig, settings: ExportConfig) -> list[range]:
    """Layers cut into the fewest files of `shard_bytes` at the most, as equal as can be.

    Raises ValueError where one layer is larger than that.
    """
    sizes = _layer_bytes(model, settings)
    require(
        max(sizes) <= settings.shard_bytes,
        f"shard_bytes is {settings.shard_bytes}; allowed: at least one layer ({max(sizes)})",
    )
    for count in range(1, model.n_layers + 1):
        cuts = [model.n_layers * i // count for i in range(count + 1)]
        shards = [range(a, b) for a, b in itertools.pairwise(cuts)]
        if all(sum(sizes[layers.start : layers.stop]) <= settings.shard_bytes for layers in shards):
            return shards
    raise AssertionError("a file for each layer fits")


def buckets(settings: ExportConfig) -> list[Bucket]:
    """Every shape of a forward that the folder can run."""
    return [Bucket(rows, cache) for rows in settings.rows for cache in settings.caches]


class _Done:
    """The unfinished folder, and what is finished in it."""

    def __init__(self, folder: Path, what: Export):
        self.folder = folder
        self._record = folder / PROGRESS
        self._settings = {
            "source": what.source, "model": asdict(what.model), "settings": asdict(what.settings),
            "versions": {package: version(package) for package in PACKAGES},
        }  # fmt: skip
        self._settings = json.loads(json.dumps(self._settings))  # tuples become lists
        self._files: dict[str, File] = {}
        self._contexts: dict[str, dict[str, Any]] = {}
        if self._record.is_file():
            self._resume()

    def _resume(self) -> None:
        record = json.loads(self._record.read_text())
        for part, ours in self._settings.items():
            theirs = record["made_with"][part]
            require(
                theirs == ours,
                f"{self.folder} is an interrupted export with other {part}: "
                f"{_difference(theirs, ours)}; go on with the same, or remove the folder",
            )
        self._files = {name: File(**file) for name, file in record["files"].items()}
        self._contexts = record["contexts"]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self._files.values())

    def begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic.remove_temporaries(self.folder)
        self._save()

    def file(self, name: str, write: Callable[[Path], None]) -> File:
        """The file, written unless it is there from an earlier attempt."""
        known = self._files.get(name)
        path = self.folder / name
        if known is None or not path.is_file() or path.stat().st_size != known.bytes:
            write(path)
            self._files[name] = File.of(path)
            self._save()
        return self._files[name]

    def contexts(self, phones: Job) -> list[dict[str, Any]]:
        """Entries of the binaries for phones, compiled unless they are there."""
        entries = []
        for name, entry in compile_for_phones(self.folder, phones, dict(self._contexts)):
            self._contexts[name] = entry
            self._save()
            entries.append(entry)
        return entries

    def finish(self, target: Path) -> None:
        self.folder.rename(target)
        (target / PROGRESS).unlink()

    def _save(self) -> None:
        files = {name: asdict(file) for name, file in self._files.items()}
        record = {"made_with": self._settings, "files": files, "contexts": self._contexts}
        atomic.write_text(self._record, json.dumps(record, indent=2))


def _difference(theirs: object, ours: object) -> str:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = [key for key in ours if theirs.get(key) != ours[key]]
        return ", ".join(f"{key} was {theirs.get(key)!r}, is {ours[key]!r}" for key in keys)
    return f"was {theirs!r}, is {ours!r}"


def _check_operations(what: Export) -> None:
    """One bucket stands for all: they differ in sizes only."""
    bucket = buckets(what.settings)[0]
    for step in (
        body_step(what.model, range(what.model.n_layers), bucket),
        *head_steps(what.model, [bucket.rows])[:2],
    ):
        check(lower(step, what.settings.quant), "litert")


def _layer_bytes(model: ModelConfig, settings: ExportConfig) -> list[int]:
    specs = named_specs(model)
    return [
        tflite.file_bytes({
            name: stored_as(name, spec.shape, settings.quant)
            for name, spec in specs.items()
            if name.startswith(f"layers.{layer}.")
        }, signatures=len(buckets(settings)))
        for layer in range(model.n_layers)
    ]  # fmt: skip


def _outer_bytes(model: ModelConfig, settings: ExportConfig) -> int:
    """Head and embedding, the latter at two bytes a number."""
    shape = (model.vocab_size, model.width)
    head = tflite.file_bytes({"head": stored_as("head", shape, settings.quant)})
    return head + 2 * model.vocab_size * model.width


def _check_files(
    folder: Path, what: Export, bodies: Sequence[BodyShard]
) -> Iterator[dict[str, Any]]:
    quant = what.settings.quant
    shapes = {name: spec.shape for name, spec in named_specs(what.model).items()}
    shapes |= head_step(what.model, 1).weights
    specs = {name: stored_as(name, shape, quant) for name, shape in shapes.items()}
    stored = verify.StoredWeights(what.weights, specs)
    for shard in bodies:
        layers = range(shard.start, shard.stop)
        path = folder / shard.file.name
        yield from verify.check_body(
            path, what.model, layers, buckets(what.settings), quant, stored
        )
    path = folder / "head.tflite"
    yield from verify.check_head(path, what.model, what.settings.rows, quant, stored)


def _write_body(what: Export, layers: range, bar: tqdm, path: Path) -> None:
    bodies = [body_step(what.model, layers, bucket) for bucket in buckets(what.settings)]
    _write_steps(what, [lower(step, what.settings.quant) for step in bodies], bar, path)


def _write_head(what: Export, bar: tqdm, path: Path) -> None:
    heads = head_steps(what.model, what.settings.rows)
    _write_steps(what, [lower(step, what.settings.quant) for step in heads], bar, path)


def _write_steps(what: Export, lowered: Sequence[Lowered], bar: tqdm, path: Path) -> None:
    tflite.write(path, tflite.convert(lowered), tflite.shared_weights(lowered), what.weights, bar)


def _write_embedding(what: Export, bar: tqdm, path: Path) -> None:
    with atomic.new_file(path) as part, part.open("wb") as file:
        for piece in what.weights.rows("embedding"):
            numbers = dequantize(piece, np.float32) if isinstance(piece, QuantArray) else piece
            rows = np.ascontiguousarray(numbers, jnp.dtype(_embedding_dtype(what)))
            rows.tofile(file)
            bar.update(rows.nbytes)


def _embedding_dtype(what: Export) -> str:
    """As it is stored, if in two bytes a number; else as a loaded model of the kind has it."""
    piece = next(what.weights.rows("embedding", 0, 1))
    if not isinstance(piece, QuantArray) and piece.dtype.itemsize == 2:
        return piece.dtype.name
    return "float32" if what.settings.quant == "float32" else "bfloat16"


def _copy_tokenizer(folder: Path, tokenizer: Path | None) -> Iterator[File]:
    for name in TOKENIZER_FILES:
        if tokenizer is not None and (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, folder / name)
            yield File.of(folder / name)
