"""Models of the Hugging Face hub, `org/name` or `org/name@revision`: out of its local cache, or
downloaded into it.

The cache has a folder for each repository: `models--org--name/refs/REVISION` holds the name of a
commit, and `models--org--name/snapshots/COMMIT` the files, as links to `blobs`.
https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

_NAME = re.compile(r"(?P<name>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>\w[\w.-]*(/\w[\w.-]*)*))?")
_FOLDER = re.compile(r"models--[\w.-]+--[\w.-]+")
_MAIN = "main"
_LONGEST_NAME = 255
_TEXTS = ["*.json", "*.jinja", "*.txt", "*.model"]
_WEIGHTS = ["*.safetensors"]


def hub_folder(
    source: Path, complete: Callable[[Path], bool], weights: bool = True
) -> tuple[Path, str]:
    """Returns the folder of a model of the hub, and why it could not be downloaded: "" if it was,
    if it is in the cache, or if the source is no model of the hub.

    A cached snapshot is taken as it is, without a look at the hub, if it is `complete`. Others are
    downloaded by the package huggingface_hub (the extra `hub`), unless `HF_HUB_OFFLINE` is set;
    without `weights` only configuration and tokenizer are. The cache is in `HF_HUB_CACHE`, or in
    `hub` of `HF_HOME`.

    Args:
      source: `org/name[@revision]`; a repository's folder in a cache, `models--org--name`, which
        stands for its snapshot; or any other path, which is returned.
    """
    if source.is_dir() and _FOLDER.fullmatch(source.name) and (source / "snapshots").is_dir():
        return _snapshot(source, _MAIN) or source, ""
    named = _NAME.fullmatch(str(source))
    if named is None or source.exists():
        return source, ""
    name, revision = named["name"], named["revision"] or _MAIN
    cached = _snapshot(_cache() / f"models--{name.replace('/', '--')}", revision)
    if cached is not None and complete(cached):
        return cached, ""
    downloaded, why = _downloaded(name, revision, _TEXTS + _WEIGHTS * weights)
    return downloaded or cached or source, why


def _cache() -> Path:
    within = {"HF_HUB_CACHE": "", "HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub"}
    for variable, folder in within.items():
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser() / folder
    return Path("~/.cache/huggingface/hub").expanduser()


def _snapshot(repository: Path, revision: str) -> Path | None:
    """Returns the folder of a branch, a tag or a commit, if there is one; of a repository without
    `main` its only snapshot."""
    reference, snapshots = repository / "refs" / revision, repository / "snapshots"
    commit = revision
    if reference.is_file():
        commit = reference.read_bytes()[:_LONGEST_NAME].decode(errors="replace").strip()
    if re.fullmatch(r"\w[\w.-]*", commit) and (snapshots / commit).is_dir():
        return snapshots / commit
    every = [*snapshots.iterdir()] if snapshots.is_dir() and revision == _MAIN else []
    return every[0] if len(every) == 1 else None


def _downloaded(name: str, revision: str, patterns: list[str]) -> tuple[Path | None, str]:
    """Returns the folder of a download, or why there is none."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return None, f"it is not whole in {_cache()}, and HF_HUB_OFFLINE is set"
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        return None, f"it is not whole in {_cache()}, and a download needs the extra 'hub'"
    try:
        folder = snapshot_download(
            name, revision=revision, cache_dir=_cache(), allow_patterns=patterns
        )
    except Exception as error:  # of the library, or of whichever HTTP client it has
        return None, f"its download failed: {error}"
    return Path(folder), ""
