"""Writes a model as a folder of `.tflite` files that phones and this machine can run.

    shard-00.tflite ...   layers, some hundred megabytes to 2 GB each, a signature for every bucket
    head.tflite           scores, streamed over the vocabulary
    embedding.bin         [V, D], read row by row
    context-....bin       the layers for one phone's NPU, if phones are requested
    context-....tflite    the same, wrapped in LiteRT's operator
    rotation.bin          cosines and sines of RoPE's angles
    manifest.json         the host's part of a step, hashes, versions
    host                  source of a program that decodes the folder without Python
    on_phone.sh           times every signature of signatures.csv on a phone
    PUSH.md               instructions to copy it to a phone

Weights are converted tensor by tensor, so the largest tensor determines the peak memory. The folder
gets its final name once it is complete. An interrupted export can be resumed: each finished file is
recorded together with the settings of the export.
"""

import itertools
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from llada_jax.backend import steps
from llada_jax.backend.exported import verify
from llada_jax.backend.exported.calibration_export import (
    graph_lines,
    signature_rows,
    write_calibration,
    write_rows,
)
from llada_jax.backend.exported.contents import Export, layer_bytes, outer_bytes, shard_layers
from llada_jax.backend.exported.manifest import (
    MANIFEST,
    ROTATION,
    BodyShard,
    File,
    Manifest,
    UnfinishedExport,
    context_files,
    max_positions,
)
from llada_jax.backend.exported.phone_contexts import check_phones, compile_for_phones
from llada_jax.backend.litert import tflite
from llada_jax.backend.litert.install import require_npu
from llada_jax.backend.lower import check, lower
from llada_jax.backend.protocol import Step
from llada_jax.backend.resources import require_disk
from llada_jax.backend.steps import body_step, head_steps
from llada_jax.config import require
from llada_jax.io import atomic
from llada_jax.io.inside import inside
from llada_jax.io.locked import LOCK_FILE, locked
from llada_jax.model.layers import rotation
from llada_jax.model.quantize import QuantArray, dequantize

_HEXAGON = {"SM8550": 73, "SM8650": 75, "SM8750": 79, "SM8850": 81}
"""Version of each chip's NPU, which is part of the names of QNN's libraries."""
HOST = Path(__file__).with_name("host")
"""Source of the program that decodes an export without Python."""
_TARGET = "/data/local/tmp/llada_jax"


def write_export(folder: Path, export: Export) -> Manifest:
    """Writes the folder and shows progress; resumes an interrupted export.

    Raises ValueError, before anything is written, if the target does not support the model, the
    folder exists or another process writes it, the disk is too small, or an interrupted export had
    other settings.
    """
    require_npu()
    _require_new(folder)
    _check_operations(export)
    if export.settings.phones.socs:
        check_phones(export)
    shards = shard_layers(export.model, export.settings)
    size = sum(layer_bytes(export.model, export.settings))
    size += outer_bytes(export.model, export.settings)
    unfinished = UnfinishedExport(folder, export)
    require_disk(folder.parent, size - unfinished.bytes, f"the export of {export.source}")
    with locked(folder, folder.with_name(f".{folder.name}{LOCK_FILE}")):
        _require_new(folder)
        unfinished.begin()
        return _write_files(unfinished, export, shards, size)


def _require_new(folder: Path) -> None:
    require(not folder.exists(), f"{folder} exists already; allowed: a new folder")


def _write_files(
    unfinished: UnfinishedExport, export: Export, shards: Iterable[range], size: int
) -> Manifest:
    progress = {"unit": "B", "unit_scale": True, "desc": unfinished.target.name}
    with tqdm(total=size, initial=unfinished.bytes, **progress) as bar:
        bodies = []
        for index, layers in enumerate(shards):
            body = [body_step(export.model, layers, bucket) for bucket in export.buckets]
            name = f"shard-{index:02}.tflite"
            file = unfinished.file(name, partial(_write_steps, export, body, bar))
            bodies.append(BodyShard(file, layers.start, layers.stop))
        heads = head_steps(export.model, export.settings.rows)
        head = unfinished.file("head.tflite", partial(_write_steps, export, heads, bar))
        embedding = unfinished.file("embedding.bin", partial(_write_embedding, export, bar))
        angles = unfinished.file(ROTATION, partial(_write_rotation, export))
    contexts = list(compile_for_phones(unfinished, export))
    checks = list(_check_files(unfinished.folder, export, bodies)) if export.verify else []
    tokenizer = export.tokenizer.save(unfinished.folder) if export.tokenizer else []
    names = [name for entry in contexts for name in context_files(entry)]
    plan = [*_write_plan(unfinished, export, bodies, contexts)]
    binaries = [File.of(inside(unfinished.folder, name)) for name in names]
    manifest = Manifest(
        model=export.model,
        settings=export.settings,
        source=export.source,
        fingerprint=unfinished.fingerprint,
        shards=tuple(bodies),
        head=head,
        head_chunk=steps.HEAD_CHUNK,
        embedding=embedding,
        embedding_dtype=_embedding_dtype(export),
        others=(
            angles,
            *map(File.of, tokenizer),
            *binaries,
            *plan,
            *write_calibration(unfinished, export),
        ),
        contexts=tuple(contexts),
        checks=tuple(checks),
        versions=unfinished.versions,
        contract=dict(export.contract),
    )
    shutil.copytree(HOST, unfinished.folder / HOST.name, dirs_exist_ok=True)
    push = unfinished.folder / "PUSH.md"
    push.write_text(_push_page(manifest, unfinished.target.name))
    manifest = replace(manifest, others=(*manifest.others, File.of(push)))
    manifest.save(unfinished.folder)
    unfinished.finish()
    return manifest


def _check_operations(export: Export) -> None:
    """Checks the operations of one bucket; other buckets differ in sizes only."""
    bucket = export.buckets[0]
    body = body_step(export.model, range(export.model.n_layers), bucket)
    for step in (body, *head_steps(export.model, [bucket.rows])[:2]):
        check(lower(step, export.settings.quant), "litert")


def _check_files(folder: Path, export: Export, bodies: Sequence[BodyShard]) -> Iterator[dict]:
    model, settings = export.model, export.settings
    stored = verify.StoredWeights(export.weights, settings.quant)
    shards = {folder / shard.file.name: range(shard.start, shard.stop) for shard in bodies}
    yield from verify.check_bodies(shards, model, export.buckets, stored)
    yield from verify.check_head(folder / "head.tflite", model, settings.rows, stored)


def _write_steps(export: Export, steps: Sequence[Step], bar: tqdm, path: Path) -> None:
    lowered = [lower(step, export.settings.quant) for step in steps]
    tflite.write(path, lowered, export.weights, bar)


def _write_embedding(export: Export, bar: tqdm, path: Path) -> None:
    with atomic.new_file(path) as part, part.open("wb") as file:
        for piece in export.weights.rows("embedding"):
            numbers = dequantize(piece, np.float32) if isinstance(piece, QuantArray) else piece
            rows = np.ascontiguousarray(numbers, jnp.dtype(_embedding_dtype(export)))
            rows.tofile(file)
            bar.update(rows.nbytes)


def _write_plan(
    unfinished: UnfinishedExport,
    export: Export,
    bodies: Sequence[BodyShard],
    contexts: Sequence[dict[str, Any]],
) -> Iterator[File]:
    """Yields the script that times every signature on a phone, and the tables that it reads."""
    shards = [(shard.file.name, shard.stop - shard.start) for shard in bodies]
    rows = signature_rows(export.settings, shards, contexts)
    yield unfinished.file("signatures.csv", partial(write_rows, rows))
    script = Path(__file__).with_name("on_phone.sh").read_bytes()
    yield unfinished.file("on_phone.sh", lambda path: atomic.write_bytes(path, script))
    (unfinished.folder / "on_phone.sh").chmod(0o755)
    if contexts:
        lines = "".join(graph_lines(contexts)).encode()
        yield unfinished.file("graphs.txt", lambda path: atomic.write_bytes(path, lines))


def _write_rotation(export: Export, path: Path) -> None:
    positions = jnp.arange(max_positions(export.settings), dtype=jnp.int32)[None]
    angles = rotation(export.model, positions)
    atomic.write_bytes(
        path, np.stack([np.asarray(array, np.float32) for array in angles]).tobytes()
    )


def _embedding_dtype(export: Export) -> Any:
    """Returns the dtype of the weights if it has two bytes, else the one of a loaded model."""
    piece = next(export.weights.rows("embedding", 0, 1))
    if not isinstance(piece, QuantArray) and piece.dtype.itemsize == 2:
        return piece.dtype.name
    return "float32" if export.settings.quant == "float32" else "bfloat16"


def _push_page(manifest: Manifest, folder: str) -> str:
    """Returns Markdown with the commands of `adb`, and the purpose of each file."""
    target = f"{_TARGET}/{folder}"

    def pushes(names: Iterable[str]) -> str:
        return "\n".join(f"adb push {name} {target}/" for name in names)

    def filled(template: str, *values: dict[str, Any], **more: str) -> str:
        text = Path(__file__).with_name(template).read_text()
        return Template(text).substitute(*values, target=target, **more)

    bodies = [shard.file.name for shard in manifest.shards]
    by_soc: dict[str, list[str]] = {}
    for context in manifest.contexts:
        by_soc.setdefault(context["soc"], []).extend(context_files(context))
    special = {*bodies, *itertools.chain(*by_soc.values())}
    for_this_machine = ("calibration", "emulated-", "golden-", "on_phone", "signatures", "graphs")
    names = [file.name for file in manifest.files if file.name not in special]
    page = filled(
        "push_cpu.md",
        folder=folder,
        source=manifest.source,
        quant=manifest.settings.quant,
        common=pushes([*(n for n in names if not n.startswith(for_this_machine)), MANIFEST]),
        bodies=pushes(bodies),
    )
    if by_soc:
        page += filled("push_npu.md", manifest.contexts[0])
    for soc, names in by_soc.items():
        libraries = f"libQnnHtpV{_HEXAGON[soc]}Stub.so and libQnnHtpV{_HEXAGON[soc]}Skel.so"
        page += f"\n{soc}, with {libraries}:\n\n```\n{pushes(names)}\n```\n"
    return page
