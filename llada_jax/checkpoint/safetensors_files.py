"""Safetensors: one file or the shards of an index, checked before a tensor of them is read.

The library checks each header; the same bytes say where each tensor lies, so that its rows can be
read without the rest.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from llada_jax.checkpoint.sources import FLOATS, StoredTensor, listed
from llada_jax.config import require, shortened
from llada_jax.config.json_files import parse_json, read_object
from llada_jax.inside import inside

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Looks through the tensors of a folder: those of its index, each in the file that the map
    names, or without an index those of `model.safetensors`.

    Raises FileNotFoundError or ValueError: a file that is missing or damaged, and a tensor that is
    not in its file, or in another one as well.
    """
    index = folder / INDEX_FILE
    if index.is_file():
        return _mapped_tensors(folder, read_object(index).get("weight_map"))
    if not (folder / SINGLE_FILE).is_file():
        pickled = sorted(path.name for path in folder.glob("*.bin"))
        require(
            not pickled,
            f"{folder} has its weights in {listed(pickled)}; allowed: {SINGLE_FILE} (convert it "
            "first: save_pretrained of transformers writes it)",
        )
        raise FileNotFoundError(f"no {SINGLE_FILE} and no {INDEX_FILE} in {folder}")
    return _tensors_of(folder / SINGLE_FILE)


def _mapped_tensors(folder: Path, file_of: Any) -> dict[str, StoredTensor]:
    require(
        isinstance(file_of, dict) and all(isinstance(name, str) for name in file_of.values()),
        f"{folder / INDEX_FILE} lacks 'weight_map', the name of a file for each tensor",
    )
    files = {name: inside(folder, name) for name in dict.fromkeys(file_of.values())}
    missing = [name for name, file in files.items() if not os.path.isfile(file)]
    if missing:
        raise FileNotFoundError(f"{folder} lacks {listed(missing)}, named by {INDEX_FILE}")
    require(  # other files may lie there, as adapters do, but not other whole weights
        SINGLE_FILE in files or not (folder / SINGLE_FILE).exists(),
        f"{folder} has {SINGLE_FILE}, which {INDEX_FILE} does not name; allowed: one of the two",
    )
    stored: dict[str, StoredTensor] = {}
    for name, file in files.items():
        found = _tensors_of(file)
        mapped = {tensor for tensor, place in file_of.items() if place == name}
        for wrong, where in ((mapped - found.keys(), "lacks"), (found.keys() - mapped, "also has")):
            require(not wrong, f"{file} {where} {listed(sorted(wrong))}, against {INDEX_FILE}")
        stored |= found
    return stored


def _tensors_of(file: Path) -> dict[str, StoredTensor]:
    """Reads what a file holds: 8 bytes of header length, a JSON header, the data."""
    wrong = f"{file} is no safetensors file, or is cut short"
    try:
        with safe_open(file, "numpy"):  # maps the file, and reads the header alone
            pass
    except (SafetensorError, OSError) as error:
        raise ValueError(shortened(f"{wrong}: {error}")) from error
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        # The library takes the last of two tensors of one name.
        entries = parse_json(stream.read(length), wrong, "each tensor once")
    entries.pop("__metadata__", None)
    return {name: _stored(file, name, entry, 8 + length) for name, entry in entries.items()}


def _stored(file: Path, name: str, entry: Mapping[str, Any], data: int) -> StoredTensor:
    shape = tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    rows = shape[0] if shape else 1
    return StoredTensor(
        name,
        file,
        offset=data + begin,
        shape=shape,
        row_bytes=(end - begin) // max(rows, 1),
        kind=entry["dtype"],
        dtype=FLOATS.get(entry["dtype"]),
    )
